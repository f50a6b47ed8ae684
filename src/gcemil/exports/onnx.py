"""A trained fold as one ONNX file, for programs without Python or torch (extra `onnx`).

  in    features     (n, d) float32, any number of patches
  out   logits       (c,) of the main prediction: softmax gives class probabilities, a risk is raw
        host_logits  (c,) of the host alone
        scores       (n,) the host's raw patch scores
  metadata "gcemil"  JSON: classes, task, encoder, width and patch size, host, version

The file is compared with the network on bags of several sizes before it gets its name.
"""

from __future__ import annotations

import json
import logging
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gcemil import __version__
from gcemil.errors import MissingExtraError, RunError, UsageError
from gcemil.evidence.head import FEWEST_TOP, TOP_SHARE, EvidenceHead
from gcemil.files import atomic_write
from gcemil.hosts.host import Host
from gcemil.runs.checkpoint import LoadedNetwork, load_network

EXTRA = "onnx"
TRACED_SIZE, COMPARED_SIZES = 37, (1, 3, 900, 2100)
"""Patches of the bag that is traced, and of those that compare file and network."""
TOLERANCE = 1e-4
"""Largest difference between file and network, relative to the largest number they give."""
OUTPUTS = ("logits", "host_logits", "scores")


def write_onnx(checkpoint: Path, path: Path) -> Path:
    """Write a checkpoint, or an exported fold, as a new ONNX file.

    A host whose computation ONNX cannot follow for every number of patches is refused.
    """
    if path.exists():
        raise UsageError(f"{path} exists. Give a new file, or remove it.")
    for package in ("onnx", "onnxruntime", "onnxscript"):
        try:
            __import__(package)
        except ImportError as error:
            raise MissingExtraError(package, EXTRA) from error
    loaded, record = load_network(checkpoint)
    network = _Prediction(loaded).eval()
    in_dim = record["in_dim"]
    with atomic_write(path) as temporary:
        try:
            with torch.no_grad(), _silence():
                _trace(network, in_dim, temporary, _describe(record))
                worst = _compare(network, in_dim, temporary)
        except Exception as error:  # What an exporter cannot follow ends in any exception.
            raise _refusal(path, record, f"{type(error).__name__} while it was traced") from error
        if not worst <= TOLERANCE:
            raise _refusal(path, record, f"the file differs from the network by {worst:.1g}")
    return path


class _Prediction(nn.Module):
    """Host and evidence head as tensors in, tensors out."""

    def __init__(self, loaded: LoadedNetwork) -> None:
        super().__init__()
        model = loaded.model
        self.host: Host = loaded.host
        votes = model is not None and model.head.has_vote and not model.explains_host
        self.head = model.head if votes and model is not None else None

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        output = self.host.aggregate(self.host.embed(features), None)
        logits = output.logits
        if self.head is not None:
            coverage = _coverage(self.head, self.head.responses(features))
            logits = self.head.mix(logits, self.head.utility(coverage))
        # Two outputs may not be one tensor.
        return logits.clone(), output.logits.clone(), output.scores


def _coverage(head: EvidenceHead, responses: Tensor) -> Tensor:
    """`head.coverage` with k as a tensor: a number would be that of the traced bag."""
    place = torch.ones_like(responses[:, 0], dtype=torch.float64).cumsum(0)
    k = (TOP_SHARE * place.max()).round().clamp_min(FEWEST_TOP)
    ranked = responses.sort(dim=0, descending=True).values
    first = (place <= k).to(responses.dtype).unsqueeze(1)
    return torch.maximum((ranked * first).sum(dim=0) / k.to(responses.dtype), head.absent)


def _trace(network: nn.Module, in_dim: int, path: Path, description: str) -> None:
    """Export with any number of patches, and write."""
    import onnx

    program = torch.onnx.export(
        network,
        (torch.randn(TRACED_SIZE, in_dim, generator=torch.Generator().manual_seed(0)),),
        input_names=["features"],
        output_names=list(OUTPUTS),
        dynamic_shapes={"features": {0: torch.export.Dim("patches", min=1)}},
        dynamo=True,
        verbose=False,
    )
    if program is None:
        raise RuntimeError("torch.onnx.export gave no program")
    model = program.model_proto
    onnx.helper.set_model_props(model, {"gcemil": description})
    path.write_bytes(model.SerializeToString())


def _compare(network: nn.Module, in_dim: int, path: Path) -> float:
    """The largest difference between the file and the network over bags of several sizes."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    generator, worst = torch.Generator().manual_seed(1), 0.0
    for size in COMPARED_SIZES:
        features = torch.randn(size, in_dim, generator=generator)
        outputs = session.run(list(OUTPUTS), {"features": features.numpy()})
        for expected, given in zip(network(features), map(torch.from_numpy, outputs), strict=True):
            if expected.shape != given.shape:
                return math.inf
            gap = (expected - given).abs().max() / expected.abs().max().clamp_min(1.0)
            worst = max(worst, float(gap.nan_to_num(math.inf)))
    return worst


def _describe(record: dict[str, Any]) -> str:
    names = ("task", "classes", "encoder", "in_dim", "patch_size_level0")
    facts = {"gcemil": __version__, "host": record["settings"]["host"]["name"]}
    return json.dumps({**facts, **{name: record[name] for name in names}, "outputs": OUTPUTS})


def _refusal(path: Path, record: dict[str, Any], reason: str) -> RunError:
    host = record["settings"]["host"]["name"]
    return RunError(
        f"{path} was not written: ONNX cannot follow host '{host}' for every number of patches "
        f"({reason}). Hosts that pool each patch once can be written, such as abmil or clam_sb; "
        "for others serve gcemil.load(RUN)."
    )


@contextmanager
def _silence() -> Iterator[None]:
    """The exporter prints on every channel; what matters is in the exception."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
