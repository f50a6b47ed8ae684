"""compose → train → diagnose, and examples → anchors → train → evidence, through the commands."""

import json

import pytest

from builders.commands import gcemil, succeeded
from builders.pools import make_pool
from gcemil.bags import store
from gcemil.errors import UsageError

RECIPE = (
    *("--background", "normal", "--background", "fat=0.5"),
    *("--label", "healthy=", "--label", "cancer=tumour"),
)
SIZE = ("--bag", "20-30", "--evidence", "0.05-0.1", "--parts", "8,4,6")


def compose_examples(patches, out):
    return succeeded("compose", patches, *RECIPE, *SIZE, "--examples-per-class", 5, "--out", out)


@pytest.fixture(scope="module")
def composed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("composed")
    make_pool(80).write(folder / "patches.h5")
    said = compose_examples(folder / "patches.h5", folder / "cohort")
    assert "no patch is shared between parts" in said
    assert "left out: patches of adenoma" in said
    return folder


def test_a_composed_cohort_is_valid_and_can_be_trained_and_diagnosed(composed):
    cohort, run = composed / "cohort", composed / "run"
    assert "0 errors" in succeeded("validate", cohort)
    succeeded("train", cohort, "--out", run, "--epochs", 1, "--jobs", 1)
    succeeded("diagnose", run, "--only", "localisation")
    found = json.loads((run / "fold_0" / "diagnostics" / "localisation.json").read_text())
    assert found


def test_examples_become_anchors_that_ground_the_evidence(composed):
    cohort, run = composed / "examples", composed / "grounded"
    compose_examples(composed / "patches.h5", cohort)
    said = succeeded(
        "anchors", "from-examples", cohort, "--examples", cohort / "examples.h5", "--k", 3
    )
    assert "3 concepts, 15 examples" in said
    succeeded("train", cohort, "--out", run, "--epochs", 1, "--jobs", 1)
    metrics = json.loads((run / "fold_0" / "metrics.json").read_text())
    assert metrics["details"]["anchors"] == "examples: 3 patches per concept, examples.h5"
    evidence = sorted((run / "fold_0" / "evidence").glob("*.h5"))
    assert len(evidence) == 6
    assert store.read(evidence[0], "responses").shape[1] == 3
    assert "examples: 3 patches per concept" in succeeded("evaluate", run)


def test_survival_is_composed_from_hazards(composed, tmp_path):
    out = tmp_path / "c"
    succeeded(
        "compose", composed / "patches.h5", "--background", "normal", "--hazard", "tumour=1", "--hazard", "adenoma=-1",
        "--slides", 12, "--folds", 3, "--bag", "30-40", "--evidence", "0.05-0.1", "--out", out,
    )  # fmt: skip
    assert "0 errors" in succeeded("validate", out)
    assert (out / "slides.csv").read_text().startswith("slide_id,case_id,time,event")


def test_a_recipe_in_a_file_says_the_same_as_options(composed, tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "background: {normal: 1.0, fat: 0.5}\nlabels: {healthy: [], cancer: tumour}\npatches: [20, "
        "30]\n"
        "evidence: [0.05, 0.1]\nparts: [8, 4, 6]\nexamples_per_class: 5\n"
    )
    succeeded("compose", composed / "patches.h5", "--recipe", recipe, "--out", tmp_path / "c")
    for name in ("cohort.yaml", "slides.csv", "splits/fold_0.csv"):
        assert (tmp_path / "c" / name).read_text() == (composed / "cohort" / name).read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--label", "a=", "--label", "b=tumour"), "Say which classes of patches are background"),
        (("--background", "normal", "--label", "cancer"), "A label is written"),
        (("--background", "normal", "--hazard", "tumour"), "A hazard is written"),
        (("--background", "normal=much", "--label", "a="), "A background class is written"),
        ((*RECIPE, "--bag", "few"), "--bag is written low-high"),
        ((*RECIPE, "--parts", "1,2"), "three whole numbers"),
        ((*RECIPE, "--parts", "a,b,c"), "three whole numbers"),
        (
            ("--background", "necrosis", "--label", "a=", "--label", "b=tumour"),
            "no patches of class 'necrosis'",
        ),
        (
            ("--background", "normal", "--label", "a=normal", "--label", "b=tumour"),
            "background and evidence at once",
        ),
        ((*RECIPE, "--patient-pattern", "(x)"), "is not a folder of images"),
        ((*RECIPE, "--bag", "12-12", "--evidence", "0.01-0.02"), "cannot hold"),
    ],
)
def test_composing_what_cannot_be_is_refused_and_nothing_written(
    composed, tmp_path, arguments, message
):
    result = gcemil("compose", composed / "patches.h5", *arguments, "--out", tmp_path / "c")
    assert isinstance(result.exception, UsageError)
    assert message in str(result.exception)
    assert not list((tmp_path / "c").glob("[!.]*"))
