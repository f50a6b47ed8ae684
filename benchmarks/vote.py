"""What the evidence adds to a prediction, and whether it holds: one trained run, the test slides of
fold 0.

F is host and evidence head together. Phi is the probability of the class that F predicts on the
whole slide, or the risk in training deviations. Every rule names as many patches as the evidence
has, and F judges all of them. A rule that ends in "searched" names the smallest prefix of its
ranking that is sufficient and necessary at the tolerances with which `gcemil audit` searches, so
that no rule is ahead by search alone.

  gain         Macro-F1 (or C-index) of F less that of the host; the evidence head alone stands
               beside both
  verdict      share of slides with |Phi(X_S) - Phi(X)| <= t and |Phi(X_notS) - Phi(X)| >= t, at
               three tolerances and in log-odds
  transplant   the removed patches are replaced by background of the slide (of the half of lowest
               evidence score), so that the bag keeps its size
  AUKC         mean of the keep curve, higher is better: Phi of the first 1 to 20 % of the patches
               alone, as a share of Phi(X), at most 1 (a risk: 1 less its distance, at least 0) The
               evidence is drawn in its order (explain.order_patches), every rival by its scores
  removal      mean over the same sizes of what Phi loses without the first patches (a risk: how far
               it moves); higher is better
  MSK          smallest share of the patches from which Phi reaches Phi(X) - 0.05 (a risk: comes
               within 0.2); 1 where 20 % are not enough. `msk within`: the same, but Phi may not
               exceed Phi(X) by more either, and stays there at all larger sizes
  SHI          1 - MSK / MSK of the host's attention, of the means over slides: selection headroom,
               the relative reduction that FOCI (arXiv 2605.12575) reports. FOCI counts patches
               until the true class has probability 0.9; here no label is used
  complement   what the metric loses without the patches: on F, and as the paper compares, each
               model without its own; removing all true patches is the ceiling
  riders       share of evidence patches in no top |S| of attention, contribution or response to an
               anchor of the class, and how far F moves without exactly these, beside as many random
               patches. The wrapper drops patches by nearly the same rule, so the lower half of the
               evidence is removed as well
  confirmed    share of slides without a lesion that carry confirmed evidence
  transfer     with --judge: the same patches judged by F and by the host of another seed
  jaccard      with --judge: overlap of both runs' evidence at the smaller of the two sizes, of the
               sets as they are, and of attention

Intervals are 95 % of 1,000 bootstraps over slides, paired.

  python benchmarks/vote.py RUN [--judge RUN2] [--slides N] [--json FILE] [--csv FILE.csv.gz]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.special import logit
from sklearn.metrics import average_precision_score
from torch import Generator, Tensor

from gcemil.diagnostics.snr import OutputScale
from gcemil.diagnostics.trained_fold import FoldBag, TrainedFold, read_risk_scale
from gcemil.errors import InputError
from gcemil.hosts.host import Embedded, Host, ask_subsets, closed_form
from gcemil.predictor import GceEmbedded
from gcemil.recovery import members, ranking, subset_size
from gcemil.runs.folder import Run
from gcemil.search import SEARCHED_SHARES, STRICTER, Search
from gcemil.tasks.survival import c_index

SHARES = (0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2)
TOLERANCES = (0.02, 0.05, 0.1)
LOG_ODDS, SAME_PROBABILITY, SAME_RISK = 0.2, 0.05, 0.2
BACKGROUND, RANDOM_DRAWS, RESAMPLES = 0.5, 5, 1000
VERDICT = "sufficient and necessary"
COMPARED = ("aukc", "removal", "precision", "ap", *(f"{VERDICT} {limit}" for limit in TOLERANCES))

Row = dict[str, Any]
Columns = dict[str, np.ndarray]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("--judge", type=Path, help="A run on the same cohort with another seed.")
    parser.add_argument("--json", type=Path, help="Where to write what is printed.")
    parser.add_argument(
        "--csv", type=Path, help="Where to write one row per slide and rule, gzipped."
    )
    parser.add_argument(
        "--slides", type=int, help="The first so many test slides, for hosts that are slow."
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    fold = TrainedFold.open(arguments.run, 0)
    slides, rules = measure_slides(fold, arguments.judge, arguments.slides)
    text = json.dumps(summarise(fold, slides, rules), indent=1)
    print(text)
    if arguments.csv:
        rules.merge(slides, on="slide").to_csv(arguments.csv, index=False, compression="gzip")
    if arguments.json:
        arguments.json.write_text(text + "\n", encoding="utf-8")


def measure_slides(
    fold: TrainedFold, judge: Path | None = None, limit: int | None = None
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """One row per test slide, and one per slide and rule."""
    if judge is not None:
        Run(fold.run).check_same_cohort(judge)
    other, slides, rules = None if judge is None else TrainedFold.open(judge, 0), [], []
    for one in (fold, other):
        if one is not None and one.model is None:
            raise SystemExit(
                f"{one.run} was trained without evidence. Name a run trained with --gce."
            )
    with torch.no_grad():
        for number, bag in enumerate(islice(fold.bags("test"), limit)):
            second = None if other is None else FoldBag(bag.spec, bag.bag, other)
            slide, rows = measure_bag(bag, second, Generator().manual_seed(number))
            slides.append(slide)
            rules.extend(rows)
    return pd.DataFrame(slides), add_verdicts(pd.DataFrame(rules))


class Judge:
    """A network and a bag: what it says of any set of patches, each set pooled once."""

    def __init__(
        self, network: Host, embedded: Embedded, coords: Tensor | None, scale: OutputScale
    ) -> None:
        self._network, self._embedded, self._coords, self._scale = network, embedded, coords, scale
        self._pool = ask_subsets(network, embedded, coords)
        self._known: dict[bytes, Tensor] = {}
        self.full = network.aggregate(embedded, coords).logits
        self.is_risk = len(self.full) == 1
        self.whole = self.phi(self.full)

    def phi(self, logits: Tensor) -> float:
        """The probability of the class predicted on X, or the risk in training deviations."""
        return self._scale.output(self.full, logits)

    def ask(self, selected: Tensor) -> Tensor:
        """The logits of the selected patches alone."""
        if bool(selected.all()):
            return self.full
        key = selected.numpy().tobytes()
        if key not in self._known:
            self._known[key] = self._pool(selected)
        return self._known[key]

    def keep(self, selected: Tensor) -> float:
        """Phi(X_S) - Phi(X)."""
        return self.phi(self.ask(selected)) - self.whole

    def remove(self, selected: Tensor) -> float:
        """Phi(X_notS) - Phi(X); NaN where nothing is left."""
        return np.nan if bool(selected.all()) else self.keep(~selected)

    def replace(self, selected: Tensor, background: Tensor, generator: Generator) -> float:
        """How far Phi moves when background takes the patches' places; NaN if none is left."""
        source = background[~selected[background]]
        if not len(source):
            return np.nan
        rows = torch.arange(len(selected))
        rows[selected] = source[
            torch.randint(len(source), (int(selected.sum()),), generator=generator)
        ]
        return (
            self.phi(self._network.aggregate(self._embedded.rows(rows), self._coords).logits)
            - self.whole
        )

    def answer(self, selected: Tensor) -> float:
        """The predicted class, or the risk, of the selected patches; NaN where there is none."""
        return read_answer(self.ask(selected)) if bool(selected.any()) else np.nan

    def intervene(self, chosen: Tensor) -> dict[str, float]:
        """How Phi, and its log-odds, move when the patches are kept or removed."""
        moves = {"kept": self.keep(chosen), "removed": self.remove(chosen)}
        levels = np.array([self.whole, *(self.whole + move for move in moves.values())])
        if not self.is_risk:
            levels = logit(levels.clip(1e-6, 1 - 1e-6))
        return moves | {"odds kept": levels[1] - levels[0], "odds removed": levels[2] - levels[0]}


def make_judges(bag: FoldBag) -> dict[str, Judge]:
    """F (or the given host that the evidence explains), and the host alone."""
    fold, embedded = bag.network, bag.explanation.output.embedded
    of_host = embedded.host if isinstance(embedded, GceEmbedded) else embedded
    scale = read_risk_scale(fold.run, fold.fold, of_host=True)
    return {
        "F": Judge(fold.explained, embedded, bag.coords, fold.output_scale("wrapped")),
        "host": Judge(fold.host, of_host, bag.coords, OutputScale(fold.task.n_outputs, scale)),
    }


def measure_bag(
    bag: FoldBag, second: FoldBag | None, generator: Generator
) -> tuple[Row, list[Row]]:
    """What is said of the slide, and every rule kept, removed, replaced and along its curve."""
    output, selected, truth = bag.explanation.output, bag.explanation.recovery.selected, bag.truth
    judge, host = make_judges(bag).values()
    judges = {} if second is None else make_judges(second)
    scores, n_patches = rank_patches(bag, judge, generator), len(selected)
    background = ranking(output.scores)[-max(1, round(BACKGROUND * n_patches)) :]
    rows = []
    for rule, chosen in choose_sets(bag, judge, scores).items():
        row = {"slide": bag.spec.bag_id, "rule": rule, "size": float(chosen.float().mean())}
        row |= judge.intervene(chosen) | {
            "transplant": judge.replace(chosen, background, generator)
        }
        row |= {"F kept": judge.answer(chosen), "F removed": judge.answer(~chosen)}
        row["host removed"] = host.answer(~chosen)
        order = bag.explanation.order if rule == "evidence" else scores.get(rule)
        row |= {} if order is None else draw_curves(judge, ranking(order))
        if truth is not None and bool(truth.any()):
            row["precision"] = float(truth[chosen].float().mean())
            row["ap"] = average_precision_score(truth, scores[rule]) if rule in scores else np.nan
        for name, one in judges.items():
            row |= {f"transfer {name} {key}": move for key, move in one.intervene(chosen).items()}
        rows.append(row)
    target, event = bag.spec.target if judge.is_risk else (bag.spec.target, np.nan)
    confirmed, head = bag.explanation.is_confirmed, output.head_logits
    slide = {
        "slide": bag.spec.bag_id,
        "target": target,
        "event": event,
        "host": read_answer(output.full.logits),
        "head": np.nan if head is None else read_answer(head),
        "gce": read_answer(output.gce.logits),
        "F": read_answer(judge.full),
        "F oracle": np.nan if truth is None else judge.answer(~truth),
        "host oracle": np.nan if truth is None else host.answer(~truth),
        "confirmed": np.nan if confirmed is None else float(confirmed),
        **measure_riders(bag, judge, scores, generator),
        **({} if second is None else compare_seeds(bag, second)),
    }
    return slide, rows


def rank_patches(bag: FoldBag, judge: Judge, generator: Generator) -> dict[str, Tensor]:
    """One score per patch: of the evidence, of its rivals, and of the truth where it is known."""
    output, attention = bag.explanation.output, bag.explanation.output.full.scores
    scores = {"evidence": output.scores, "attention": attention}
    # A patch that lowers a risk counts as much as one that raises it.
    if (shares := output.answer.contributions) is not None:
        scores["contribution"] = (shares - shares.mean()).abs() if judge.is_risk else shares
    if (form := closed_form(bag.network.explained)) is not None and len(bag) > 1:
        index = int(judge.full.argmax())
        lost = judge.full[index] - form.without(output.embedded, bag.coords, index)
        scores["occlusion"] = lost.abs() if judge.is_risk else lost
    scores["random"] = torch.rand(len(bag), generator=generator)
    if bag.truth is not None:
        scores["oracle"] = attention + bag.truth * (1 + attention.max() - attention.min())
    return scores


def choose_sets(bag: FoldBag, judge: Judge, scores: dict[str, Tensor]) -> dict[str, Tensor]:
    """The evidence, as many patches by every other rule, and the searched sets."""
    selected, model = bag.explanation.recovery.selected, bag.network.model
    given = model.tolerances
    stricter = replace(
        given, sufficiency=STRICTER * given.sufficiency, necessity=given.necessity / STRICTER
    )
    search = Search(judge.ask, judge.full, model.output_kind, stricter)
    size, n_patches = int(selected.sum()), len(selected)
    sets = {
        rule: members(ranking(values)[:size], n_patches=n_patches)
        for rule, values in scores.items()
    }
    sets["evidence"] = selected
    for rule in [one for one in scores if one != "oracle"]:
        sets[f"{rule} searched"] = search_prefix(search, scores[rule])
    return sets


def search_prefix(search: Search, scores: Tensor) -> Tensor:
    """The smallest sufficient and necessary prefix of a ranking, or the best."""
    sizes = sorted({subset_size(len(scores), share) for share in SEARCHED_SHARES})
    return search.shrink(search.choose([scores], sizes))


def draw_curves(judge: Judge, order: Tensor) -> dict[str, float]:
    """Keep and removal along one ranking, their means, and MSK."""
    prefixes = [
        members(order[: subset_size(len(order), share)], n_patches=len(order)) for share in SHARES
    ]
    kept, removed = (np.array([ask(one) for one in prefixes]) for ask in (judge.keep, judge.remove))
    if judge.is_risk:
        keep, removal = np.maximum(0, 1 - np.abs(kept)), np.abs(removed)
    else:
        keep, removal = np.minimum(1, (judge.whole + kept) / judge.whole), -removed
    tolerance = SAME_RISK if judge.is_risk else SAME_PROBABILITY
    within = np.abs(kept) <= tolerance
    reached = within if judge.is_risk else kept >= -tolerance
    return {
        "aukc": float(keep.mean()),
        "removal": float(removal[~np.isnan(removal)].mean()) if len(order) > 1 else np.nan,
        "msk": next((share for share, one in zip(SHARES, reached, strict=True) if one), 1.0),
        "msk within": next((share for k, share in enumerate(SHARES) if within[k:].all()), 1.0),
        **{f"keep {share}": value for share, value in zip(SHARES, keep, strict=True)},
        **{f"removal {share}": value for share, value in zip(SHARES, removal, strict=True)},
    }


def measure_riders(
    bag: FoldBag, judge: Judge, scores: dict[str, Tensor], generator: Generator
) -> Row:
    """Evidence patches that F does not read, and how far F moves without them."""
    output, selected = bag.explanation.output, bag.explanation.recovery.selected
    importances = [scores[name] for name in ("attention", "contribution") if name in scores]
    if isinstance(output.embedded, GceEmbedded):
        weights, index = bag.network.model.head.weights, int(output.answer.logits.argmax())
        speaks = weights[0] != 0 if len(weights) == 1 else weights[index] > weights.mean(dim=0)
        importances.append((output.embedded.responses * speaks).amax(dim=1))
    riders, size, order = selected.clone(), int(selected.sum()), ranking(output.scores)
    for importance in importances:
        riders[ranking(importance)[:size]] = False
    row: Row = {"riders": int(riders.sum()) / size}
    lower = members(order[selected[order]][(size + 1) // 2 :], n_patches=len(bag))
    for name, patches in (("riders", riders), ("lower half", lower)):
        count = int(patches.sum())
        orders = [
            torch.randperm(len(bag), generator=generator)
            for _ in range(RANDOM_DRAWS if count else 0)
        ]
        moved = [abs(judge.remove(members(one[:count], n_patches=len(bag)))) for one in orders]
        row[f"{name} moved"] = abs(judge.remove(patches)) if count else np.nan
        row[f"{name} random"] = float(np.mean(moved)) if count else np.nan
    return row


def compare_seeds(bag: FoldBag, second: FoldBag) -> Row:
    """Jaccard of two runs' patches on one slide."""
    explanations = (bag.explanation, second.explanation)
    size = min(int(one.recovery.selected.sum()) for one in explanations)
    row = {"jaccard chance": size / (2 * len(bag) - size)}
    found: dict[str, list[set[int]]] = {"evidence": [], "sets": [], "attention": []}
    for one in explanations:
        order, selected = ranking(one.output.scores), one.recovery.selected
        found["evidence"].append({*order[selected[order]][:size].tolist()})
        found["sets"].append({*order[selected[order]].tolist()})
        found["attention"].append({*ranking(one.output.full.scores)[:size].tolist()})
    for name, (ours, theirs) in found.items():
        row[f"jaccard {name}"] = len(ours & theirs) / len(ours | theirs)
    return row


def read_answer(logits: Tensor) -> float:
    """The predicted class, or the risk."""
    return float(logits[0]) if len(logits) == 1 else float(logits.argmax())


def add_verdicts(rules: pd.DataFrame) -> pd.DataFrame:
    """One column per verdict, 1 where it holds; judges of another seed have their own."""
    verdicts = {}
    for prefix in [name.removesuffix("odds kept") for name in rules if name.endswith("odds kept")]:
        for name, scale, limit in (
            *((f"{t}", "", t) for t in TOLERANCES),
            ("log-odds", "odds ", LOG_ODDS),
        ):
            kept, removed = (
                rules[f"{prefix}{scale}kept"].abs(),
                rules[f"{prefix}{scale}removed"].abs(),
            )
            verdicts[f"{prefix}{VERDICT} {name}"] = (kept <= limit) & (removed >= limit)
    for limit in TOLERANCES:
        verdicts[f"necessary under transplant {limit}"] = rules["transplant"].abs() >= limit
    return pd.concat([rules, pd.DataFrame(verdicts).astype(float)], axis=1)


def summarise(fold: TrainedFold, slides: pd.DataFrame, rules: pd.DataFrame) -> dict[str, Any]:
    """Every figure of the test slides."""
    by_rule = {rule: rows.reset_index() for rule, rows in rules.groupby("rule", sort=False)}
    columns = {name: slides[name].to_numpy() for name in slides}
    for rule, rows in by_rule.items():
        for name in ("F kept", "F removed", "host removed"):
            columns[f"{rule}: {name}"] = rows[name].to_numpy()
    ours, attention = by_rule["evidence"], by_rule["attention"]
    result: dict[str, Any] = {
        "run": fold.run.name,
        "host": fold.settings.host.name,
        "anchors": fold.model.bank.provenance,
        "seed": fold.settings.seed,
        "slides": len(slides),
        "weight": rounded(fold.model.head.weight),
        "evidence_fraction": rounded(ours["size"].mean()),
        **{f"metric {name}": rounded(metric(columns, name)) for name in ("host", "head", "gce")},
        "gain": interval(len(slides), lambda rows: -lost(columns, "host", "gce", rows)),
        "rules": {},
        "evidence less rival": {},
        "complement": compare_complements(columns),
    }
    means = ["size", *(name for name in rules if VERDICT in name or "transplant " in name)]
    means += ["aukc", "removal", "msk", "msk within", "precision", "ap"]
    for rule, rows in by_rule.items():
        known = [name for name in means if name in rows and rows[name].notna().any()]
        figures = {name: rounded(rows[name].mean()) for name in known}
        figures["metric kept"] = rounded(metric(columns, f"{rule}: F kept"))
        figures["metric removed"] = rounded(metric(columns, f"{rule}: F removed"))
        if "msk" in figures:
            figures["shi"] = rounded(1 - rows["msk"].mean() / attention["msk"].mean())
            figures["keep curve"] = [rounded(rows[f"keep {share}"].mean()) for share in SHARES]
            figures["removal curve"] = [
                rounded(rows[f"removal {share}"].mean()) for share in SHARES
            ]
        result["rules"][rule] = figures
        if rule != "evidence":
            pairs = {
                name: mean_interval(ours[name] - rows[name]) for name in COMPARED if name in rows
            }
            result["evidence less rival"][rule] = {name: one for name, one in pairs.items() if one}
    moved = {
        name: (slides[f"{name} moved"], slides[f"{name} random"])
        for name in ("riders", "lower half")
    }
    result["riders"] = {
        "share": rounded(slides["riders"].mean()),
        "slides": int((slides["riders"] > 0).sum()),
        "F moves without them": {name: rounded(one.mean()) for name, (one, _) in moved.items()},
        "F moves without random patches": {
            name: rounded(other.mean()) for name, (_, other) in moved.items()
        },
        "difference": {name: mean_interval(one - other) for name, (one, other) in moved.items()},
    }
    if slides["confirmed"].notna().any():
        without = slides["target"] == int(fold.model.negative_class)
        shares = [rounded(slides["confirmed"][part].mean()) for part in (without, ~without)]
        result["confirmed"] = {
            "slides": int(without.sum()),
            "without lesion": shares[0],
            "others": shares[1],
        }
    if overlaps := [name for name in slides if name.startswith("jaccard ")]:
        result["jaccard"] = {
            name.removeprefix("jaccard "): rounded(slides[name].mean()) for name in overlaps
        }
    return result


def compare_complements(columns: Columns) -> dict[str, Any]:
    """The metric lost without evidence, attended patches, and all true patches."""
    compared = {
        "F without evidence": ("F", "evidence: F removed"),
        "F without attention": ("F", "attention: F removed"),
        "host without attention": ("host", "attention: host removed"),
        "F without truth (ceiling)": ("F", "F oracle"),
        "host without truth (ceiling)": ("host", "host oracle"),
    }
    losses = {name: lost(columns, *pair) for name, pair in compared.items()}
    result: dict[str, Any] = {name: rounded(loss) for name, loss in losses.items()}
    (ours, pair), *rivals = list(compared.items())[:3]
    for rival, other in rivals:
        result[f"{ours} / {rival}"] = (
            rounded(losses[ours] / losses[rival]) if losses[rival] > 0 else None
        )
        result[f"{ours} - {rival}"] = interval(
            len(columns["F"]),
            lambda rows, it=other: lost(columns, *pair, rows) - lost(columns, *it, rows),
        )
    return result


def lost(
    columns: Columns, full: str, without: str, rows: np.ndarray | slice = slice(None)
) -> float:
    """What the metric loses from one column of answers to another, over the slides that have both."""
    drawn = {name: columns[name][rows] for name in ("target", "event", full, without)}
    known = ~np.isnan(drawn[without])
    drawn = {name: values[known] for name, values in drawn.items()}
    return metric(drawn, full) - metric(drawn, without)


def metric(columns: Columns, name: str) -> float:
    """Macro-F1 of predicted classes, or the C-index of risks; NaN without any answer."""
    known = ~np.isnan(columns[name])
    targets, answers, events = (columns[one][known] for one in ("target", name, "event"))
    if not len(answers):
        return np.nan
    if not np.isnan(events).any():
        try:
            return c_index(answers, targets, events.astype(bool))
        except InputError:
            return np.nan
    is_true, is_said = (one == np.union1d(targets, answers)[:, None] for one in (targets, answers))
    return float(
        (2 * (is_true & is_said).sum(axis=1) / (is_true.sum(axis=1) + is_said.sum(axis=1))).mean()
    )


def interval(n_slides: int, figure: Callable[[np.ndarray], float]) -> list[float | None] | None:
    """A figure of the slides, and its interval; None where there is none."""
    resampled = np.random.default_rng(0).integers(max(1, n_slides), size=(RESAMPLES, n_slides))
    draws = np.array([figure(rows) for rows in resampled]) if n_slides else np.array([])
    if not len(draws := draws[~np.isnan(draws)]):
        return None
    return [
        rounded(one) for one in (figure(np.arange(n_slides)), *np.quantile(draws, [0.025, 0.975]))
    ]


def mean_interval(differences: pd.Series) -> list[float | None] | None:
    """The mean over the slides that have a value, and its interval."""
    values = differences.dropna().to_numpy()
    return interval(len(values), lambda rows: float(values[rows].mean()))


def rounded(value: float) -> float | None:
    """Three digits; null in JSON where there is no value."""
    return None if np.isnan(float(value)) else round(float(value), 3) + 0.0


if __name__ == "__main__":
    main()
