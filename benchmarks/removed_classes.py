"""What becomes of right and of wrong predictions when patches are removed?

  python benchmarks/removed_classes.py RESULTS... [--json FILE]
Complement degradation is a difference of Macro-F1, so it falls when a wrong prediction is put right. Over the test slides of
every wrapped fold of a grid, as many patches are removed by each rule as the evidence has: the evidence, the first by attention
and by contribution, and the truth (all of it, whatever its size; slides without truth keep their prediction).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from gcemil.diagnostics.trained_fold import FoldBag, TrainedFold
from gcemil.recovery.recover import top_k
from gcemil.shapes import Selected

RULES = ("evidence", "attention", "contribution", "truth")


@dataclass(frozen=True)
class Removal:
    """One slide and one rule."""

    rule: str
    was_right: bool
    is_right: bool
    changed: bool


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    by_host: dict[str, list[Path]] = {}
    for results in arguments.results:
        for fold in sorted(results.glob("runs/*/*/gce/seed_*/fold_*")):
            by_host.setdefault(fold.parts[-4], []).append(fold)
    report = {}
    for host, folds in by_host.items():
        found = [one for fold in folds for one in remove_patches(fold)]
        report[host] = {rule: count_removals([one for one in found if one.rule == rule]) for rule in RULES}
        print(f"\n{host}, {len(folds)} runs: right lost / wrong changed / wrong put right")
        for rule, shares in report[host].items():
            print(f"  {rule:12} " + " / ".join("none" if one is None else f"{one:.3f}" for one in shares.values()))  # fmt: skip
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")


def remove_patches(fold: Path) -> Iterator[Removal]:
    opened = TrainedFold.open(fold.parent, int(fold.name.removeprefix("fold_")))
    for bag in opened.bags("test"):
        view = bag.predict("wrapped")
        before = int(view.full.logits.argmax())
        for rule, selected in chosen_patches(bag).items():
            left = None if not bool(selected.any()) else bag.wrapped.removed(selected)
            after = before if left is None else int(left.logits.argmax())
            yield Removal(rule, before == bag.spec.target, after == bag.spec.target, after != before)


def chosen_patches(bag: FoldBag) -> dict[str, Selected]:
    """The subset of every rule that this bag can have."""
    assert bag.explanation is not None, "The run has no wrapper."
    output, evidence = bag.explanation.output, bag.explanation.recovery.selected
    found = {"evidence": evidence}
    for rule, scores in {"attention": output.full.scores, "contribution": output.full.contributions}.items():
        if scores is not None:
            found[rule] = top_k(scores, int(evidence.sum()))
    if bag.truth is not None:
        found["truth"] = bag.truth
    return found


def count_removals(removals: list[Removal]) -> dict[str, float | None]:
    """Shares of the slides that were predicted right, and of the others; None where there are none."""
    right = [one for one in removals if one.was_right]
    wrong = [one for one in removals if not one.was_right]
    return {
        "right_lost": fmean(one.changed for one in right) if right else None,
        "wrong_changed": fmean(one.changed for one in wrong) if wrong else None,
        "wrong_put_right": fmean(one.is_right for one in wrong) if wrong else None,
    }


if __name__ == "__main__":
    main()
