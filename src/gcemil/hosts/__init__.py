"""MIL hosts behind one contract (`host.py`); `table.py` lists them.

`gcemil.hosts.create_host("abmil", in_dim=1024, n_outputs=2)` makes one, `gcemil.hosts.HOSTS` names
them.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME = {
    "HOSTS": "table",
    "create_host": "table",
    "Host": "host",
    "MilHost": "host",
    "HostOutput": "host",
    "CallableHost": "adapters",
    "TorchmilHost": "adapters",
    "SlideEncoderHost": "slide_encoder",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'gcemil.hosts' has no attribute '{name}'")
    return getattr(import_module(f"gcemil.hosts.{_HOME[name]}"), name)
