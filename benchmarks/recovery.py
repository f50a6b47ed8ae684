"""Repair of a large bag, ours against recomputing every marginal at each step.

    python benchmarks/recovery.py [--patches 50000] [--anchors 8] [--runs 5] [--json]

Both add the same patches in the same order; the exit code is 1 when they do not, or when ours is less than 50 times
faster. Two bags: a few patches match each anchor strongly, or all of them respond a little.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

from gcemil.evidence.coverage import anchor_coverage, marginal_gains
from gcemil.recovery.recover import recover

REQUIRED_SPEEDUP = 50.0
COVERAGE_TARGET = 0.95


def matching_responses(n_patches: int, n_anchors: int, generator: torch.Generator) -> Tensor:
    """Background near 0.001; one patch in a thousand matches one anchor at up to 0.3."""
    responses = 0.002 * torch.rand(n_patches, n_anchors, generator=generator)
    matches = torch.randperm(n_patches, generator=generator)[: n_patches // 1000]
    anchors = torch.randint(n_anchors, (len(matches),), generator=generator)
    responses[matches, anchors] = 0.3 * torch.rand(len(matches), generator=generator)
    return responses


def diffuse_responses(n_patches: int, n_anchors: int, generator: torch.Generator) -> Tensor:
    """Every patch responds to every anchor with at most 0.1."""
    return 0.1 * torch.rand(n_patches, n_anchors, generator=generator) ** 4


BAGS: dict[str, Callable[[int, int, torch.Generator], Tensor]] = {
    "matching": matching_responses,
    "diffuse": diffuse_responses,
}


def recovered_by_recomputing(gates: Tensor, responses: Tensor, weights: Tensor) -> list[int]:
    """Algorithm 1 as it is written: all marginals and all coverages from scratch in every step."""
    selected = torch.zeros_like(gates)
    selected[gates.argmax()] = 1.0
    added = []
    while bool((anchor_coverage(selected, responses) < COVERAGE_TARGET).any()):
        gains = marginal_gains(selected, responses, weights).masked_fill(selected == 1, -1.0)
        patch = int(gains.argmax())
        selected[patch] = 1.0
        added.append(patch)
    return added


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measured(kind: str, *, n_patches: int, n_anchors: int, runs: int, seed: int) -> dict[str, object]:
    generator = torch.Generator().manual_seed(seed)
    responses = BAGS[kind](n_patches, n_anchors, generator).double()
    gates = 0.4 * torch.rand(n_patches, generator=generator).double()
    weights = (0.5 + torch.rand(n_anchors, generator=generator)).double()

    recovery = recover(gates, responses, weights, coverage_target=COVERAGE_TARGET)
    ours = statistics.median(
        seconds(lambda: recover(gates, responses, weights, coverage_target=COVERAGE_TARGET))
        for _ in range(runs)
    )
    start = time.perf_counter()
    reference = recovered_by_recomputing(gates, responses, weights)
    recomputing = time.perf_counter() - start
    return {
        "bag": kind,
        "patches": n_patches,
        "anchors": n_anchors,
        "added": len(reference),
        "stop_reason": str(recovery.stop_reason),
        "same_subset": recovery.added.tolist() == reference,
        "recomputing_s": recomputing,
        "ours_s": ours,
        "ms_per_100_additions": 1e5 * ours / max(1, len(reference)),
        "speedup": recomputing / ours,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--patches", type=int, default=50_000)
    parser.add_argument("--anchors", type=int, default=8)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    args = parser.parse_args()
    rows = [
        measured(kind, n_patches=args.patches, n_anchors=args.anchors, runs=args.runs, seed=args.seed)
        for kind in BAGS
    ]
    if args.json:
        print(json.dumps(rows, indent=2))
    else:
        print(
            f"{'bag':10}{'added':>7}{'recomputing':>14}{'ours':>10}{'per 100':>10}{'speedup':>9}  same subset"
        )
        for row in rows:
            print(
                f"{row['bag']:10}{row['added']:>7}{row['recomputing_s']:>12.2f} s{1e3 * row['ours_s']:>7.1f} ms"
                f"{row['ms_per_100_additions']:>7.1f} ms{row['speedup']:>8.0f}x  {row['same_subset']}"
            )
    passed = all(row["same_subset"] and row["speedup"] >= REQUIRED_SPEEDUP for row in rows)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
