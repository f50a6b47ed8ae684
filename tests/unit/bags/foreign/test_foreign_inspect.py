import json
import shlex

import h5py
import numpy as np
import pytest
from typer.testing import CliRunner

from builders.foreign import (
    clam_features,
    grid,
    stamp_features,
    torchmil_set,
    trident_features,
    write_table,
)
from gcemil.bags import store
from gcemil.bags.foreign.cohort_import import import_cohort
from gcemil.bags.foreign.inspect import inspect
from gcemil.cli.main import app


def fact(found, name):
    return dict(found.facts)[name]


def test_the_next_command_works_when_typed_where_a_table_lies_near(tmp_path):
    folder = tmp_path / "my features"
    clam_features(folder, "A", grid(8, 512))
    clam_features(folder, "B", grid(8, 512))
    (tmp_path / "notes.csv").write_text("who,when\nme,now\n")
    (tmp_path / "labels.csv").write_text("slide_id,label\nA,x\nB,y\n")
    command = inspect(folder / "h5_files").next_command
    assert (
        f"'{folder / 'h5_files'}' --labels {shlex.quote(str(tmp_path / 'labels.csv'))}" in command
    )
    program, *typed = shlex.split(command)
    typed[typed.index("--out") + 1] = str(tmp_path / "out")
    result = CliRunner().invoke(app, typed)
    assert (program, result.exit_code) == ("gcemil", 0)
    assert "class 'x': 1 slides of 1 cases" in result.output
    assert f"next: gcemil split {tmp_path / 'out'}" in result.output


def test_the_same_problem_of_many_files_is_one_line_with_a_remedy_for_the_folder(tmp_path):
    for name in "ABC":
        clam_features(tmp_path, name, grid(8, 512))
    folder = tmp_path / "h5_files"
    problems = [one for one in inspect(folder).problems if "slower" in one and "features" in one]
    assert len(problems) == 1
    assert problems[0].startswith("3 of 3 files looked at: ")
    assert problems[0].endswith(f"gcemil import {folder} --repack")


def test_t7_slow_chunks_are_a_problem_with_its_remedy(tmp_path):
    path = clam_features(tmp_path, "A", grid(8, 512))
    assert any(
        "order of magnitude slower: gcemil import" in problem for problem in inspect(path).problems
    )
    store.repack(path)
    assert inspect(path).problems == ()


def test_trident_features_say_their_size_at_level_zero_and_encoder(tmp_path):
    found = inspect(trident_features(tmp_path, "A", grid(8, 512)))
    assert found.kind == "trident_features"
    assert fact(found, "patch size") == "512 level-0 px (from the attributes)"
    assert fact(found, "encoder") == "uni_v1"


@pytest.mark.parametrize(
    ("datasets", "kind"),
    [
        (("embeddings", "prompts"), "anchors"),
        (("features", "anchor_space"), "anchor_pairs"),
        (("evidence", "concept", "region", "overlap"), "truth"),
        (("selected", "coords", "gates"), "evidence"),
        (("attention_scores", "coords"), "clam_heatmap"),
        (("imgs", "coords"), "clam_images"),
        (("features",), "features"),
        (("something",), "unknown"),
    ],
)
def test_files_are_known_by_their_datasets(tmp_path, datasets, kind):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        for name in datasets:
            file[name] = np.zeros((3, 2), np.float32)
    assert inspect(tmp_path / "x.h5").kind == kind


def test_folders_of_every_tool_are_recognised(tmp_path):
    clam_features(tmp_path / "clam", "A", grid(8, 512))
    trident_features(tmp_path / "job", "A", grid(8, 512))
    stamp_features(tmp_path / "stamp" / "uni2-0a1b2c3d", "A", grid(8, 256))
    torchmil_set(tmp_path / "torchmil", {"a": (grid(8, 512), 1, [0] * 8)})
    features = "job/20x_256px_0px_overlap/features_uni_v1"
    kinds = {
        "clam": "clam_folder",
        "job": "trident_job",
        features: "trident_folder",
        "stamp": "stamp_folder",
        "torchmil": "torchmil_folder",
    }
    assert {name: inspect(tmp_path / name).kind for name in kinds} == kinds
    command = f"gcemil import {tmp_path / features} --labels TABLE --out cohorts/features_uni_v1"
    assert inspect(tmp_path / "job").next_command == command


def test_a_cohort_shows_its_tables_its_next_command_and_a_broken_link(tmp_path):
    for slide in ("A", "B"):
        path = clam_features(tmp_path / "F", slide, grid(8, 512))
    labels = write_table(tmp_path / "t.csv", "case_id,slide_id,label", "p,A,x", "q,B,y")
    import_cohort(tmp_path / "F", tmp_path / "c", labels=labels)
    found = inspect(tmp_path / "c")
    assert (found.kind, fact(found, "slides"), fact(found, "classes")) == ("cohort", "2", "x, y")
    assert found.next_command == f"gcemil split {tmp_path / 'c'}"
    path.unlink()
    (problem,) = inspect(tmp_path / "c").problems
    assert f"features/B.h5 is a link to {path}, which is not there" in problem


def test_run_folder_names_folds_that_did_not_finish(tmp_path):
    write_table(tmp_path / "config.yaml", "seed: 0")
    write_table(tmp_path / "fold_0" / "metrics.json", "{}")
    (tmp_path / "fold_1").mkdir()
    found = inspect(tmp_path)
    assert found.kind == "run"
    assert found.problems == ("fold_1 has no metrics.json: it did not finish.",)


def test_label_tables_show_their_dialect_their_assumptions_and_measurements(tmp_path):
    path = write_table(
        tmp_path / "t.csv", "case_id,slide_id,survival_months,censorship", "p,s.svs,12,1"
    )
    found = inspect(path)
    assert found.title == "MCAT/SurvPath label table"
    assert ("assumed", "'censorship' 1 means censored: event = 1 - censorship.") in found.facts
    rows = (f"s{number},{number}.5" for number in range(12))
    found = inspect(write_table(tmp_path / "scores.csv", "slide_id,label", *rows))
    assert "--task regression" in found.next_command


def test_t5_classification_without_colour_is_a_problem(tmp_path):
    path, classification = tmp_path / "x.geojson", {"name": "evidence"}
    properties = {"objectType": "tile", "classification": classification}
    content = {"features": [{"type": "Feature", "properties": properties}]}
    path.write_text(json.dumps(content))
    (problem,) = inspect(path).problems
    assert problem == "A classification without colour: QuPath refuses the file. (1 objects)"
    classification["color"] = [1, 2, 3]
    path.write_text(json.dumps(content))
    assert inspect(path).problems == ()
