"""What the evidence adds to a prediction, and whether it holds, of one or more trained runs (fold 0, test slides).

Nothing here was searched on: the verdict stands at three tolerances and in log-odds, keep and removal curves run from 1 to 20 % of the patches, and
rivals (attention, contribution, random) are asked by the same model at the same sizes.

  gain         Macro-F1 (or C-index) of gce less that of the host, paired bootstrap over test slides
  AUKC         mean over sizes of the probability of the predicted class from the first patches alone, as a share of that from all; higher is better
  removal      mean over sizes of what the same probability loses without them; higher is better
  MSK          smallest size from which the first patches alone stay within .05; 20 % counts as 1
  riders       evidence patches that neither host nor head ranks high: in no top k of attention, contribution or response to an anchor of the class

  python benchmarks/vote.py RUN [RUN ...] --json results/vote.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.metrics import average_precision_score, f1_score

from gcemil.diagnostics.trained_fold import FoldBag, TrainedFold, prefix_logits
from gcemil.predictor import GceEmbedded
from gcemil.recovery.recover import ranking, subset_size
from gcemil.tasks.survival import c_index

SHARES = (0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2)
TOLERANCES = (0.02, 0.05, 0.1)
LOG_ODDS = 0.2
RESAMPLES = 1000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = {run.name: measure_run(run) for run in arguments.runs}
    text = json.dumps(found, indent=1)
    print(text)
    if arguments.json:
        arguments.json.write_text(text + "\n", encoding="utf-8")


def measure_run(run: Path) -> dict[str, Any]:
    """Every figure of the test slides of fold 0."""
    fold = TrainedFold.open(run, 0)
    table = pd.DataFrame([measure_bag(fold, bag, number) for number, bag in enumerate(fold.bags("test"))])
    if fold.model is None:
        raise SystemExit(f"{run} has no evidence.")
    result: dict[str, Any] = {
        "host": fold.settings.host.name,
        "anchors": fold.model.bank.provenance,
        "slides": len(table),
        "weight": round(float(fold.model.head.weight), 3),
        "evidence_fraction": rounded(table["size"].mean()),
        **gain(table),
    }
    rules = ("evidence", "attention", "contribution", "random")
    result["rules"] = {rule: summarise(table, rule) for rule in rules if f"{rule} kept" in table}
    if "riders" in table:
        result["riders"] = rounded(table["riders"].mean())
    return result


def measure_bag(fold: TrainedFold, bag: FoldBag, number: int) -> dict[str, Any]:
    """One row: predictions, and every rule kept and removed at the size of the evidence and along its curve."""
    explanation, view = bag.explanation, bag.predict("wrapped")
    assert explanation is not None
    output, selected = explanation.output, explanation.recovery.selected
    generator = torch.Generator().manual_seed(number)
    scores = {
        "evidence": output.scores,
        "attention": output.full.scores,
        "random": torch.rand(len(selected), generator=generator),
    }
    if output.answer.contributions is not None:
        scores["contribution"] = output.answer.contributions
    size, index = int(selected.sum()), int(output.answer.logits.argmax())
    row: dict[str, Any] = {
        "target": bag.spec.target,
        "full": output.full.logits.tolist(),
        "gce": output.gce.logits.tolist(),
        "size": size / len(selected),
    }
    whole = phi(output.answer.logits, index)
    sizes = [subset_size(len(selected), share) for share in SHARES]
    for rule, values in scores.items():
        order = ranking(values)
        chosen = (
            selected if rule == "evidence" else torch.zeros_like(selected).index_fill(0, order[:size], True)
        )
        kept, removed = bag.wrapped.kept(chosen), bag.wrapped.removed(chosen)
        row[f"{rule} kept"] = phi(kept.logits, index) - whole
        row[f"{rule} removed"] = np.nan if removed is None else phi(removed.logits, index) - whole
        row[f"{rule} odds"] = log_odds(kept.logits, index) - log_odds(output.answer.logits, index)
        row[f"{rule} kept logits"] = kept.logits.tolist()
        row[f"{rule} removed logits"] = None if removed is None else removed.logits.tolist()
        first = [phi(one, index) for one in prefix_logits(view, order, sizes)]
        rest = [
            phi(bag.wrapped.kept(torch.ones_like(selected).index_fill(0, order[:k], False)).logits, index)
            for k in sizes
        ]
        row[f"{rule} aukc"] = (
            np.mean([min(1.0, one / whole) if whole > 0 else 1.0 for one in first])
            if len(output.answer.logits) > 1
            else np.nan
        )
        row[f"{rule} removal"] = np.mean([whole - one for one in rest])
        within = [abs(one - whole) <= 0.05 for one in first]
        row[f"{rule} msk"] = next((share for k, share in enumerate(SHARES) if all(within[k:])), 1.0)
        if bag.truth is not None and bool(bag.truth.any()):
            row[f"{rule} precision"] = float(bag.truth[chosen].float().mean())
            row[f"{rule} ap"] = average_precision_score(bag.truth, values)
    if isinstance(output.embedded, GceEmbedded):
        high = [
            set(ranking(values)[:size].tolist())
            for name, values in scores.items()
            if name in ("attention", "contribution")
        ]
        assert fold.model is not None
        weights = fold.model.head.weights
        speaks = weights[0] != 0 if len(weights) == 1 else weights[index] > weights.mean(dim=0)
        high.append(set(ranking((output.embedded.responses * speaks).amax(dim=1))[:size].tolist()))
        row["riders"] = np.mean(
            [not any(patch in one for one in high) for patch in selected.nonzero().flatten().tolist()]
        )
    return row


def phi(logits: torch.Tensor, index: int) -> float:
    """The probability of the predicted class, or the risk."""
    return float(logits[0]) if len(logits) == 1 else float(torch.softmax(logits.double(), dim=0)[index])


def log_odds(logits: torch.Tensor, index: int) -> float:
    """Of the predicted class; the risk itself."""
    if len(logits) == 1:
        return float(logits[0])
    probability = min(max(phi(logits, index), 1e-6), 1 - 1e-6)
    return float(np.log(probability / (1 - probability)))


def summarise(table: pd.DataFrame, rule: str) -> dict[str, Any]:
    """One rule over the slides."""
    kept, removed = table[f"{rule} kept"].abs(), table[f"{rule} removed"].abs()
    figures = {
        f"sufficient and necessary {limit}": rounded(((kept <= limit) & (removed >= limit)).mean())
        for limit in TOLERANCES
    }
    figures["sufficient in log-odds"] = rounded((table[f"{rule} odds"].abs() <= LOG_ODDS).mean())
    figures["metric kept"] = rounded(metric(table, f"{rule} kept logits"))
    left = table[table[f"{rule} removed logits"].notna()]
    figures["metric removed"] = rounded(metric(left, f"{rule} removed logits"))
    for name in ("aukc", "removal", "msk", "precision", "ap"):
        if f"{rule} {name}" in table:
            figures[name] = rounded(table[f"{rule} {name}"].mean())
    return figures


def gain(table: pd.DataFrame) -> dict[str, Any]:
    """gce less the host, with a 95 % interval."""
    generator, host, both = np.random.default_rng(0), metric(table, "full"), metric(table, "gce")
    draws = [table.iloc[generator.integers(len(table), size=len(table))] for _ in range(RESAMPLES)]
    differences = [metric(draw, "gce") - metric(draw, "full") for draw in draws]
    low, high = np.quantile(differences, [0.025, 0.975])
    return {
        "metric host": rounded(host),
        "metric gce": rounded(both),
        "gain": [rounded(both - host), rounded(low), rounded(high)],
    }


def metric(table: pd.DataFrame, column: str) -> float:
    """Macro-F1, or the C-index."""
    values = np.array(table[column].tolist())
    if values.shape[1] == 1:
        times, events = (np.array(one) for one in zip(*table["target"], strict=True))
        return c_index(values[:, 0], times, events.astype(bool))
    return float(f1_score(table["target"].astype(int), values.argmax(axis=1), average="macro"))


def rounded(value: float | Sequence[float]) -> float:
    return round(float(value), 3)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
