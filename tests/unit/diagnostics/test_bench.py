from gcemil.diagnostics.trained_fold import TrainedFold
from run_builders import TrainedRuns


def test_a_bag_on_the_bench_has_truth_evidence_and_both_networks(classification_runs: TrainedRuns):
    fold = TrainedFold.open(classification_runs.gce, 0, against=classification_runs.host)
    bags = list(fold.bags())
    assert [bench.spec for bench in bags] == list(fold.parts.test)
    assert fold.networks == ("plain", "wrapped")
    for bench in bags:
        assert bench.truth is not None
        assert bench.regions is not None
        # A region is made of evidence, and every patch of evidence lies in one.
        assert bool(((bench.regions > 0) == bench.truth).all())
        assert bench.explanation is not None
        # The wrapped host is the plain one, trained anew.
        assert bench.predict("plain").host is not bench.predict("wrapped").host
        assert bench.predict("plain").full.logits.equal(bench.predict("wrapped").full.logits)


def test_the_cases_of_a_survival_run_number_their_regions_apart(survival_runs: TrainedRuns):
    fold = TrainedFold.open(survival_runs.gce, 0)
    assert fold.networks == ("wrapped",)
    assert fold.scale.deviation != 1.0
    several = [bench for bench in fold.bags("train") if len(bench.bag.slide_ids) > 1]
    for bench in several:
        first = bench.bag.spans[0].stop
        ours, others = set(bench.regions[:first].tolist()), set(bench.regions[first:].tolist())
        assert ours & others <= {0}
