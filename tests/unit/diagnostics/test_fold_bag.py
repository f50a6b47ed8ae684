from builders.runs import TrainedRuns
from gcemil.diagnostics.trained_fold import TrainedFold


def test_a_bag_of_a_fold_has_truth_evidence_and_both_networks(classification_runs: TrainedRuns):
    fold = TrainedFold.open(classification_runs.gce, 0, against=classification_runs.host)
    bags = list(fold.bags())
    assert [bag.spec for bag in bags] == list(fold.parts.test)
    assert fold.networks == ("plain", "wrapped")
    for bag in bags:
        assert bag.truth is not None
        assert bag.regions is not None
        # A region is made of evidence, and every patch of evidence lies in one.
        assert bool(((bag.regions > 0) == bag.truth).all())
        assert bag.explanation is not None
        # The wrapped host is the plain one, trained anew.
        assert bag.predict("plain").host is not bag.predict("wrapped").host
        assert bag.predict("plain").full.logits.equal(bag.predict("wrapped").full.logits)


def test_the_cases_of_a_survival_run_number_their_regions_apart(survival_runs: TrainedRuns):
    fold = TrainedFold.open(survival_runs.gce, 0)
    assert fold.networks == ("wrapped",)
    assert fold.scale.deviation != 1.0
    several = [bag for bag in fold.bags("train") if len(bag.bag.slide_ids) > 1]
    for bag in several:
        first = bag.bag.spans[0].stop
        ours, others = set(bag.regions[:first].tolist()), set(bag.regions[first:].tolist())
        assert ours & others <= {0}
