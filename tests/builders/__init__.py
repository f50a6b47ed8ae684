"""What tests build their inputs with; each module has one subject."""

from __future__ import annotations

from builders.cohorts import PATCH, grid_coords, make_bag, make_cohort, write_slide

__all__ = ["PATCH", "grid_coords", "make_bag", "make_cohort", "write_slide"]
