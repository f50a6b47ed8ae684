"""Options that several verbs share."""

from __future__ import annotations

from typing import Any

import typer


def trust_hosts(names: list[str]) -> list[str]:
    """Consent to import these classes where a run names them."""
    from gcemil.hosts.own import trust_host

    for name in names:
        trust_host(name)
    return names


TRUST_HOST: Any = typer.Option(
    [],
    "--trust-host",
    metavar="PACKAGE.MODULE:CLASS",
    callback=trust_hosts,
    help="A run trained with a host of your own: let it import this class, which RUNS ITS CODE.",
)
