"""`gcemil validate`: the checks of slides.csv, and each fault of a cohort planted and found."""

import re
from dataclasses import replace

import h5py
import numpy as np
import pytest

from builders import grid_coords, make_cohort, write_slide
from gcemil.bags import store
from gcemil.bags.cohort import CohortCard, Problem, read_slides
from gcemil.bags.folds import make_folds, write_folds
from gcemil.bags.validate import validate

COLUMNS = {
    "classification": ("slide_id", "case_id", "label"),
    "survival": ("slide_id", "case_id", "time", "event"),
}


def problems(task, *lines, **card) -> list[Problem]:
    classes = ("benign", "malignant") if task == "classification" else ()
    made = CohortCard(name="x", task=task, classes=classes, feature_dim=8, **card)
    rows = [dict(zip(COLUMNS[task], line.split(","), strict=True)) for line in lines]
    return read_slides(rows, made)[1]


@pytest.mark.parametrize(
    ("task", "lines", "where", "what"),
    [
        (
            "classification",
            ("a,p,benign", "a,p,benign"),
            "a",
            "the slide id occurs 2 times in slides.csv",
        ),
        ("classification", ("a,p,unsure",), "a", "label 'unsure' is not among benign, malignant"),
        *(
            ("classification", (f"{name},p,benign",), name, "cannot be a slide id")
            for name in ("../secret", "a/b", "..", "a\\b", "")
        ),
        *(
            ("survival", (f"a,p,{time},1",), "a", f"time '{time}' is not a finite number above 0")
            for time in ("0", "-1", "", "soon", "inf", "nan", "1e400")
        ),
        *(
            ("survival", (f"a,p,3,{event}",), "a", f"event '{event}' is neither 0 nor 1")
            for event in ("2", "0.5", "inf", "nan", "dead")
        ),
        (
            "survival",
            ("a,p,3,1", "b,p,4,1"),
            "p",
            "slides 'a' and 'b' of the case disagree on the target",
        ),
    ],
)
def test_a_wrong_line_is_one_problem(task, lines, where, what):
    (problem,) = problems(task, *lines)
    assert (problem.level, problem.where) == ("error", where)
    assert what in problem.what
    assert problem.remedy


def test_slides_of_a_case_may_have_different_labels_unless_they_are_one_bag():
    lines = ("a,p,benign", "b,p,malignant")
    assert problems("classification", *lines) == []
    assert problems("classification", *lines, bag_unit="case")[0].where == "p"


def features(n_patches=12, dim=8, seed=99):
    return np.random.default_rng(seed).normal(size=(n_patches, dim)).astype(np.float32)


def edit(path, old, new):
    path.write_text(path.read_text().replace(old, new))


def found(folder, level="error"):
    return {(p.where, p.what, p.remedy) for p in validate(folder) if p.level == level}


def the_one(folder, level="error"):
    problems = found(folder, level)
    assert len(problems) == 1, problems
    return next(iter(problems))


@pytest.fixture
def cohort(tmp_path):
    made = make_cohort(tmp_path / "cohort", n_cases=20)
    write_folds(made, make_folds(made))
    return made


def test_a_sound_cohort_has_no_problems(cohort, tmp_path):
    assert validate(cohort.folder) == []
    survival = make_cohort(tmp_path / "survival", task="survival", n_cases=30)
    write_folds(survival, make_folds(survival))
    assert validate(survival.folder) == []


def truncate(cohort):
    path = cohort.feature_file("s003_0")
    path.write_bytes(path.read_bytes()[:300])


def move_source(cohort):
    path = cohort.feature_file("s003_0")
    path.rename(cohort.folder / "elsewhere.h5")
    path.symlink_to(cohort.folder / "before.h5")


def rewrite(values, coords=None):
    """A fault of the features of one slide."""
    return lambda cohort: write_slide(
        cohort.folder, "s003_0", values, grid_coords(len(values)) if coords is None else coords
    )


def with_value(value):
    values = features()
    values[7, 2] = value
    return values


def repeat_features(cohort):
    for slide_id in ("s003_0", "s005_0"):
        write_slide(cohort.folder, slide_id, features(), grid_coords(12))


def rename_dataset(cohort):
    with h5py.File(cohort.feature_file("s003_0"), "w") as file:
        file["feats"] = features()


def edited(name, old, new):
    """A fault of a text file."""
    return lambda cohort: edit(cohort.folder / name, old, new)


def forget_slide(cohort):
    path = cohort.folder / "splits" / "fold_1.csv"
    path.write_text(
        "\n".join(line for line in path.read_text().splitlines() if "s003_0" not in line)
    )


AGAIN = "Import it again from where it is now"
FAULTS = {
    "missing": (lambda cohort: cohort.feature_file("s003_0").unlink(), "does not exist"),
    "truncated": (truncate, "cannot be read as HDF5 .*extract it again"),
    "moved": (move_source, f"s003_0.h5 is a link to .*/before.h5, which is not there.*{AGAIN}"),
    "rows": (
        rewrite(features(), grid_coords(11)),
        r"\(11, 2\) coordinates for 12 feature rows",
    ),
    "nan": (
        rewrite(with_value(np.nan)),
        "1 patches have NaN or infinite .* the first is row 7",
    ),
    "infinite": (rewrite(with_value(np.inf)), "1 patches have NaN or infinite features"),
    "empty": (rewrite(features(0)), "the slide has no patches"),
    "constant": (rewrite(np.ones((12, 8), np.float32)), "all patches have the same features"),
    "repeated": (repeat_features, "its features are identical to those of 's003_0'"),
    "width": (rewrite(features(dim=9)), r"shape \(12, 9\), cohort.yaml states width 8"),
    "micrometres": (
        rewrite(features(), grid_coords(12) * 0.2537),
        "look like micrometres.*gcemil import",
    ),
    "dataset": (rename_dataset, "s003_0.h5 has no dataset 'features', only: feats"),
    "fold": (forget_slide, "fold_1.csv does not place the slide"),
    "part": (edited("splits/fold_0.csv", ",val", ",train"), "the val part is empty"),
    "label": (
        edited("slides.csv", "s003_0,c003,malignant", "s003_0,c003,unsure"),
        "label 'unsure' is not among benign, malignant",
    ),
}
PLACES = {"repeated": "s005_0", "part": "fold_0.csv"}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_the_one_problem_with_its_place(cohort, fault):
    plant, message = FAULTS[fault]
    plant(cohort)
    where, what, remedy = the_one(cohort.folder)
    assert where == PLACES.get(fault, "s003_0")
    assert re.search(message, f"{what} {remedy}")


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("slides.csv", "s003_0", "../s003_0", "cannot be a slide id"),
        ("cohort.yaml", "- malignant", "- malignant\n- other", "the class has no slide"),
        ("cohort.yaml", "name:", "name: [", "cohort.yaml is not valid YAML"),
    ],
)
def test_a_fault_of_a_text_file_is_among_the_problems(cohort, name, old, new, message):
    edit(cohort.folder / name, old, new)
    assert any(message in what for _, what, _ in found(cohort.folder))


def test_a_case_in_train_and_test(tmp_path):
    cohort = make_cohort(tmp_path, n_cases=20, slides_per_case=2)
    write_folds(cohort, make_folds(cohort), kind="official")
    path = tmp_path / "splits" / "fold_0.csv"
    lines = path.read_text().splitlines()
    lines[1:3] = ["s000_0,train", "s000_1,test"]
    path.write_text("\n".join(lines))
    where, what, remedy = the_one(tmp_path)
    assert (where, what) == (
        "c000",
        "the case is in test and train of fold_0.csv: the test set leaks",
    )
    assert remedy == "Run 'gcemil split --unit case'."


def test_folds_that_do_not_test_every_slide_once(tmp_path):
    cohort = make_cohort(tmp_path, n_cases=30)
    write_folds(cohort, make_folds(cohort))
    folds = make_folds(cohort, n_folds=3, seed=1)
    (tmp_path / "splits" / "splits.yaml").unlink()
    for fold in folds:
        lines = [f"{slide},{part}" for slide, part in fold.part_of.items()]
        (tmp_path / "splits" / f"fold_{fold.index}.csv").write_text(
            "\n".join(["slide_id,split", *lines])
        )
    where, what, remedy = the_one(tmp_path)
    # All 30 in the three new folds, and those of the two old ones once more.
    assert where == "splits"
    assert what.endswith("(12 slides in all)")
    assert "gcemil split" in remedy
    assert "--official" in remedy


def test_folds_left_over_from_another_split(cohort):
    card = cohort.folder / "splits" / "splits.yaml"
    card.write_text(card.read_text().replace("- 4\n", ""))
    where, what, _ = the_one(cohort.folder)
    assert (where, what) == (
        "splits",
        "splits.yaml names the folds 0, 1, 2, 3, but there are 0, 1, 2, 3, 4: two splits are mixed",
    )


def test_published_splits_may_test_a_slide_twice(cohort):
    folds = make_folds(cohort)
    write_folds(cohort, [folds[0], replace(folds[0], index=1)], kind="official")
    assert found(cohort.folder) == set()
    write_folds(cohort, [folds[0], replace(folds[0], index=1)])
    assert len(found(cohort.folder)) == 2


def test_a_class_with_fewer_cases_than_folds(tmp_path):
    make_cohort(tmp_path, n_cases=9)
    assert the_one(tmp_path, "warning")[:2] == (
        "class 'malignant'",
        "the class has 4 cases, fewer than the 5 folds",
    )


def test_a_part_with_one_class_or_without_events(cohort, tmp_path):
    def place(made, part_of):
        lines = [f"{row.slide_id},{part_of(row)}" for row in made.slides]
        table = made.folder / "splits" / "fold_0.csv"
        table.write_text("\n".join(["slide_id,split", *lines]))
        return {problem[:2] for problem in found(made.folder)}

    problems = place(cohort, lambda row: "test" if row.label == "benign" else "train")
    assert ("fold_0.csv", "the test part has only class 'benign'") in problems
    survival = make_cohort(tmp_path / "survival", task="survival", n_cases=30)
    write_folds(survival, make_folds(survival))
    problems = place(survival, lambda row: "train" if row.event else "val")
    assert ("fold_0.csv", "the val part has no event") in problems


def test_polarity_that_looks_inverted(tmp_path):
    make_cohort(tmp_path, task="survival", n_cases=60)
    path = tmp_path / "slides.csv"
    # Most cases 'happened', and these are the ones followed longest: censorship read as event.
    rows = [
        f"s{i:03d}_0,c{i:03d},{100 + i if i % 3 else 5 + i},{int(i % 3 > 0)}" for i in range(60)
    ]
    path.write_text("\n".join(["slide_id,case_id,time,event", *rows]))
    _, what, remedy = the_one(tmp_path, "warning")
    assert "event and censorship look swapped" in what
    assert "event = 1 - censorship" in remedy


def test_slow_chunks_are_a_warning_with_the_command(cohort):
    with h5py.File(cohort.feature_file("s003_0"), "w") as file:
        file.create_dataset("features", data=features(), chunks=(1, 8))
        file["coords"] = grid_coords(12)
    where, _, remedy = the_one(cohort.folder, "warning")
    assert (where, remedy) == (
        "s003_0",
        f"Rewrite them with 'gcemil import {cohort.folder / 'features'} --repack'.",
    )


def test_examples_that_the_card_names_have_to_be_there_and_fit(cohort):
    card = cohort.folder / "cohort.yaml"
    card.write_text(card.read_text() + "anchors: examples\n")
    assert "Name some patches with 'gcemil anchors from-examples'" in the_one(cohort.folder)[2]
    columns = {"concepts": np.array([b"a"]), "slides": np.array([b"s"])}
    attributes = {"k": 1, "seed": 0}
    path = cohort.folder / "anchors_examples.h5"
    store.write(path, {"features": np.ones((1, 5), np.float32), **columns}, attributes)
    assert "the cohort has width 8" in the_one(cohort.folder)[1]
    store.write(path, {"features": np.ones((1, 8), np.float32), **columns}, attributes)
    assert found(cohort.folder) == set()
