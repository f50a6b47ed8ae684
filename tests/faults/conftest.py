"""The stage of a session, and the counts that are printed at its end."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from fault_builders import Stage


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(tmp_path_factory.mktemp("faults"))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What was done to which command how often; tests put it on record as `faults`."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, value in getattr(report, "user_properties", ()):
                if name == "faults" and report.when == "call":
                    command, kind, *numbers = value
                    for what, number in zip(("done", "in time", "bad"), numbers, strict=True):
                        counts[command, kind, what] += number
    if not counts:
        return
    terminalreporter.section("faults")
    for command, kind in sorted({key[:2] for key in counts}):
        done, in_time, bad = (counts[command, kind, what] for what in ("done", "in time", "bad"))
        terminalreporter.write_line(
            f"{command:<20} {kind:<28} {done:>4} times, {in_time:>4} before its end, {bad} not mended"
        )
    total = sum(count for key, count in counts.items() if key[2] == "done")
    terminalreporter.write_line(f"{total} faults in all")
