"""A window of bags embedded in one matrix product, against bag after bag: forward and backward of
an optimiser step.

    python benchmarks/window.py [--hosts abmil] [--patches 64 512] [--bags 8] [--width 1024] [--runs
    15]

CPU seconds of one thread, in turn; the ratio is bag after bag over the window. The gradients are
compared too.
"""

from __future__ import annotations

import argparse
import statistics

import torch
import wrapper

from gcemil.hosts.table import HOSTS, create_host
from gcemil.shapes import Logits


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", nargs="+", choices=list(HOSTS), default=["abmil"])
    parser.add_argument("--patches", nargs="+", type=int, default=[64, 512])
    parser.add_argument("--bags", type=int, default=8)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--runs", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.hosts:
        for patches in options.patches:
            compare(name, patches, options)


def compare(name: str, patches: int, options: argparse.Namespace) -> None:
    torch.manual_seed(0)
    host = create_host(name, in_dim=options.width, n_outputs=2).eval()
    bags = [torch.randn(patches, options.width) for _ in range(options.bags)]

    def one_by_one() -> list[Logits]:
        return [host.aggregate(host.embed(bag), None).logits for bag in bags]

    def together() -> list[Logits]:
        embedded = host.embed(torch.cat(bags))
        rows = torch.arange(patches * len(bags)).split(patches)
        return [host.aggregate(embedded.rows(part), None).logits for part in rows]

    gradients = {}

    def learn(arm) -> None:
        host.zero_grad(set_to_none=True)
        torch.stack(arm()).square().sum().backward()
        gradients[arm] = [one.grad.clone() for one in host.parameters() if one.grad is not None]

    pairs = [
        [wrapper.clock(lambda arm=arm: learn(arm))[1] for arm in (one_by_one, together)]
        for _ in range(options.runs + 1)
    ][1:]
    ratio = statistics.median(one / other for one, other in pairs)
    one, other = (
        torch.cat([part.flatten() for part in gradients[arm]]) for arm in (one_by_one, together)
    )
    most = float((one - other).norm() / one.norm())
    print(
        f"{name}, {options.bags} bags of {patches} x {options.width}: one by one "
        f"{1e3 * statistics.median(one for one, _ in pairs):.1f} ms, {ratio:.2f}x the window; "
        f"gradients differ by {most:.0e}"
    )


if __name__ == "__main__":
    main()
