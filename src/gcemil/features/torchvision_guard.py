"""timm behind a guard against a torchvision that was built for another torch.

A CUDA build of torchvision installs beside a CPU build of torch and `pip check` passes, but its C++ library does not load, and
then `import torchvision`, and timm with it, fails with "operator torchvision::nms does not exist": torchvision attaches shape
rules to two operators that only its library defines. Defining their schemas lets the import pass. The operators themselves stay
missing; they serve object detection, which no encoder does.
"""

from __future__ import annotations

import importlib
from functools import cache
from types import ModuleType
from typing import Any

import torch

from gcemil.errors import MissingExtraError

MISSING = ("nms", "qnms")
SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def import_timm() -> ModuleType:
    """timm, whatever torchvision is installed beside it."""
    repair_torchvision()
    try:
        return importlib.import_module("timm")
    except ImportError as error:
        raise MissingExtraError("timm", "encoders") from error


@cache
def repair_torchvision() -> Any:
    """Make torchvision importable; the cache keeps the library alive, as its schemas go when it goes."""
    try:
        importlib.import_module("torchvision")
    except ImportError:
        return None
    except RuntimeError as error:
        # Only after a failure: where torchvision's own library loads, a second definition would be refused.
        if "torchvision::" not in str(error):
            raise
        return _defined_schemas()
    return None


def _defined_schemas() -> Any:
    library: Any = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for name in MISSING:
        library.define(name + SCHEMA)
    importlib.import_module("torchvision")
    return library
