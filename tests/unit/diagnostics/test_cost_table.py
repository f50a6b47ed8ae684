"""Time, memory and utility of every mode, with a clock that moves only when someone works."""

from dataclasses import replace

import pytest
import torch

from builders.runs import TrainedRuns
from gcemil.diagnostics import cost
from gcemil.diagnostics.cost import (
    measure_inference_cost,
    peak_bytes,
    time_encoder,
    time_interleaved,
)
from gcemil.diagnostics.trained_fold import TrainedFold
from gcemil.errors import UsageError
from gcemil.hosts.adapters import CallableHost
from gcemil.hosts.table import create_host


class Stopwatch:
    """A clock that only moves when someone works."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def row(finding, mode):
    return next(row for row in finding.rows if row.labels["mode"] == mode)


def test_every_call_is_timed_alone_and_the_median_counts():
    watch, slow = Stopwatch(), iter([2.0, 100.0, 3.0])

    def work(seconds):
        watch.now += seconds

    found = time_interleaved({"a": lambda: work(next(slow)), "b": lambda: work(7.0)}, 3, watch)
    assert found == pytest.approx({"a": 3.0, "b": 7.0})


def counted_fold(runs: TrainedRuns, watch: Stopwatch) -> TrainedFold:
    """The plain run's fold with a host whose pass takes a second per patch."""

    def model(features):
        watch.now += len(features)
        return features.mean(dim=0)[:2], features[:, 0]

    fold = TrainedFold.open(runs.host, 0)
    host = CallableHost(model, fold.cohort.card.feature_dim, 2, scores="model").eval()
    return replace(fold, host=host)


def test_costs_of_a_host_that_takes_a_second_per_patch_are_known(classification_runs: TrainedRuns):
    watch = Stopwatch()
    finding = measure_inference_cost(
        counted_fold(classification_runs, watch), budget=0.1, clock=watch, repeats=2
    )
    assert [row.labels["mode"] for row in finding.rows] == [
        "full",
        "attention",
        "random",
        "oracle",
        "occlusion",
    ]
    for mode in ("attention", "occlusion"):
        for slide in (one for one in finding.slides if one["mode"] == mode):
            n, k = slide["n_patches"], max(1, round(0.1 * slide["n_patches"]))
            assert slide["patch_ratio"] == pytest.approx(k / n)
            assert slide["aggregation_time"] == pytest.approx(k / n)
            # One more pass to find the patches; occlusion needs one pass without each of them.
            found = (n + k) / n if mode == "attention" else (n + n * (n - 1) + k) / n
            assert slide["explained_time"] == pytest.approx(found)
            assert slide["peak_memory"] < 0.2
    assert row(finding, "full").values["aggregation_time"] == pytest.approx(1)
    assert row(finding, "full").values["relative_utility"] == pytest.approx(1)
    assert row(finding, "occlusion").labels["timing"] == "extrapolated"
    assert row(finding, "occlusion").values["relative_utility"] is None
    assert any("no wrapper" in note for note in finding.notes)


def test_a_wrapped_run_has_every_row_but_the_prefilter(classification_runs: TrainedRuns):
    fold = TrainedFold.open(classification_runs.gce, 0, against=classification_runs.host)
    finding = measure_inference_cost(fold, repeats=1, timed_bags=2)
    assert [(row.labels["mode"], row.labels["network"]) for row in finding.rows] == [
        ("full", "plain"),
        ("soft", "wrapped"),
        ("discrete", "wrapped"),
        ("attention", "plain"),
        ("occlusion_closed_form", "plain"),
        ("integrated_gradients", "plain"),
        ("random", "plain"),
        ("oracle", "plain"),
        ("occlusion", "plain"),
    ]
    assert any("No prefilter" in note for note in finding.notes)
    assert len({slide["bag_id"] for slide in finding.slides}) == finding.settings["timed_bags"] <= 2
    discrete, attention = row(finding, "discrete").values, row(finding, "attention").values
    assert discrete["patch_ratio"] == pytest.approx(attention["patch_ratio"])
    assert 0 < discrete["peak_memory"] < 1
    assert row(finding, "soft").values["patch_ratio"] == pytest.approx(1)
    # The closed form gives the scores that one pass per patch would give.
    assert row(finding, "occlusion").values["relative_utility"] == pytest.approx(
        row(finding, "occlusion_closed_form").values["relative_utility"]
    )


def test_with_an_encoder_before_it_every_way_is_timed_from_patch_to_answer(
    classification_runs: TrainedRuns, monkeypatch
):
    watch = Stopwatch()
    monkeypatch.setattr(cost, "time_encoder", lambda name, **_: {"vit_s": 9.0}[name])
    found = measure_inference_cost(
        counted_fold(classification_runs, watch),
        budget=0.1,
        clock=watch,
        repeats=1,
        timed_bags=1,
        encoders=["vit_s"],
    )
    assert found.settings["encoding_seconds_per_patch"] == {"vit_s": 9.0}
    slides = {slide["mode"]: slide for slide in found.slides if slide.get("encoder") == "vit_s"}
    n = slides["full"]["n_patches"]
    k = max(1, round(0.1 * n))
    # Nine seconds to encode a patch and one to pool it.
    assert slides["full"]["end_to_end_time"] == pytest.approx(1)
    assert slides["attention"]["end_to_end_time"] == pytest.approx((9 * n + n + k) / (10 * n))
    assert slides["occlusion"]["end_to_end_time"] == pytest.approx(
        (9 * n + n + n * (n - 1) + k) / (10 * n)
    )
    with pytest.raises(UsageError, match="'virchow2' cannot be built without its weights"):
        time_encoder("virchow2", repeats=1, clock=watch)


def test_controls_have_a_worth_and_no_time_of_their_own(classification_runs: TrainedRuns):
    fold = TrainedFold.open(classification_runs.gce, 0)
    finding = measure_inference_cost(fold, repeats=1, timed_bags=1)
    for mode in ("random", "oracle"):
        found = row(finding, mode).values
        assert found["relative_utility"] is not None
        assert found["explained_time"] is None
        assert found["patch_ratio"] == pytest.approx(row(finding, "discrete").values["patch_ratio"])


@pytest.mark.parametrize("wrong", [{"repeats": 0}, {"timed_bags": 0}])
def test_nothing_timed_is_an_error(classification_runs: TrainedRuns, wrong):
    with pytest.raises(UsageError, match="repeats and timed_bags are at least 1"):
        measure_inference_cost(TrainedFold.open(classification_runs.host, 0), **wrong)


def test_what_is_freed_no_longer_counts():
    def one_after_another():
        for _ in range(5):
            torch.ones(1000)

    assert peak_bytes(one_after_another) == 4000
    assert peak_bytes(lambda: [torch.ones(1000) for _ in range(5)]) == 20_000


def test_views_and_tensors_from_before_count_nothing():
    before = torch.ones(1000)
    assert peak_bytes(lambda: before.view(10, 100).T[:5]) == 0
    assert peak_bytes(lambda: before.add_(1)) == 0
    assert peak_bytes(lambda: torch.ones(1000).view(10, 100)) == 4000


@torch.no_grad()
def test_the_allocators_own_record_says_the_same():
    host = create_host("abmil", in_dim=16, n_outputs=2).eval()
    features = torch.randn(200, 16)

    def recorded():
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
        ) as profile:
            host(features)
        events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
        held = torch.tensor(
            [event.nbytes() for event in sorted(events, key=lambda e: e.start_ns())]
        )
        return int(held.cumsum(0).max())

    assert peak_bytes(lambda: host(features)) == pytest.approx(recorded(), rel=0.01)
