"""Directions of the classes: found from the training slides, after training, and read by the score."""

import numpy as np
import pytest
import torch

from builders import make_cohort, write_slide
from gcemil import AnchorBank, GceMil, create_host
from gcemil.bags.cohort import Cohort
from gcemil.hosts.host import embedded_bag
from gcemil.runs.checkpoint import load_network
from gcemil.training.directions import (
    conformal_quantile,
    find_class_directions,
    gradient_times_token,
)

DIM = 6
DECIDING = (3, 11)


@pytest.fixture
def cohort(tmp_path) -> Cohort:
    """Two patches of a slide of class c lie far along axis c, the others are background."""
    cohort = make_cohort(tmp_path / "cohort", dim=DIM)
    generator = np.random.default_rng(0)
    for spec in cohort.bags:
        features = generator.normal(0, 0.3, size=(20, DIM)).astype(np.float32)
        features[DECIDING, int(spec.target)] += 6.0
        write_slide(cohort.folder, spec.slide_ids[0], features, None)
    return Cohort.load(cohort.folder)


def reading_model(*, swapped: bool = False) -> GceMil:
    """A host that pools evenly and reads class c off axis c, or off the other axis."""
    torch.manual_seed(0)
    host = create_host("abmil", in_dim=DIM, n_outputs=2, options={"width": DIM})
    bank = AnchorBank(torch.randn(3, DIM), ("a", "b", "c"), "of a test", "prototypes")
    axes = torch.eye(DIM)[:2].flip(0) if swapped else torch.eye(DIM)[:2]
    with torch.no_grad():
        host.project[0].weight.copy_(torch.eye(DIM))
        host.project[0].bias.zero_()
        host.attention.score.weight.zero_()
        host.head.weight.copy_(axes)
        host.head.bias.zero_()
    model = GceMil(host, bank, in_dim=DIM).eval()
    model.calibrate(reference())
    return model


def reference() -> torch.Tensor:
    return torch.randn(200, DIM, generator=torch.Generator().manual_seed(1)) * 0.3


def test_a_direction_points_at_the_patches_that_decide_its_class(cohort):
    found = find_class_directions(reading_model(), cohort, cohort.bags, reference(), seed=0)
    along = found / found.norm(dim=1, keepdim=True)
    assert float(along[0, 0]) > 0.95
    assert float(along[1, 1]) > 0.95


def test_slides_that_are_called_another_class_teach_nothing(cohort):
    found = find_class_directions(
        reading_model(swapped=True), cohort, cohort.bags, reference(), seed=0
    )
    assert not bool(found.any())


def test_likeness_ranks_the_deciding_patches_first_once_it_is_known(cohort):
    model = reading_model()
    assert not model.reads_likeness
    model.class_directions.copy_(
        find_class_directions(model, cohort, cohort.bags, reference(), seed=0)
    )
    assert model.reads_likeness
    bag = cohort.read_bag(cohort.bags[0])
    # Without coordinates nothing is smoothed; the other terms are those of an even host and of no anchors.
    scores = model(torch.from_numpy(np.asarray(bag.features))).scores
    assert set(scores.topk(2).indices.tolist()) == set(DECIDING)


def test_gradient_times_token_is_exact_where_the_host_is_linear():
    host = reading_model().host
    features = torch.rand(5, DIM)
    found = gradient_times_token(host, embedded_bag(host, features), None, 0)
    # Even pooling of five patches: each speaks for class 0 by a fifth of its first feature.
    assert found.tolist() == pytest.approx((features[:, 0] / 5).tolist(), abs=1e-6)


def test_a_trained_run_has_its_directions_and_a_risk_has_none(classification_runs, survival_runs):
    for runs, has_directions in ((classification_runs, True), (survival_runs, False)):
        model = load_network(runs.gce / "fold_0" / "checkpoint.safetensors")[0].model
        assert bool(model.class_directions.any()) is has_directions


# Confirmation


@pytest.mark.parametrize(
    ("values", "rate", "expected"),
    [
        ([], 0.1, 0.0),
        ([0.3], 0.1, 0.3),
        ([0.1, 0.5, 0.2], 0.1, 0.5),
        ([round(0.1 * k, 1) for k in range(9)], 0.1, 0.8),
        ([round(0.1 * k, 1) for k in range(9)], 0.5, 0.4),
    ],
)
def test_quantile_of_a_few_values(values: list[float], rate: float, expected: float) -> None:
    assert conformal_quantile(values, rate) == expected


def test_a_new_value_exceeds_the_quantile_no_more_often_than_promised() -> None:
    generator = np.random.default_rng(0)
    exceeded = [
        draws[-1] > conformal_quantile(list(draws[:-1]), 0.1)
        for draws in generator.random((4000, 31))
    ]
    # Exactly 3/31 are expected: the rank of the quantile among 30 values is 28.
    assert np.mean(exceeded) == pytest.approx(3 / 31, abs=0.015)
