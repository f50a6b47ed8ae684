"""The viewer behind its guard, as a browser on the same machine meets it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from starlette.testclient import TestClient

from gcemil.viewer.app import viewer_app
from gcemil.viewer.session import ViewerSession

PORT = 8123
HERE = f"http://127.0.0.1:{PORT}"
TOKEN = "the-token-of-the-test"


def stranger(session: ViewerSession) -> TestClient:
    """Somebody without the token."""
    return TestClient(viewer_app(session, token=TOKEN, port=PORT), base_url=HERE, headers={"origin": HERE})


def visitor(session: ViewerSession) -> TestClient:
    """Somebody who opened the printed address."""
    client = stranger(session)
    assert client.get(f"/?token={TOKEN}").status_code == 200
    return client


def opened(run: Path) -> ViewerSession:
    return ViewerSession.open(run)


def bits(*masks: np.ndarray) -> bytes:
    return b"".join(np.packbits(mask, bitorder="little").tobytes() for mask in masks)
