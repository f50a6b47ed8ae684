"""A trained fold given away: a folder that opens without its run and its cohort, and says what it is."""

import json
import os
import shutil
import subprocess
import sys

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

import gcemil
from builders.commands import gcemil as run_command
from gcemil.bags.cohort import Cohort
from gcemil.bags.folds import read_fold
from gcemil.errors import RunError, UsageError
from gcemil.explanation import explain_bag
from gcemil.findings import Finding, Row, write_finding
from gcemil.runs.folder import Run

ELSEWHERE = """
import sys
import h5py, torch, gcemil
model = gcemil.from_pretrained(sys.argv[1])
with h5py.File(sys.argv[2]) as file:
    bag = gcemil.slide_bag("s", file["features"][:], file["coords"][:], int(sys.argv[3]))
found = gcemil.explain_slide(model, bag)
output = model(torch.from_numpy(bag.features).float(), torch.from_numpy(bag.coords), patch_size=bag.patch_size)
torch.save({"selected": torch.from_numpy(found.selected), "gates": torch.from_numpy(found.gates), "logits": output.full_logits.detach()}, sys.argv[4])
"""


@pytest.fixture(scope="module")
def folder(classification_runs, tmp_path_factory):
    """Read-only: a test that damages it copies it first."""
    return gcemil.save_pretrained(
        classification_runs.gce / "fold_0", tmp_path_factory.mktemp("given") / "model"
    )


@pytest.fixture
def copied(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "model")
    return tmp_path / "model"


def first_bag(runs):
    cohort = Cohort.load(runs.cohort)
    spec = next(
        spec for spec in cohort.bags if read_fold(cohort, 0).part_of[spec.slide_ids[0]] == "test"
    )
    return cohort, spec


def test_it_says_elsewhere_what_the_run_says(folder, classification_runs, tmp_path):
    cohort, spec = first_bag(classification_runs)
    model = gcemil.load_network(Run(classification_runs.gce).fold(0).checkpoint)[0].model
    expected = explain_bag(model, cohort.read_bag(spec))
    shutil.copytree(folder, tmp_path / "alone" / "model")
    (tmp_path / "home").mkdir()
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in ("PATH", "PYTHONPATH", "OMP_NUM_THREADS")
    }
    features = cohort.feature_file(spec.slide_ids[0])
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, "model", str(features), str(int(cohort.patch_size)), "out.pt"],
        cwd=tmp_path / "alone", env={**kept, "HOME": str(tmp_path / "home")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = torch.load(tmp_path / "alone" / "out.pt", weights_only=True)
    assert torch.equal(found["selected"], expected.recovery.selected)
    torch.testing.assert_close(found["gates"], expected.output.gates)
    torch.testing.assert_close(found["logits"], expected.output.full_logits)
    assert not list((tmp_path / "home").iterdir())


def test_predict_takes_it_in_place_of_a_run(folder, classification_runs, tmp_path):
    cohort, spec = first_bag(classification_runs)
    features = cohort.feature_file(spec.slide_ids[0])
    answers = [
        json.loads(
            run_command("predict", source, features, "--json", "--out", tmp_path / name).stdout
        )
        for name, source in (("given", folder), ("own", classification_runs.gce))
    ]
    (given,), (own,) = answers
    assert given["evidence"] == own["evidence"]
    assert given["prob_LUAD"] == pytest.approx(own["prob_LUAD"])


def test_the_card_names_data_figures_and_limits(classification_runs, tmp_path):
    shutil.copytree(classification_runs.gce, tmp_path / "run")
    labels = {"rule": "evidence", "network": "wrapped", "class": "all"}
    rows = (
        Row(
            {**labels, "comparison": "full-kept"},
            {"evidence_sufficiency": 0.75, "sufficient_share": 0.5},
        ),
        Row({**labels, "comparison": "soft-kept"}, {"cd_gap": 0.02}),
        Row({**labels, "class": "LUAD", "comparison": "full-kept"}, {"evidence_sufficiency": 0.1}),
    )
    write_finding(Run(tmp_path / "run").fold(0).diagnostics, Finding("snr", rows))
    result = run_command(
        "export", tmp_path / "run", "--pretrained", tmp_path / "model", "--license", "cc-by-4.0"
    )
    assert result.exit_code == 0, result.output
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["data"]["slides"] == {"train": 17, "val": 2, "test": 5}
    assert (config["data"]["simulated"], config["license"]) == (True, "cc-by-4.0")
    card = (tmp_path / "model" / "README.md").read_text()
    assert yaml.safe_load(card.split("---")[1])["license"] == "cc-by-4.0"
    assert "| feature width | " in card
    assert "| anchors | 8, " in card
    assert "The slides were simulated. They are not tissue." in card
    assert "| GCE evidence | wrapped | 0.750 | 50.0 % | 0.020 |" in card
    assert "Research software, not a medical device" in card


def edit_config(path, **changes):
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, **changes}))


def edit_network(path, **changes):
    edit_config(
        path, network={**json.loads((path / "config.json").read_text())["network"], **changes}
    )


def edit_tensors(path, change):
    tensors = load_file(path / "model.safetensors")
    change(tensors)
    save_file(tensors, path / "model.safetensors", metadata={"gcemil": "{}"})


def shorten(tensors):
    name = min(
        name for name, values in tensors.items() if name.startswith("host.") and values.ndim == 2
    )
    tensors[name] = tensors[name][:-1].clone()


DAMAGES = {
    "is not an exported fold: it has no config.json": lambda path: (path / "config.json").unlink(),
    "config.json is not what it should be: in_dim": lambda path: edit_network(path, in_dim="wide"),
    "model.safetensors is not a gcemil checkpoint": lambda path: (
        path / "model.safetensors"
    ).write_bytes(b"x" * 99),
    'Missing key(s) in state_dict: "temperature"': lambda path: edit_tensors(
        path, lambda found: found.pop("temperature")
    ),
    "size mismatch for ": lambda path: edit_tensors(path, shorten),
    "needs anchors as wide as the features": lambda path: edit_network(path, in_dim=7),
}


@pytest.mark.parametrize("message", DAMAGES)
def test_a_damaged_folder_is_one_sentence_with_its_remedy(copied, message):
    DAMAGES[message](copied)
    with pytest.raises(RunError) as refused:
        gcemil.from_pretrained(copied)
    text = str(refused.value)
    assert message in text
    assert "\n" not in text
    assert str(copied) in text


def test_a_host_that_is_not_part_of_gcemil_needs_consent(copied):
    config = json.loads((copied / "config.json").read_text())
    config["network"]["settings"]["host"]["name"] = "evil.module:Host"
    (copied / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        UsageError, match="names the host 'evil.module:Host', which is not part of gcemil"
    ):
        gcemil.from_pretrained(copied)


def test_what_cannot_be_exported_is_refused_and_nothing_is_written(classification_runs, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    for arguments, kind, message in (
        (
            (classification_runs.gce, "--pretrained", tmp_path / "full"),
            UsageError,
            "exists and is not empty",
        ),
        (
            (classification_runs.gce, "--pretrained", tmp_path / "new", "--fold", 3),
            RunError,
            "fold_3",
        ),
        (
            (tmp_path, "--pretrained", tmp_path / "new"),
            RunError,
            "is not a run: it has no config.yaml",
        ),
        ((classification_runs.gce,), UsageError, "Say what to export"),
    ):
        refused = run_command("export", *arguments)
        assert isinstance(refused.exception, kind), refused.exception
        assert message in str(refused.exception)
    assert not (tmp_path / "new").exists()
