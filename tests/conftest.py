"""Shapes in signatures are checked while the tests run, everywhere but in the command line, whose doors typer guards."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING

# Workers of pytest-xdist share the cores; more threads than that only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Consent that a test gives is not the user's.
os.environ["XDG_CONFIG_HOME"] = tempfile.mkdtemp(prefix="gcemil_tests_")

import pytest
import torch
from hypothesis import settings
from jaxtyping import install_import_hook

from gcemil.features.loaders import repair_torchvision

if TYPE_CHECKING:
    from builders.runs import TrainedRuns

CHECKED = (
    "bags", "config", "diagnostics", "evidence", "explain", "families", "features", "findings", "hosts", "model", "predictor", "records",
    "recovery", "row_blocks", "runs", "slides", "tasks", "training",
)  # fmt: skip
install_import_hook([f"gcemil.{name}" for name in CHECKED], "shape_checks.typechecked")

# torchmil and torchsurv import torchvision, of which only a CUDA build may be installed.
repair_torchvision()

# The first call of a checked function compiles its check, which no deadline should count. The examples are the same
# everywhere and every time; 'make test-all' looks for new ones.
settings.register_profile("gcemil", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None)
settings.load_profile("gcemil")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--noisy-cpu",
        action="store_true",
        help="Pretend another CPU; see tests/builders/noisy_cpu.py.",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--noisy-cpu"):
        from builders import noisy_cpu

        config.pluginmanager.register(noisy_cpu)


@pytest.fixture(autouse=True)
def seeded_torch() -> None:
    """What a test draws without a generator of its own must not depend on the tests before it."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def classification_runs(tmp_path_factory: pytest.TempPathFactory) -> TrainedRuns:
    """Read-only: a test that writes copies the run first."""
    from builders.runs import make_runs

    return make_runs(tmp_path_factory.mktemp("classification"))


@pytest.fixture(scope="session")
def survival_runs(tmp_path_factory: pytest.TempPathFactory) -> TrainedRuns:
    """Read-only: a test that writes copies the run first."""
    from builders.runs import make_runs

    return make_runs(tmp_path_factory.mktemp("survival"), "kirc", slides=40)
