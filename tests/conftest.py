"""Shapes in signatures are checked while the tests run, everywhere but in the command line, whose doors typer guards."""

import os

# Workers of pytest-xdist share the cores; more threads than that only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from hypothesis import settings
from jaxtyping import install_import_hook

CHECKED = (
    "bags", "config", "diagnostics", "evidence", "explain", "families", "hosts", "interventions", "model", "records",
    "recovery", "tasks", "training",
)  # fmt: skip
install_import_hook([f"gcemil.{name}" for name in CHECKED], "shape_checks.typechecked")

# The first call of a checked function compiles its check, which no deadline should count.
settings.register_profile("gcemil", deadline=None)
settings.load_profile("gcemil")
