"""Known failures of training, seen in the numbers of an epoch: said on screen and kept in the run."""

from __future__ import annotations

from collections.abc import Mapping

Epoch = Mapping[str, float]

DOMINANT_SHARE = 0.9


def failures(epoch: Epoch, terms: Mapping[str, float]) -> list[str]:
    """What is wrong with this epoch, in sentences; nothing when it looks healthy."""
    found = []
    if epoch.get("eventless_windows", 0) > 0:
        found.append(
            f"{epoch['eventless_windows']:.0f} windows had no event and taught nothing: raise the window size."
        )
    if "mean_gate" in epoch:
        found += _gate_failures(epoch)
    total = sum(abs(value) for value in terms.values())
    for name, value in terms.items():
        if len(terms) > 2 and not name.startswith("task") and abs(value) > DOMINANT_SHARE * total > 0:
            found.append(f"the term '{name}' is {abs(value) / total:.0%} of the loss: lower its weight.")
    return found


def _gate_failures(epoch: Epoch) -> list[str]:
    found = []
    if epoch["mean_gate"] > 0.9:
        found.append(f"gates are all open (mean {epoch['mean_gate']:.2f}): the evidence is the whole bag.")
    if epoch["max_gate"] < 0.5:
        found.append(
            f"gates are all closed (largest {epoch['max_gate']:.2f}): recovery falls back to one patch."
        )
    elif epoch["empty_subsets"] > 0:
        found.append(f"{epoch['empty_subsets']:.0%} of the bags open no patch at all.")
    if epoch["min_coverage"] > 0.999:
        found.append("every anchor is covered on every bag: coverage is saturated and carries no gradient.")
    return found
