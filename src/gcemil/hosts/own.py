"""Hosts that are not part of gcemil: found by name, imported only with consent.

  package.module:Class   a class in the working folder or among the installed packages
  a plain name           an entry point `gcemil.hosts` of an installed package
The class is a torch module. Either it implements the `Host` protocol, most easily as a subclass of
`MilHost`; or it maps features (n, d) to logits, or to (logits, scores) (adapters.py).

Importing a module runs its code. A user consents to a host by naming it in a command, in settings
or in a grid. A run folder that names one opens only after consent, by --trust-host or
GCEMIL_TRUST_HOSTS (SECURITY.md).
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from functools import cache
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcemil.errors import UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

GROUP = "gcemil.hosts"
TRUST_VARIABLE = "GCEMIL_TRUST_HOSTS"
"""Import paths, separated by commas. Worker processes inherit it."""
DOTTED = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*"
IMPORT_PATH = re.compile(f"{DOTTED}:{DOTTED}", re.ASCII)


def is_import_path(name: str) -> bool:
    """Whether the name has the form package.module:Class."""
    return ":" in name


def split_path(name: str, what: str) -> tuple[str, str]:
    """Module and name within it."""
    if not IMPORT_PATH.fullmatch(name):
        raise UsageError(f"{what} '{name}' is not an import path. Write it as package.module:Name.")
    module, _, path = name.partition(":")
    return module, path


@cache
def _registered() -> EntryPoints:
    # Imported here: it reads e-mail headers, a tenth of what 'gcemil --help' takes.
    from importlib.metadata import entry_points

    return entry_points(group=GROUP)


def registered_names() -> list[str]:
    """Hosts that installed packages add."""
    return sorted(_registered().names)


def registered_path(name: str) -> tuple[str, str] | None:
    """Module and class of a registered host; None if nobody registers the name."""
    paths = sorted({entry.value for entry in _registered().select(name=name)})
    if len(paths) > 1:
        raise UsageError(
            f"Two installed packages register a host '{name}': {', '.join(paths)}. "
            "Name one of these instead."
        )
    return split_path(paths[0], f"Registered host '{name}':") if paths else None


def folder_name(name: str) -> str:
    """The host's name as part of a path on every system."""
    return name.replace(":", "--")


def trust_host(name: str) -> None:
    """Allow this process and its workers to import a host class that a run names.

    Args:
        name: The import path, as "package.module:Class".

    Raises:
        UsageError: The name is not an import path.

    Example:
        >>> import gcemil
        >>> gcemil.trust_host("mypackage.models:MyHost")
    """
    split_path(name, "Host")
    os.environ[TRUST_VARIABLE] = ",".join(dict.fromkeys([*trusted_hosts(), name]))


def trusted_hosts() -> list[str]:
    """The import paths that may be imported because a run names them."""
    return [name.strip() for name in os.environ.get(TRUST_VARIABLE, "").split(",") if name.strip()]


_named_in_command: set[str] = set()
"""Hosts named with --trust-host: consent is remembered for the run that the command opens."""


def trust_in_command(name: str) -> None:
    """As `trust_host`, and remembered for the runs that this command opens."""
    trust_host(name)
    _named_in_command.add(name)


def check_trust(name: str, source: object, *, option: str = "--trust-host") -> None:
    """Refuse a class that a file names without the user's consent; a plain name needs none."""
    if not is_import_path(name):
        return
    # Imported here: it writes files, which the names of the hosts do not need.
    from gcemil.hosts.consent import recall_consent, remember_consent, run_of

    run = run_of(source)
    if name in trusted_hosts():
        if run is not None and name in _named_in_command:
            remember_consent(name, run)
        return
    split_path(name, f"{source}: host")
    consent = None if run is None else recall_consent(name, run)
    if consent:
        trust_host(name)
        return
    changed = " Its file has changed since you trusted it." if consent is False else ""
    raise UsageError(
        f"{source} names the host '{name}', which is not part of gcemil: opening it would run that "
        f"code.{changed} If you trust it, add {option} {name} (or set {TRUST_VARIABLE}={name})."
    )


def import_object(name: str, what: str) -> Any:
    """What an import path names, in an installed package or the working folder."""
    module_name, path = split_path(name, what)
    here = str(Path.cwd())
    if not {"", here} & set(sys.path):
        # Kept on the path: a host may import more of its package later.
        sys.path.append(here)
    try:
        value: Any = import_module(module_name)
    except (Exception, SystemExit) as error:
        missing = isinstance(error, ModuleNotFoundError)
        reason = str(error) if missing else f"{type(error).__name__}: {error}"
        raise UsageError(
            f"{what} '{name}': module '{module_name}' cannot be imported ({reason}). "
            "It is searched for among the installed packages and in the working folder."
        ) from error
    for step in path.split("."):
        if not hasattr(value, step):
            names = [key for key in dir(value) if not key.startswith("_")]
            public = [key for key in names if callable(getattr(value, key))]
            raise UsageError(
                f"{what} '{name}': there is no '{step}' in '{module_name}'. "
                f"There are: {', '.join(public) or 'none'}."
            )
        value = getattr(value, step)
    return value


def import_file(path: Path, what: str) -> str:
    """Import a Python file that may import from its folder; its name as a module."""
    if not path.is_file():
        raise UsageError(f"{what} '{path}' is not there. Give the path of a Python file.")
    name = f"gcemil_file_{re.sub(r'[^0-9A-Za-z_]', '_', path.stem)}"
    spec = spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise UsageError(f"{what} '{path}' cannot be imported. Give the path of a Python file.")
    if (folder := path.resolve().parent) not in {Path(one).resolve() for one in sys.path}:
        sys.path.append(str(folder))
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise UsageError(
            f"{what} '{path}' cannot be imported ({type(error).__name__}: {error}). "
            "Run it with Python and repair it."
        ) from error
    return name


def import_class(name: str) -> Any:
    """The class that an import path names."""
    host_class = import_object(name, "Host")
    if not inspect.isclass(host_class):
        raise UsageError(
            f"'{name}' is not a host but a {type(host_class).__name__}: "
            "a host is a subclass of torch.nn.Module."
        )
    return host_class
