"""regions: patches that belong together as units of keeping and removing.

  region          selected patches whose cells touch at a side or at a corner (8-neighbourhood)
  mass            sum over the region of softmax(s) over the bag, s the scores of the rule
  sufficient      |Phi(X_R) - Phi(X)|    <= delta_s    the region alone keeps the prediction
  necessary       |Phi(X_notR) - Phi(X)| >= delta_n    without the region the prediction moves
  regions needed  the smallest j of which the j regions of largest mass are sufficient together

Regions are numbered by mass, the largest first. At most `limit` of a bag are kept and removed by
themselves, because a scattered subset has a region per patch. A bag without coordinates has none.

Rules (rules.py), each at the size of the recovered evidence: evidence, attention, random, oracle.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gcemil.bags.bag import Bag, connected_regions, coordinate_step, patch_cells
from gcemil.diagnostics.rules import take_subsets
from gcemil.diagnostics.snr import BagOutcome, OutputScale, Tolerances, judge_subset
from gcemil.diagnostics.trained_fold import Measure, Pass, PredictedBag, TrainedFold, prefix_logits
from gcemil.errors import UsageError
from gcemil.findings import Finding, mean_rows
from gcemil.records import RegionVerdict
from gcemil.recovery import ranking
from gcemil.shapes import Scores, Selected

MAX_REGIONS = 16
"""Regions of a bag that are kept and removed one by one."""


@dataclass(frozen=True, eq=False)
class Regions:
    """The regions of a set of patches of one bag."""

    number: Int[Tensor, "n"]
    """From 1 by mass, 0 for a patch that is not in the set."""
    masses: Float[Tensor, "r"]

    def __len__(self) -> int:
        return len(self.masses)

    def members(self, number: int) -> Selected:
        """The patches of one region."""
        return self.number == number

    @property
    def sizes(self) -> Int[Tensor, "r"]:
        """Patches of each region."""
        return torch.bincount(self.number, minlength=len(self) + 1)[1:]


def find_regions(bag: Bag, selected: Selected, scores: Scores) -> Regions | None:
    """The regions of the selected patches, largest mass first; None without coordinates."""
    if bag.coords is None:
        return None
    # Slides of a case lie apart in its bag, so that no region crosses from one to another.
    cells = patch_cells(bag.coords, bag.patch_size or coordinate_step(bag.coords))
    region = torch.from_numpy(connected_regions(cells, selected.cpu().numpy()))
    weights = torch.softmax(scores.detach().cpu().double(), dim=0)
    masses = torch.zeros(int(region.max()) + 1, dtype=torch.float64)
    masses = masses.index_add(0, region, weights)[1:]
    order = ranking(masses)
    number_of = torch.zeros(len(masses) + 1, dtype=torch.long)
    number_of[order + 1] = torch.arange(1, len(order) + 1)
    return Regions(number_of[region], masses[order])


@dataclass(frozen=True)
class RegionJudge:
    """How the regions of one network's bags are judged."""

    output_scale: OutputScale
    tolerances: Tolerances
    limit: int = MAX_REGIONS
    """Regions that get a verdict, largest mass first."""

    @torch.no_grad()
    def judge(
        self, outcome_of: Callable[[Selected], BagOutcome], bag: Bag, regions: Regions
    ) -> list[RegionVerdict]:
        """Every region by itself; those beyond the limit are listed without a verdict."""
        facts = zip(regions.masses.tolist(), regions.sizes.tolist(), strict=True)
        verdicts = []
        for number, (mass, size) in enumerate(facts, start=1):
            members = regions.members(number)
            first = int(members.int().argmax())
            slide_id = next(span.slide_id for span in bag.spans if span.start <= first < span.stop)
            region = RegionVerdict(number, slide_id, size, mass)
            if number <= self.limit:
                outputs = self.output_scale.read(outcome_of(members))
                verdict = judge_subset(outputs, self.tolerances)
                region = replace(
                    region,
                    kept=outputs.kept,
                    removed=outputs.removed,
                    sufficient=verdict.sufficient,
                    necessary=verdict.necessary,
                )
            verdicts.append(region)
        return verdicts

    @torch.no_grad()
    def count_needed(self, view: PredictedBag, regions: Regions) -> int | None:
        """How many regions are sufficient together, if those within the limit are."""
        full, count = view.full.logits, min(self.limit, len(regions))
        order = torch.cat(
            [regions.members(number).nonzero().squeeze(1) for number in range(1, count + 1)]
        )
        ends = regions.sizes.cumsum(0)[:count].tolist()
        whole = self.output_scale.output(full, full)
        for needed, logits in enumerate(prefix_logits(view, order, ends), start=1):
            if abs(self.output_scale.output(full, logits) - whole) <= self.tolerances.sufficiency:
                return needed
        return None


@Measure
def measure_regions(
    fold: TrainedFold,
    *,
    sufficiency_tolerance: float = 0.05,
    necessity_tolerance: float = 0.05,
    budget: float | None = None,
    max_regions: int = MAX_REGIONS,
) -> Pass[Finding]:
    """Regions of every rule on the test bags; `budget` is for a run without a wrapper."""
    if max_regions < 1:
        raise UsageError(f"max_regions is at least 1, got {max_regions}.")
    tolerances = Tolerances(sufficiency_tolerance, necessity_tolerance)
    budget = fold.own_budget if budget is None else budget
    judges = {
        network: RegionJudge(fold.output_scale(network), tolerances, max_regions)
        for network in fold.networks
    }
    records: list[dict[str, Any]] = []
    placeless: list[str] = []
    while (bag := (yield "test")) is not None:
        if bag.bag.coords is None:
            placeless.append(bag.spec.bag_id)
            continue
        for network, judge in judges.items():
            view = bag.predict(network)
            for subset in take_subsets(bag, network, budget=budget):
                regions = find_regions(bag.bag, subset.selected, subset.scores)
                if regions is not None:
                    labels = {"bag_id": bag.spec.bag_id, "rule": subset.rule, "network": network}
                    records.append({**labels, **region_figures(bag.bag, view, regions, judge)})
    notes = []
    if placeless:
        notes.append(
            f"Excluded: {len(placeless)} bags without coordinates ('{placeless[0]}'), "
            "which have no regions."
        )
    if any(one["regions_per_slide"] > max_regions for one in records):
        notes.append(
            f"For a subset with more than {max_regions} regions, the {max_regions} of largest "
            "score mass are judged."
        )
    return Finding(
        name="regions",
        rows=mean_rows(records, ("rule", "network")),
        slides=tuple(records),
        notes=tuple(notes),
        settings={"budget": budget},
    )


def region_figures(
    bag: Bag, view: PredictedBag, regions: Regions, judge: RegionJudge
) -> dict[str, Any]:
    """Figures and verdicts of the regions of one rule."""
    verdicts = judge.judge(view.outcome, bag, regions)
    needed = judge.count_needed(view, regions)
    return {
        "regions_per_slide": float(len(verdicts)),
        "region_patches": sum(one.n_patches for one in verdicts) / len(verdicts),
        "region_sufficient_share": float(any(one.sufficient for one in verdicts)),
        "region_necessary_share": float(any(one.necessary for one in verdicts)),
        "regions_reached_share": float(needed is not None),
        "regions_needed": None if needed is None else float(needed),
        "regions": [asdict(one) for one in verdicts[: judge.limit]],
    }
