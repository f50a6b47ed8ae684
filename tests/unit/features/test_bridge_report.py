"""The report on the bridge, with fits and pairs whose answer is known."""

import numpy as np
import pytest

from gcemil.cli.anchors import make_bridge_fit
from gcemil.errors import InputError
from gcemil.features.pairs import judge_bridge

ANCHORS = np.eye(3, dtype=np.float32)


def pairs(n=60, *, noise=0.0, cone=0.0, seed=0):
    """Targets are a rotation of the features, moved along (1, 1, 1) and blurred."""
    draws = np.random.default_rng(seed)
    features = draws.normal(size=(n, 3)).astype(np.float32)
    targets = features[:, [2, 0, 1]] + cone + noise * draws.normal(size=(n, 3))
    return features, targets.astype(np.float32)


def exact(features, anchor_space):
    return lambda rows: (
        rows[:, [2, 0, 1]] + anchor_space.mean(axis=0) - features[:, [2, 0, 1]].mean(axis=0)
    )


def constant(features, anchor_space):
    return lambda rows: np.tile(anchor_space.mean(axis=0), (len(rows), 1))


def test_an_exact_bridge_has_cosine_one_and_no_warning():
    report = judge_bridge(*pairs(cone=5.0), ANCHORS, exact, text_sees_images=True)
    assert report.cosine == pytest.approx(1, abs=1e-4)
    assert report.centred_cosine == pytest.approx(1, abs=1e-4)
    assert report.response_correlation == pytest.approx((1, 1, 1), abs=1e-4)
    assert report.aligned
    assert report.warnings == ()


def test_a_constant_answer_in_a_narrow_cone_is_seen_through():
    report = judge_bridge(*pairs(cone=20.0), ANCHORS, constant)
    # The plain cosine alone would look splendid.
    assert report.cosine > 0.99
    assert report.cosine == pytest.approx(report.constant_cosine)
    assert report.centred_cosine == pytest.approx(0, abs=1e-6)
    assert not report.aligned
    assert "not aligned: grounding is only as good as training makes it" in report.warnings[-1]


def test_the_bridge_of_training_finds_the_map_and_does_not_find_one_in_noise():
    good = judge_bridge(*pairs(noise=0.1), ANCHORS, make_bridge_fit(3, 0.01))
    assert good.centred_cosine > 0.95
    assert good.mean_response_correlation > 0.95
    features, _ = pairs()
    _, unrelated = pairs(seed=1)
    bad = judge_bridge(features, unrelated, ANCHORS, make_bridge_fit(3, 0.01))
    assert abs(bad.centred_cosine) < 0.3
    assert not bad.aligned


def test_every_pair_is_judged_by_a_fit_that_has_not_seen_it():
    seen = []

    def spying(features, anchor_space):
        seen.append(len(features))
        known = {row.tobytes() for row in features}

        def judge(rows):
            assert not known & {row.tobytes() for row in rows}
            return rows

        return judge

    judge_bridge(*pairs(50), ANCHORS, spying, folds=5)
    assert seen == [40] * 5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y, a: (x[:9], y[:9], a), "at least 10 pairs, got 9"),
        (lambda x, y, a: (x, y[:-1], a), "got 60 features and 59"),
        (lambda x, y, a: (x, y, a[:, :2]), "width 2 and pairs of width 3 are not of one space"),
        (lambda x, y, a: (x, np.full_like(y, np.nan), a), "not finite"),
    ],
)
def test_pairs_that_cannot_be_judged_are_refused(change, message):
    with pytest.raises(InputError, match=message):
        judge_bridge(*change(*pairs(), ANCHORS), exact)
