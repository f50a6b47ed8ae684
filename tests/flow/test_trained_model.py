"""I have a trained CLAM model. Is its attention faithful, and if not, which patches are its evidence?

Weights in the authors' naming → adopt → diagnose → train --freeze-host → diagnose → explain → report. The model is the same
after it as before.
"""

import csv
import json

import pytest
import torch

from builders import grid_coords, make_bag, write_slide
from builders.authors import small_checkpoint
from builders.commands import gcemil, succeeded
from builders.viewer import opened
from gcemil.bags.cohort import Cohort
from gcemil.bags.folds import make_folds, write_folds
from gcemil.errors import WeightsError
from gcemil.hosts.published import LAYOUTS
from gcemil.simulation.simulate import simulate


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """A simulated cohort of two classes, and a model of somebody else's."""
    folder = tmp_path_factory.mktemp("story")
    cohort = simulate("nsclc", folder / "cohort", size="tiny", slides=24, seed=0)
    write_folds(cohort, make_folds(cohort, seed=0))
    torch.save(
        small_checkpoint("clam_sb", in_dim=cohort.card.feature_dim), folder / "s_0_checkpoint.pt"
    )
    said = succeeded(f"adopt {folder / 's_0_checkpoint.pt'} --host clam_sb --cohort {folder / 'cohort'} "
f"--folds 0 --out {folder / 'clam'}")  # fmt: skip
    frozen = ("train", folder / "cohort", "--host-weights", folder / "clam", "--freeze-host")
    succeeded(*frozen, "--folds", 0, "--epochs", 2, "--jobs", 1, "--out", folder / "evidence")
    return folder, said


def probabilities(path):
    with path.open() as file:
        return [
            (row["slide_id"], row["split"], *list(row.values())[4:]) for row in csv.DictReader(file)
        ]


def test_the_full_bag_predictions_are_those_of_the_given_model(story):
    folder, _ = story
    given = probabilities(folder / "clam" / "fold_0" / "predictions.csv")
    assert given == probabilities(folder / "evidence" / "fold_0" / "predictions.csv")
    assert len(set(given)) == len(given) > 5


def test_adopting_says_on_which_slides_the_model_is_judged_and_what_nobody_can_know(story):
    _, said = story
    words = " ".join(said.split())
    assert "cannot know whether" in words
    assert "read in the cohort's order: 0 is" in words
    assert "5 test" in words


@pytest.mark.parametrize("run", ["clam", "evidence"])
def test_both_runs_are_opened_by_every_command(story, run, tmp_path):
    folder, _ = story
    cohort = Cohort.load(folder / "cohort")
    succeeded("diagnose", folder / run, "--only", "snr", "--jobs", 1)
    tested = probabilities(folder / run / "fold_0" / "predictions.csv")[-1][0]
    succeeded("explain", folder / run, "--slide", tested, "--out", tmp_path / "explained")
    assert list((tmp_path / "explained").rglob("*.geojson"))
    succeeded("report", folder / run, "--out", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "clam_sb" in page
    before = json.loads((folder / run / "summary.json").read_text())
    assert json.loads(succeeded("evaluate", folder / run, "--json")) == before
    succeeded(
        f"audit {folder / 'cohort'} --model {folder / run} --repeats 0 --out "
        f"{tmp_path / 'audit.json'}"
    )
    judged = json.loads((tmp_path / "audit.json").read_text())
    assert {row["labels"]["rule"] for row in judged["rows"]} >= {"model", "random"}
    session = opened(folder / run)
    assert len(session.slide(tested).bench) == len(cohort.read_bag(session.specs[tested]).features)
    dim = cohort.card.feature_dim
    slide = write_slide(tmp_path, "new", make_bag(30, dim).features, grid_coords(30))
    found = json.loads(succeeded("predict", folder / run, slide, "--mode", "full", "--json"))
    assert found[0]["slide_id"] == "new"


def test_a_foreign_file_is_one_sentence_and_leaves_no_run(story, tmp_path):
    folder, _ = story
    (tmp_path / "notes.pt").write_text("not weights")
    result = gcemil(
        f"adopt {tmp_path / 'notes.pt'} --host abmil --cohort {folder / 'cohort'} --out "
        f"{tmp_path / 'run'}"
    )
    assert isinstance(result.exception, WeightsError)
    assert "is not a file of weights" in str(result.exception)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in LAYOUTS if name != "camil"])
def test_the_story_holds_for_every_host(story, tmp_path, name):
    folder, _ = story
    dim = Cohort.load(folder / "cohort").card.feature_dim
    torch.save(small_checkpoint(name, in_dim=dim), tmp_path / "weights.pt")
    fold = ("--folds", 0)
    succeeded(
        f"adopt {tmp_path / 'weights.pt'} --host {name} --cohort {folder / 'cohort'}",
        *fold,
        *f"--out {tmp_path}/a".split(),
    )
    frozen = ("train", folder / "cohort", "--host-weights", tmp_path / "a", "--freeze-host", *fold)
    succeeded(*frozen, "--epochs", 1, "--jobs", 1, "--out", tmp_path / "b")
    given = probabilities(tmp_path / "a" / "fold_0" / "predictions.csv")
    assert given == probabilities(tmp_path / "b" / "fold_0" / "predictions.csv")
    for run in ("a", "b"):
        succeeded("diagnose", tmp_path / run, "--only", "snr", "--jobs", 1)
        succeeded("report", tmp_path / run, "--out", tmp_path / f"{run}.html")
