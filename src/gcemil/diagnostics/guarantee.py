"""guarantee: evidence sizes at which the evidence keeps the prediction with high probability.

The validation part calibrates, the test part checks the guarantee. A rule ranks the patches of a
bag; its evidence of size f is the first share f of them.

  realised_rate     share of test bags whose evidence of the promised size agrees with the whole bag
  fallback_share    test bags that show the whole bag: those that disagree, or all of them when no
                    size could be certified
  guarded_fraction  mean share of patches shown once these bags show everything; the agreement is 1

Agreement is the same class, or a risk within `risk_tolerance` training deviations. Sizes are
fractions of the bag on a grid that ends with 1, the whole bag, which agrees with itself.

  conformal        stable size of a bag = the smallest size from which on it always agrees
                   size = the ceil((n + 1)(1 - alpha))-th smallest stable size of n bags
                   promise: a new exchangeable bag agrees with probability >= 1 - alpha, over
                   calibration and new bag (for 0/1 losses made monotone in this way, conformal risk
                   control gives the same size)
  learn then test  p(size) = P(Binomial(n, alpha) <= failures at this size), tested from the largest
                   size down until one p > 1 - confidence; the last size that passed
                   promise: with the stated confidence over the calibration, new bags agree at a
                   rate >= 1 - alpha (a fixed sequence needs no correction, and no monotony)

Few bags are not enough: conformal needs n >= 1 / alpha - 1, learn then test
n >= log(1 - confidence) / log(1 - alpha) even if nothing ever fails. Below that, and when the
calibration bags fail too often, the size is 1 and nothing is certified.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from scipy.special import bdtr
from scipy.stats import betabinom, binom

from gcemil.diagnostics.rules import score_rules
from gcemil.diagnostics.snr import RISK_TOLERANCE, OutputScale
from gcemil.diagnostics.trained_fold import (
    Measure,
    NetworkName,
    PartName,
    Pass,
    TrainedFold,
    prefix_logits,
)
from gcemil.diagnostics.truth import average_precision
from gcemil.errors import UsageError
from gcemil.findings import Figures, Finding, Labels, Row, mean_row
from gcemil.recovery import rank_scores, ranking, subset_size

FRACTIONS = (0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
SELECTION_NOTE = (
    "The validation part calibrates and has also chosen the epoch, so it is exchangeable with the "
    "test part but for that choice."
)
RuleKey = tuple[str, NetworkName]

Agreement = Bool[np.ndarray, "n s"]
"""Whether calibration bag n agrees at size s."""

WHOLE_BAG = 1.0
FLOOR_LEVEL = 0.05


@dataclass(frozen=True)
class Certificate:
    """A size and what is promised of it."""

    fraction: float
    """1 when nothing smaller could be certified."""
    certified: bool
    n_bags: int
    alpha: float
    rank: int | None = None
    """Conformal: which of the sorted stable sizes was taken."""

    def realised_floor(self, n_test: int) -> float:
        """A rate that a true guarantee falls below in at most one of twenty tests of this size."""
        if not self.certified:
            return 1.0
        if self.rank is None:
            return float(binom.ppf(FLOOR_LEVEL, n_test, 1 - self.alpha)) / n_test
        # The rate at an order statistic of n is Beta(rank, n + 1 - rank), or higher if sizes tie.
        law = betabinom(n_test, self.rank, self.n_bags + 1 - self.rank)
        return float(law.ppf(FLOOR_LEVEL)) / n_test


def conformal_certificate(
    agrees: Agreement, fractions: Sequence[float], *, alpha: float
) -> Certificate:
    """The size that a share 1 - alpha of new bags does not need to exceed."""
    # (9 + 1)(1 - 0.1) is 9, not the 9.000000000000002 of floats.
    rank = max(1, math.ceil((len(agrees) + 1) * (1 - alpha) - 1e-9))
    if rank > len(agrees):
        return Certificate(WHOLE_BAG, False, len(agrees), alpha)
    size = float(np.sort(stable_sizes(agrees, fractions))[rank - 1])
    return Certificate(size, size < WHOLE_BAG, len(agrees), alpha, rank=rank)


def binomial_certificate(
    agrees: Agreement, fractions: Sequence[float], *, alpha: float, confidence: float = 0.9
) -> Certificate:
    """The last size on the way down at which failures are too few for a rate above alpha."""
    size = WHOLE_BAG
    # The whole bag cannot fail, so it needs no test.
    for column in range(len(fractions) - 2, -1, -1):
        failures = int((~agrees[:, column]).sum())
        # Powers of 1 - alpha reach the bound exactly, so rounding must not decide.
        if failure_p_value(failures, len(agrees), alpha=alpha) > (1 - confidence) * (1 + 1e-12):
            break
        size = float(fractions[column])
    return Certificate(size, size < WHOLE_BAG, len(agrees), alpha)


def stable_sizes(agrees: Agreement, fractions: Sequence[float]) -> Float[np.ndarray, "n"]:
    """For each bag the smallest size from which on it always agrees."""
    settled = np.logical_and.accumulate(agrees[:, ::-1], axis=1)[:, ::-1]
    return np.asarray(fractions, dtype=np.float64)[settled.argmax(axis=1)]


def failure_p_value(failures: int, n_bags: int, *, alpha: float) -> float:
    """How likely so few failures are when bags fail at rate alpha; 1 without bags."""
    return float(bdtr(failures, n_bags, alpha)) if n_bags else 1.0


def bags_needed(alpha: float, confidence: float | None = None) -> int:
    """The least number of bags that can certify: conformal, or tested at a confidence."""
    if confidence is None:
        return math.ceil(1 / alpha - 1 - 1e-9)
    return math.ceil(math.log(1 - confidence) / math.log(1 - alpha) - 1e-9)


@dataclass(frozen=True, eq=False)
class RankedBag:
    """One ranking of one bag."""

    bag_id: str
    agrees: Bool[np.ndarray, "s"]
    """Whether it agrees at each size."""
    shown: Float[np.ndarray, "s"]
    """The share of its patches that each size really is."""
    average_precision: float | None = None


@Measure
def measure_guarantee(
    fold: TrainedFold,
    *,
    alpha: float = 0.1,
    confidence: float = 0.9,
    fractions: Sequence[float] = FRACTIONS,
    risk_tolerance: float = RISK_TOLERANCE,
) -> Pass[Finding]:
    """Promised and realised agreement of every ranking, under both methods."""
    for name, level in (("alpha", alpha), ("confidence", confidence)):
        if not 0 < level < 1:
            raise UsageError(f"{name} lies in (0, 1), got {level}.")
    rising = all(low < high for low, high in pairwise(fractions))
    if not fractions or not rising or fractions[0] <= 0 or fractions[-1] != WHOLE_BAG:
        raise UsageError(
            f"Sizes are rising fractions of the bag that end with 1, got {list(fractions)}."
        )
    fold.require_parts("a guarantee is made on val and shown on test")
    scales = {
        name: fold.output_scale(name, risk_tolerance=risk_tolerance) for name in fold.networks
    }
    calibration = yield from _rank_bags(fold, "val", scales, fractions)
    test = yield from _rank_bags(fold, "test", scales, fractions)
    rows, slides, notes = [], [], [SELECTION_NOTE]
    # A rule must exist on every bag of both parts; an oracle needs truth everywhere.
    complete = [
        key
        for key in test
        if len(test[key]) == len(fold.specs("test"))
        and len(calibration.get(key, ())) == len(fold.specs("val"))
    ]
    for key in complete:
        agrees = np.stack([bag.agrees for bag in calibration[key]])
        certificates = {
            "conformal": conformal_certificate(agrees, fractions, alpha=alpha),
            "learn_then_test": binomial_certificate(
                agrees, fractions, alpha=alpha, confidence=confidence
            ),
        }
        for method, certificate in certificates.items():
            labels = {"rule": key[0], "network": key[1], "method": method}
            row, lines = show_guarantee(labels, certificate, test[key], fractions)
            rows.append(row)
            slides += lines
            notes += explain_refusal(labels, certificate, confidence)
    return Finding(
        "guarantee", tuple(rows), slides=tuple(slides), notes=tuple(dict.fromkeys(notes))
    )


def _rank_bags(
    fold: TrainedFold,
    part: PartName,
    scales: dict[NetworkName, OutputScale],
    fractions: Sequence[float],
) -> Pass[dict[RuleKey, list[RankedBag]]]:
    """Agreement of every bag of a part at every size, by rule and network."""
    ranked: dict[RuleKey, list[RankedBag]] = {}
    generator = torch.Generator().manual_seed(fold.seed)
    while (bag := (yield part)) is not None:
        random = rank_scores(torch.randperm(len(bag), generator=generator))
        sizes = [subset_size(len(bag), fraction) for fraction in fractions]
        truth = bag.truth if bag.has_true_evidence else None
        for network, output_scale in scales.items():
            view = bag.predict(network)
            for rule, scores in score_rules(bag, network, random=random).items():
                order = ranking(scores)
                agrees = output_scale.agree(view.full.logits, prefix_logits(view, order, sizes))
                # Near a tie between classes the two ways to pool a whole bag may round apart.
                agrees = agrees | (torch.tensor(sizes) == len(bag))
                precision = None if truth is None else average_precision(rank_scores(order), truth)
                one = RankedBag(
                    bag.bag.bag_id, agrees.numpy(), np.array(sizes) / len(bag), precision
                )
                ranked.setdefault((rule, network), []).append(one)
    return ranked


def show_guarantee(
    labels: Labels, certificate: Certificate, bags: Sequence[RankedBag], fractions: Sequence[float]
) -> tuple[Row, list[dict[str, Any]]]:
    """The certificate of validation bags, and every test bag at the certified size."""
    column = list(fractions).index(certificate.fraction)
    figures: Figures = {
        "promised_rate": 1 - certificate.alpha,
        "realised_floor": certificate.realised_floor(len(bags)),
        "certified_share": float(certificate.certified),
        "certified_fraction": certificate.fraction,
        "calibration_bags": float(certificate.n_bags),
    }
    records: list[Figures] = []
    slides = []
    for bag in bags:
        agrees, shown = bool(bag.agrees[column]), float(bag.shown[column])
        falls_back = not (agrees and certificate.certified)
        slide = {"agrees": agrees, "evidence_fraction": shown, "falls_back": falls_back}
        slides.append({"bag_id": bag.bag_id, **labels, **slide})
        records.append(
            {
                **figures,
                "realised_rate": float(agrees),
                "evidence_fraction": shown,
                "fallback_share": float(falls_back),
                "guarded_fraction": 1.0 if falls_back else shown,
                "average_precision": bag.average_precision,
            }
        )
    return mean_row(labels, records), slides


def explain_refusal(labels: Labels, certificate: Certificate, confidence: float) -> list[str]:
    """Why nothing was certified, if so; too few bags are the same reason for every rule."""
    if certificate.certified:
        return []
    method, promise, n_bags = labels["method"], f"{1 - certificate.alpha:g}", certificate.n_bags
    needed = bags_needed(certificate.alpha, None if method == "conformal" else confidence)
    if n_bags < needed:
        return [
            f"{method}: {n_bags} calibration bags cannot certify a rate of {promise}, it takes at "
            f"least {needed}. Every slide falls back to the whole bag."
        ]
    return [
        f"{method}, {labels['rule']} ({labels['network']}): too many of {n_bags} calibration bags "
        f"change their output at every size below the whole bag to certify a rate of {promise}. "
        "Every slide falls back to the whole bag."
    ]
