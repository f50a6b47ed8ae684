"""A trained fold as an ONNX file, asked by onnxruntime. Skips where the extra `onnx` is not installed."""

import json
import shutil
import sys

import pytest
import torch

import gcemil
from builders.commands import gcemil as run_command
from builders.wrappers import tensor_bag
from gcemil.bags.cohort import Cohort
from gcemil.errors import MissingExtraError, RunError, UsageError
from gcemil.exports import onnx as onnx_export
from gcemil.hosts.table import create_host
from gcemil.runs.checkpoint import LoadedNetwork, load_tensors, save_tensors
from gcemil.runs.folder import Run

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: extra onnx")
pytest.importorskip("onnxscript", reason="onnxscript is not installed: extra onnx")

POOLING = (
    "abmil",
    "clam_sb",
    "clam_mb",
    "acmil",
    "additive",
    "mean",
    "max",
    "linear",
    "dsmil",
    "ibmil",
    "mhim",
)


def ask(path, features):
    session = onnxruntime.InferenceSession(str(path))
    found = session.run(list(onnx_export.OUTPUTS), {"features": features.numpy()})
    return map(torch.from_numpy, found), session.get_modelmeta().custom_metadata_map


@pytest.fixture(scope="module")
def voting(classification_runs, tmp_path_factory):
    """The run with a head that takes part in the prediction, as on larger cohorts."""
    run = tmp_path_factory.mktemp("voting") / "run"
    shutil.copytree(classification_runs.gce, run)
    checkpoint = Run(run).trained_folds()[0].checkpoint
    tensors, meta = load_tensors(checkpoint)
    save_tensors(checkpoint, {**tensors, "head.weight": torch.tensor(0.4)}, meta)
    return run


def test_the_file_predicts_slides_of_any_size_as_the_network_does(
    voting, classification_runs, tmp_path
):
    path = tmp_path / "fold.onnx"
    done = run_command("export", voting, "--onnx", path, "--fold", 0, "--json")
    assert json.loads(done.stdout) == {"onnx": [str(path)]}
    model = gcemil.load(voting)
    assert model.network.head.has_vote
    cohort = Cohort.load(classification_runs.cohort)
    sizes = set()
    for spec in cohort.bags[:4]:
        bag = cohort.read_bag(spec)
        features = torch.as_tensor(bag.features).float()
        sizes.add(len(features))
        (logits, host, scores), metadata = ask(path, features)
        expected = model.network(features, torch.as_tensor(bag.coords))
        torch.testing.assert_close(logits, expected.gce.logits, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(host, expected.full_logits, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(scores, expected.full.scores, atol=1e-5, rtol=1e-5)
        predicted = dict(
            zip(model.classes, torch.softmax(logits.double(), 0).tolist(), strict=True)
        )
        assert predicted == pytest.approx(model.predict(bag), abs=1e-6)
        assert float((logits.softmax(0) - host.softmax(0)).abs().max()) > 1e-3
    assert len(sizes) > 1
    known = json.loads(metadata["gcemil"])
    assert (known["classes"], known["in_dim"]) == (list(model.classes), cohort.card.feature_dim)


def test_a_risk_is_written_too(survival_runs, tmp_path):
    path = onnx_export.write_onnx(
        Run(survival_runs.gce).trained_folds()[0].checkpoint, tmp_path / "risk.onnx"
    )
    model = gcemil.load(survival_runs.gce)
    features = tensor_bag(70, dim=model.record["in_dim"])[0]
    (logits, _, _), _ = ask(path, features)
    assert logits.tolist() == pytest.approx([model.predict(features)["risk"]], abs=1e-5)


@pytest.mark.parametrize("name", POOLING)
def test_a_host_that_pools_can_be_followed(name, tmp_path):
    host = create_host(name, in_dim=16, n_outputs=3).eval()
    network = onnx_export._Prediction(LoadedNetwork(host)).eval()
    with torch.no_grad(), onnx_export._silence():
        onnx_export._trace(network, 16, tmp_path / "host.onnx", "{}")
        assert onnx_export._compare(network, 16, tmp_path / "host.onnx") < 1e-5


def test_what_cannot_be_written_is_refused_in_a_sentence(voting, tmp_path, monkeypatch):
    fold = Run(voting).trained_folds()[0].checkpoint
    (tmp_path / "there.onnx").touch()
    with pytest.raises(UsageError, match=r"there\.onnx exists\. Give a new file"):
        onnx_export.write_onnx(fold, tmp_path / "there.onnx")
    monkeypatch.setattr(onnx_export, "_coverage", lambda head, responses: head.absent + 1000)
    with pytest.raises(
        RunError, match=r"new\.onnx was not written: .*'abmil'.*differs from the network by"
    ):
        onnx_export.write_onnx(fold, tmp_path / "new.onnx")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'gcemil\[onnx\]'"):
        onnx_export.write_onnx(fold, tmp_path / "new.onnx")
    assert not (tmp_path / "new.onnx").exists()


def test_a_host_that_onnx_cannot_follow_is_named(tmp_path, monkeypatch):
    host = create_host(
        "transmil", in_dim=16, n_outputs=2, options={"width": 16, "landmarks": 16}
    ).eval()
    record = {"in_dim": 16, "settings": {"host": {"name": "transmil"}}, "task": "classification"}
    record |= {"classes": ["a", "b"], "encoder": "e", "patch_size_level0": 256}
    monkeypatch.setattr(onnx_export, "load_network", lambda path: (LoadedNetwork(host), record))
    with pytest.raises(RunError, match="ONNX cannot follow host 'transmil'.*serve gcemil.load"):
        onnx_export.write_onnx(tmp_path / "checkpoint", tmp_path / "new.onnx")
    assert list(tmp_path.iterdir()) == []
