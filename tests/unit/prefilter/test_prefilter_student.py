"""The student of the prefilter: learns what is easy, the same way every time, and survives being
saved.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from gcemil.errors import RunError, UsageError
from gcemil.features.extract import FeatureOrigin
from gcemil.prefilter.student import (
    FittedPrefilter,
    PrefilterSettings,
    Student,
    _standardise,
    draw_lesson,
    fit_student,
    keep_rows,
    load_prefilter,
    save_prefilter,
    score_crops,
)
from gcemil.slides.grid import PatchSettings

QUICK = PrefilterSettings(width=4, epochs=8, slides_per_step=1, learning_rate=0.01)
ORIGIN = FeatureOrigin("efficientnet_lite0", "abc", "float16", PatchSettings(), "rules")


def slide_of(seed, n=40, marked=6, px=12):
    """Crops of noise; the marked ones have stripes and high scores of the teacher."""
    draws = np.random.default_rng(seed)
    crops = draws.normal(150, 12, (n, px, px, 3))
    rows = draws.choice(n, marked, replace=False)
    stripes = np.where(np.arange(px) % 4 < 2, 40, -40)
    crops[rows] += stripes[None, :, None, None] if seed % 2 else stripes[None, None, :, None]
    scores = torch.zeros(n)
    scores[rows] = 3.0
    return crops.clip(0, 255).astype(np.uint8), scores, set(rows.tolist())


def lessons(count=4):
    return [
        draw_lesson(crops, scores, wanted=64, generator=np.random.default_rng(0))
        for crops, scores, _ in (slide_of(seed) for seed in range(count))
    ]


def test_a_texture_of_the_same_mean_colour_is_found_on_a_new_slide():
    student = fit_student(lessons(), QUICK)
    for seed in (100, 101):
        crops, _, marked = slide_of(seed)
        assert set(keep_rows(score_crops(student, crops), 6 / 40).tolist()) == marked


def test_equal_seeds_give_equal_students_and_leave_the_global_generator_alone():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    one, other = (fit_student(lessons(2), QUICK.model_copy(update={"epochs": 2})) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name])
    third = fit_student(lessons(2), QUICK.model_copy(update={"epochs": 2, "seed": 1}))
    assert not torch.equal(third.head.weight, one.head.weight)


def test_scores_do_not_depend_on_how_many_patches_are_put_in_at_once(monkeypatch):
    student, crops = Student(4).eval(), slide_of(0)[0]
    whole = score_crops(student, crops)
    monkeypatch.setattr("gcemil.prefilter.student.SCORED_AT_ONCE", 7)
    assert torch.allclose(score_crops(student, crops), whole, atol=1e-5)
    assert len(score_crops(student, crops[:0])) == 0


def test_a_large_slide_teaches_its_first_patches_and_some_others():
    crops, _, _ = slide_of(0, n=40)
    scores = torch.arange(40.0)
    taught = draw_lesson(crops, scores, wanted=10, generator=np.random.default_rng(0))
    assert len(taught.crops) == 10
    assert taught.targets[:5].tolist() == pytest.approx(
        _standardise(scores)[[39, 38, 37, 36, 35]].tolist()
    )
    assert taught.targets[5:].max() < taught.targets[:5].min()


@pytest.mark.parametrize(
    ("rate", "kept"),
    [(0.05, [3]), (0.2, [3]), (0.3, [1, 3]), (0.6, [1, 2, 3]), (1.0, [0, 1, 2, 3, 4])],
)
def test_the_best_share_of_a_slide_is_kept_and_ties_go_to_the_lower_row(rate, kept):
    assert keep_rows(torch.tensor([0.1, 0.5, 0.5, 0.9, 0.5]), rate).tolist() == kept


def fitted():
    torch.manual_seed(0)
    settings = PrefilterSettings(width=4)
    return FittedPrefilter(
        settings, ORIGIN, 0.15, 0.25, 1.0, "model", {"n_val": 12}, Student(4).eval()
    )


def test_a_saved_prefilter_gives_the_same_scores(tmp_path):
    before = fitted()
    save_prefilter(tmp_path / "one.safetensors", before)
    after = load_prefilter(tmp_path / "one.safetensors")
    crops = slide_of(0)[0]
    torch.testing.assert_close(
        score_crops(after.student, crops), score_crops(before.student, crops)
    )
    kept = {name: value for name, value in vars(before).items() if name != "student"}
    assert kept == {name: value for name, value in vars(after).items() if name != "student"}
    save_prefilter(tmp_path / "two.safetensors", after)
    assert (tmp_path / "one.safetensors").read_bytes() == (
        tmp_path / "two.safetensors"
    ).read_bytes()


def test_a_doubt_up_to_the_limit_is_certified_and_no_limit_certifies_nothing():
    assert fitted().certifies(0.25)
    assert not fitted().certifies(0.2501)
    assert not replace(fitted(), doubt_limit=None).certifies(0.0)


def test_a_file_that_is_no_prefilter_is_named(tmp_path):
    with pytest.raises(UsageError, match="no prefilter was fitted. Fit it with 'gcemil prefilter"):
        load_prefilter(tmp_path / "run" / "fold_0" / "prefilter.safetensors")
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"rubbish")
    with pytest.raises(RunError, match=r"broken.safetensors is not a prefilter of gcemil"):
        load_prefilter(broken)
