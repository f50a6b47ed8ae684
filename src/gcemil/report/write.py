"""Files that appear whole or not at all."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from gcemil.errors import StoreError


def write_whole(path: Path, data: bytes) -> Path:
    """Write beside the target, then rename."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError as error:
        raise StoreError(f"{path} cannot be written ({error}). Check free space and permissions.") from error
    finally:
        with suppress(OSError):
            temporary.unlink()
    return path


def write_json(path: Path, value: Any) -> Path:
    """Readable JSON with sorted keys; NaN is an error, because JSON has none."""
    text = json.dumps(value, indent=2, sort_keys=True, allow_nan=False, ensure_ascii=False)
    return write_whole(path, (text + "\n").encode())
