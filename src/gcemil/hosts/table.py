"""The nine hosts. A new one is one file and one line here; the contract tests pick it up."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from gcemil.config import LARGEST_SIZE
from gcemil.errors import UsageError

if TYPE_CHECKING:
    from gcemil.hosts.host import GateMode, MilHost

    AnyHost = MilHost[Any]
else:
    # The command line lists the hosts by name; torch is loaded only with the host that is chosen.
    GateMode, AnyHost = str, object


@dataclass(frozen=True)
class HostSpec:
    """Where a host lives and which gate mode was measured to be the better one for it (docs/results.md)."""

    module: str
    class_name: str
    default_gate_mode: GateMode = "paper"
    temperature_end: float = 0.1
    """How cold its gates end. A host that attends evenly hears whatever a soft gate leaves open."""

    def load(self) -> type[AnyHost]:
        host_class: type[AnyHost] = getattr(import_module(f"gcemil.hosts.{self.module}"), self.class_name)
        return host_class


HOSTS: dict[str, HostSpec] = {
    "abmil": HostSpec("abmil", "Abmil"),
    "clam_sb": HostSpec("clam_sb", "ClamSb"),
    "transmil": HostSpec("transmil", "TransMil", "deletion"),
    "dsmil": HostSpec("dsmil", "Dsmil", "deletion", temperature_end=0.001),
    "dtfd": HostSpec("dtfd", "Dtfd", "deletion"),
    "ibmil": HostSpec("ibmil", "Ibmil"),
    "mhim": HostSpec("mhim", "Mhim", "deletion"),
    "camil": HostSpec("camil", "Camil", "deletion"),
    "hdmil": HostSpec("hdmil", "Hdmil", "deletion"),
}


def host_spec(name: str) -> HostSpec:
    """The line of the table; a name that is not in it is refused with those that are."""
    if name not in HOSTS:
        raise UsageError(f"Unknown host '{name}'. Choose one of: {', '.join(HOSTS)}.")
    return HOSTS[name]


def create_host(
    name: str,
    *,
    in_dim: int,
    n_outputs: int,
    gate_mode: GateMode | None = None,
    options: Mapping[str, object] | None = None,
) -> AnyHost:
    """A fresh host by name; `options` are the keyword-only arguments of its class."""
    spec = host_spec(name)
    host_class = spec.load()
    options = dict(options or {})
    accepted = [p.name for p in inspect.signature(host_class).parameters.values() if p.kind is p.KEYWORD_ONLY]
    if unknown := sorted(set(options) - set(accepted)):
        raise UsageError(
            f"Host '{name}' has no option '{unknown[0]}'. It accepts: {', '.join(accepted) or 'none'}."
        )
    if large := [key for key, value in options.items() if isinstance(value, int) and value > LARGEST_SIZE]:
        raise UsageError(
            f"Host '{name}': option '{large[0]}' is at most {LARGEST_SIZE:,}, got {options[large[0]]}."
        )
    try:
        return host_class(in_dim, n_outputs, gate_mode or spec.default_gate_mode, **options)
    except (TypeError, ValueError, RuntimeError, ArithmeticError, AssertionError) as error:
        if not options:
            raise
        raise UsageError(f"Host '{name}' cannot be made with the options {options} ({error}).") from error
