"""Consent to import the host of a run, kept on this machine with a hash of its files.

A file that has changed since needs consent again. Nothing in a run folder can give consent.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path

from gcemil.files import atomic_write

CONSENTS = "trusted_hosts.json"


def consent_file() -> Path:
    """Where consent is kept: the folder for settings of the user."""
    folder = os.environ.get("XDG_CONFIG_HOME")
    return (Path(folder) if folder else Path.home() / ".config") / "gcemil" / CONSENTS


def run_of(source: object) -> Path | None:
    """The run that a file or folder belongs to; None for anything but a path."""
    if not isinstance(source, Path):
        return None
    folder = source if source.is_dir() else source.parent
    return (folder.parent if folder.name.startswith("fold_") else folder).resolve()


def hash_module(name: str) -> str | None:
    """Hash of the files of a module and its packages, not imported; None if missing."""
    places, digest = [*sys.path, str(Path.cwd())], hashlib.sha256()
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        spec = PathFinder.find_spec(".".join(parts[:count]), places)
        if spec is None:
            return None
        if spec.origin is not None:
            digest.update(Path(spec.origin).read_bytes())
        places = list(spec.submodule_search_locations or [])
    return digest.hexdigest()


def remember_consent(host: str, run: Path) -> None:
    """Keep that this run may import its host, as the files are now."""
    known, digest = _read(), hash_module(host.partition(":")[0])
    if digest is None or known.get(str(run), {}).get(host) == digest:
        return
    known[str(run)] = {**known.get(str(run), {}), host: digest}
    with suppress(OSError):
        path = consent_file()
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as temporary:
            temporary.write_text(json.dumps(known, indent=1))


def recall_consent(host: str, run: Path) -> bool | None:
    """Whether the host has consent; False if its files have changed, None without any."""
    digest = _read().get(str(run), {}).get(host)
    return None if digest is None else digest == hash_module(host.partition(":")[0])


def _read() -> dict[str, dict[str, str]]:
    """Every consent; a damaged file holds none."""
    try:
        known: dict[str, dict[str, str]] = json.loads(consent_file().read_text())
    except (OSError, ValueError):
        return {}
    return known
