"""The checks of slides.csv: each line, and all of them together."""

import pytest

from gcemil.bags.cohort import CohortCard
from gcemil.bags.validate import Problem, check_slides, make_error, make_warning, raise_first
from gcemil.errors import CohortError

COLUMNS = {
    "classification": ("slide_id", "case_id", "label"),
    "survival": ("slide_id", "case_id", "time", "event"),
}


def problems(task, *lines, **card) -> list[Problem]:
    classes = ("benign", "malignant") if task == "classification" else ()
    made = CohortCard(name="x", task=task, classes=classes, feature_dim=8, **card)
    rows = [dict(zip(COLUMNS[task], line.split(","), strict=True)) for line in lines]
    return list(check_slides(rows, made))


@pytest.mark.parametrize(
    ("task", "lines"),
    [
        ("classification", ("a,p,benign", "b,p,malignant", "c,,benign", "d,,malignant")),
        ("survival", ("a,p,12,1", "b,p,12.0,1.0", "c,,3,0", "d,,4,0")),
    ],
)
def test_sound_lines_have_no_problem(task, lines):
    assert problems(task, *lines) == []


@pytest.mark.parametrize(
    ("task", "lines", "where", "what"),
    [
        ("classification", ("a,p,benign", "a,p,benign"), "a", "the slide id occurs 2 times in slides.csv"),
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
        ("survival", ("a,p,3,1", "b,p,4,1"), "p", "slides 'a' and 'b' of the case disagree on the target"),
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


def test_the_first_error_is_raised_and_warnings_are_not(tmp_path):
    raise_first([make_warning("a", "pale", "Look.")], tmp_path)
    found = [make_warning("a", "pale", "Look."), make_error("b", "it is gone", "Find it.")]
    with pytest.raises(CohortError, match=r"slides\.csv: b: it is gone\. Find it\."):
        raise_first(found, tmp_path / "slides.csv")
