"""Every error gcemil raises on purpose.

GcemilError
├── UsageError         a command or function was called with something it does not accept
│   └── ConfigError    a settings file has an unknown key or a value out of bounds
├── InputError         a file or array is not what it should be
│   ├── StoreError     a feature, evidence or truth file cannot be read or written
│   ├── CohortError    the tables of a cohort contradict each other or its files
│   └── BagError       features, coordinates or gates of one bag do not fit together
├── RunError           a run folder cannot be resumed, read or trusted
├── BusyError          another process works in the folder
└── MissingExtraError  an optional dependency is not installed

A message names the file or slide, the value, and the remedy.
"""


class GcemilError(Exception):
    """Base of every error raised on purpose."""


class UsageError(GcemilError):
    """Called with something it does not accept; the command line exits with 2."""


class ConfigError(UsageError):
    """A settings file has an unknown key or a value out of bounds."""


class InputError(GcemilError):
    """A file or array is not what it should be."""


class StoreError(InputError):
    """A feature, evidence or truth file cannot be read or written."""


class CohortError(InputError):
    """The tables of a cohort contradict each other or its files."""


class BagError(InputError):
    """Features, coordinates or gates of one bag do not fit together."""


class RunError(GcemilError):
    """A run folder cannot be resumed, read or trusted."""


class BusyError(GcemilError):
    """Another process works in the folder."""


class MissingExtraError(GcemilError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"This needs '{package}'. Install it with: pip install 'gcemil[{extra}]'.")
