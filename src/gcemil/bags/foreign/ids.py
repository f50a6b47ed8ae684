"""Slide ids across tools: known extensions come off the end, every other dot stays.

'TCGA-05-4244-01Z-00-DX1.d4ff32cd.svs' and 'TCGA-05-4244-01Z-00-DX1.d4ff32cd.h5' are one slide; cutting at the first
dot would merge it with every other slide of the same block.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from gcemil.errors import CohortError
from gcemil.slides.reader import SLIDE_EXTENSIONS

FEATURE_EXTENSIONS = (".h5", ".hdf5", ".pt", ".npy")
_KNOWN = SLIDE_EXTENSIONS + FEATURE_EXTENSIONS
_TCGA = re.compile(r"TCGA-\w{2}-\w{4}(?:-|$)")


def plain_id(name: str) -> str:
    """The last part of a path without known slide and feature extensions."""
    base = name.strip().replace("\\", "/").rstrip("/").rsplit("/", 1)[-1]
    while extension := next((e for e in _KNOWN if base.lower().endswith(e) and len(base) > len(e)), None):
        base = base[: -len(extension)]
    return base


def plain_ids(names: Iterable[str], *, where: str) -> dict[str, str]:
    """Name → plain id; two names that would become one slide are refused."""
    first: dict[str, str] = {}
    result = {}
    for name in names:
        plain = plain_id(name)
        if first.setdefault(plain, name) != name:
            raise CohortError(
                f"{where}: '{first[plain]}' and '{name}' would both be slide '{plain}'. Rename one of them."
            )
        result[name] = plain
    return result


def stripped_line(names: Iterable[str], *, where: str) -> tuple[str, ...]:
    """One line that says how many ids lost an extension or a folder, or none."""
    changed = [name for name in names if plain_id(name) != name]
    if not changed:
        return ()
    return (
        f"{where}: folders and known extensions taken off {len(changed)} ids ('{changed[0]}' is slide '{plain_id(changed[0])}').",
    )


def is_tcga(name: str) -> bool:
    return _TCGA.match(name) is not None


def tcga_case_id(barcode: str) -> str:
    """The patient of a TCGA barcode: its first twelve characters."""
    if not is_tcga(barcode):
        raise CohortError(
            f"'{barcode}' is no TCGA barcode (TCGA-XX-XXXX…), so its case is unknown. Add a case_id column."
        )
    return barcode[:12]
