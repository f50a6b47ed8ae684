"""What an HDF5 file is, by the names of its datasets and the attributes tools leave behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gcemil.bags import store
from gcemil.bags.arrays import coords_problem, features_problem
from gcemil.bags.bag import grid_stride
from gcemil.bags.foreign import clam, trident
from gcemil.bags.foreign.detect import TRIDENT_ATTRIBUTES
from gcemil.bags.foreign.inspection import Facts, Inspection

Layouts = dict[str, store.Layout]

# Datasets that must all be there → kind and title; the first that fits wins.
KINDS: tuple[tuple[frozenset[str], str, str], ...] = (
    (frozenset({"embeddings", "prompts"}), "anchors", "Anchors of gcemil"),
    (frozenset({"features", "anchor_space"}), "anchor_pairs", "Anchor pairs of gcemil"),
    (frozenset({"selected", "gates"}), "evidence", "Evidence of gcemil"),
    (frozenset({"evidence"}), "truth", "Patch truth of gcemil"),
    (frozenset({"attention_scores", "coords"}), "clam_heatmap", "CLAM heatmap scores"),
    (frozenset({"imgs", "coords"}), "clam_images", "CLAM patch images (old pipeline)"),
    (frozenset({"feats"}), "stamp_features", "STAMP features"),
    (frozenset({"patch_embeddings"}), "stamp_features", "STAMP features without coordinates"),
)
FEATURE_NAMES = ("features", "feats", "patch_embeddings")
IMPORTABLE = frozenset({"clam_features", "trident_features", "stamp_features", "features"})


def inspect_hdf5(path: Path) -> Inspection:
    """The kind, shape, chunks, patch size, units and encoder of an HDF5 file."""
    layouts = store.describe(path)
    attributes = store.attributes(path, "coords") if "coords" in layouts else {}
    kind, title = _kind(layouts, attributes)
    facts = (*_shapes(layouts), *_meaning(path, kind, layouts, attributes))
    return Inspection(path, kind, title, facts, tuple(_problems(path, kind, layouts)), _next(path, kind))


def _kind(layouts: Layouts, attributes: dict[str, Any]) -> tuple[str, str]:
    for needed, kind, title in KINDS:
        if needed <= set(layouts):
            return kind, title
    by_trident = bool(TRIDENT_ATTRIBUTES & set(attributes))
    if "features" in layouts and len(layouts["features"].shape) == 1:
        return "slide_vector", "Slide-level vector (TRIDENT slide_features)"
    if "features" in layouts and "coords" in layouts:
        return (
            ("trident_features", "TRIDENT features")
            if by_trident
            else ("clam_features", "CLAM features, or gcemil's own")
        )
    if "features" in layouts:
        return "features", "Features without coordinates"
    if "coords" in layouts:
        return (
            ("trident_patches", "TRIDENT patch coordinates")
            if by_trident
            else ("clam_coords", "CLAM patch coordinates")
        )
    return "unknown", "HDF5 file gcemil does not know"


def _shapes(layouts: Layouts) -> Facts:
    return tuple(
        (
            name,
            f"{layout.shape} {layout.dtype}, {f'chunks {layout.chunks}' if layout.chunks else 'contiguous'}",
        )
        for name, layout in layouts.items()
    )


def _meaning(path: Path, kind: str, layouts: Layouts, attributes: dict[str, Any]) -> list[tuple[str, str]]:
    """Patch size, units and encoder, and where each comes from."""
    if kind == "stamp_features":
        root = store.attributes(path)
        size = root.get("tile_size_um", root.get("tile_size", "unknown"))
        return [
            ("encoder", str(root.get("extractor", "unknown"))),
            ("patch size", f"{size} micrometres"),
            ("coordinates", "micrometres"),
        ]
    facts = []
    if kind == "trident_features":
        facts.append(("encoder", str(store.attributes(path, "features").get("encoder", "unknown"))))
    if "coords" in layouts:
        facts += [("patch size", _patch_size(path, layouts, attributes)), ("coordinates", "level-0 pixels")]
    return facts


def _patch_size(path: Path, layouts: Layouts, attributes: dict[str, Any]) -> str:
    size = trident.level0_patch_size(attributes) or clam.level0_patch_size(attributes)
    if size is not None:
        return f"{size} level-0 px (from the attributes)"
    coords = layouts["coords"]
    if len(coords.shape) != 2 or coords.shape[0] < 2 or coords.shape[1] != 2 or not coords.holds_numbers:
        return "unknown"
    values = store.read(path, "coords")
    stride = None if coords_problem(values) else grid_stride(values)
    return "unknown" if stride is None else f"{stride:g} (the stride; the file does not say it)"


def _problems(path: Path, kind: str, layouts: Layouts) -> list[str]:
    found = [
        f"'{name}' is stored in chunks of {layout.chunks}, which reads an order of magnitude slower: gcemil repack {path}"
        for name, layout in layouts.items()
        if layout.is_slow
    ]
    rows = {
        name: layouts[name].shape[0]
        for name in ("features", "feats", "coords")
        if name in layouts and layouts[name].shape
    }
    if 0 in rows.values():
        found.append("No patches: the tool found no tissue. The slide is left out on import.")
    if len(set(rows.values())) > 1 and kind != "slide_vector":
        found.append(
            f"Rows differ: {', '.join(f'{name} {count}' for name, count in rows.items())}. Extract the slide again."
        )
    if kind in {"clam_features", "trident_features"} and layouts["coords"].dtype.kind == "f":
        found.append("Coordinates are floating point; if they are micrometres they must be converted.")
    if kind in IMPORTABLE:
        features = next(layouts[name] for name in FEATURE_NAMES if name in layouts)
        found += [f"Not usable: {problem}." for problem in [features_problem(features)] if problem]
    return found


def _next(path: Path, kind: str) -> str | None:
    if kind in IMPORTABLE:
        mpp = " --mpp MPP" if kind == "stamp_features" else ""
        return f"gcemil import {path.parent} --labels TABLE{mpp} --out COHORT"
    if kind in {"clam_coords", "trident_patches"}:
        return (
            f"gcemil import FEATURES --coords-dir {path.parent} --labels TABLE --out COHORT"
            if kind == "clam_coords"
            else None
        )
    return None
