"""The environment of a Ray cluster that a test starts."""

import os
import secrets
import shutil
import tempfile
from pathlib import Path

import pytest


@pytest.fixture
def cluster_environment():
    """Everything Ray writes in a folder of its own with a short name (sockets have short paths), tokens on."""
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    token = folder / "token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    settings = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_TMPDIR": str(folder),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    yield {**os.environ, **settings}
    shutil.rmtree(folder, ignore_errors=True)
