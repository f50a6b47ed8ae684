"""cost: each inference mode relative to one pass of the host over the whole bag.

The cost table of the paper.

  full         the host on all patches
  soft         gates from the selector, then the host on the gated bag
  discrete     the host on the recovered evidence
  attention, occlusion, integrated_gradients
               the host on as many patches, by attention, loss without each, or attribution
  prefilter    the host on the evidence among the patches a prefilter kept, or on all of a fallback
  random, oracle   the host on as many patches, at random and true ones first, for comparison

  aggregation_time   one prediction when the subset is known and its features are cached
  explained_time     the same with finding the subset
  peak_memory        rows handed in plus what the pass holds at once, when the subset is known
  patch_ratio        patches the host pools
  relative_utility   task metric over the task metric of the whole bags

Plain occlusion is one pass per patch: some passes are timed and multiplied, and the row is labelled
`extrapolated`. Hosts that pool linearly have it in closed form, a row of its own. Times are medians
of interleaved runs, so that a busy machine slows all of them; figures are means over bags.

The whole bag is the plain host's if there is one, else the wrapped host's own. Encoding is not part
of these figures. With `encoders` the seconds per patch of their architectures are timed, and rows
that name the encoder count from patches to the explained prediction. From file to prediction
'gcemil prefilter --measure' times the test slides:

  extraction_time    tissue, view, student and encoder, whole bag = 1
  end_to_end_time    the same with the explained prediction

Peak memory is the most that tensors made by a call hold at one moment: a storage counts from the
operation that returns it until it is freed. Tensors from before the call do not count, nor do
buffers inside one kernel. Against torch's profiler seven of the nine hosts agree to the byte; with
Nystrom attention this is 13 % low at 3,000 patches. Unlike the resident size of a process it has no
noise.
"""

from __future__ import annotations

import itertools
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gcemil.config import RANDOM_PREFIX
from gcemil.diagnostics.attribution import supported_attributions
from gcemil.diagnostics.rules import take_subsets
from gcemil.diagnostics.snr import task_metric
from gcemil.diagnostics.trained_fold import (
    DEFAULT_BUDGET,
    FoldBag,
    Measure,
    NetworkName,
    Pass,
    PredictedBag,
    TrainedFold,
    predict_bag,
)
from gcemil.errors import RunError, UsageError
from gcemil.explanation import Interventions, read_evidence_output, recover_evidence
from gcemil.features.encoders import find_encoder_spec
from gcemil.features.loaders import WeightSource
from gcemil.findings import Finding, Labels, mean_rows
from gcemil.hosts.host import Host
from gcemil.prefilter.cost import (
    PREFILTER_MODE,
    PrefilterCost,
    add_encoding_cost,
    describe_encoding,
    read_matching_cost,
    time_prefilter,
)
from gcemil.recovery import members, subset_size, top_k
from gcemil.rules import CONTROLS
from gcemil.runs.folder import Run
from gcemil.shapes import Logits, Selected
from gcemil.tasks.task import stacked_targets

Clock = Callable[[], float]
Call = Callable[[], Any]
CLOSED_FORM = "occlusion_closed_form"
GRADIENTS = "integrated_gradients"
TIMED_PATCHES = 8


class InferenceMode(NamedTuple):
    """One way to predict a bag."""

    name: str
    network: NetworkName
    selected: Selected
    """The patches the host pools."""
    predict: Call
    """Gives logits, the subset being known."""
    handed: Sequence[Tensor | None]
    explain: Call | None = None
    """Finds the subset as well; None if there is nothing to find."""


@Measure
@torch.no_grad()
def measure_inference_cost(
    fold: TrainedFold,
    *,
    budget: float = DEFAULT_BUDGET,
    repeats: int = 3,
    timed_bags: int = 6,
    encoders: Sequence[str] = (),
    clock: Clock = time.perf_counter,
) -> Pass[Finding]:
    """Utility from every test bag, cost from `timed_bags` of them; `budget` is for plain hosts."""
    encoding = {name: time_encoder(name, repeats=min(3, repeats), clock=clock) for name in encoders}
    if repeats < 1 or timed_bags < 1:
        raise UsageError(f"repeats and timed_bags are at least 1, got {repeats} and {timed_bags}.")
    logits: dict[str, list[Logits]] = {}
    slides: list[dict[str, Any]] = []
    folder = Run(fold.run).fold(fold.fold).path
    filtered = None if fold.model is None else read_matching_cost(folder, fold.specs())
    every = -(-len(fold.specs()) // timed_bags)
    numbers = itertools.count()
    while (bag := (yield "test")) is not None:
        modes = list(list_modes(bag, budget, filtered))
        for mode in modes:
            logits.setdefault(mode.name, []).append(mode.predict())
        if next(numbers) % every == 0:
            facts = {"bag_id": bag.spec.bag_id, "n_patches": len(bag)}
            slides += [
                facts | figures for figures in measure_modes(bag, modes, repeats, clock, encoding)
            ]
    utility = {
        mode: task_metric(fold.task, stacked_targets(fold.specs()), predicted)
        for mode, predicted in logits.items()
    }
    rows = []
    for row in mean_rows(slides, ("mode", "network", "timing", "encoder")):
        row.values["relative_utility"] = find_utility(row.labels["mode"], utility)
        rows.append(row if "encoder" in row.labels else add_encoding_cost(row, filtered))
    rows += time_prefilter(filtered, encoding)
    return Finding(
        name="cost",
        rows=tuple(rows),
        slides=tuple(slides),
        notes=tuple(cost_notes(fold, utility, filtered)),
        settings={
            "bags": len(fold.specs()),
            "timed_bags": len(range(0, len(fold.specs()), every)),
            "timed_occlusions_per_bag": repeats,
            "encoding_seconds_per_patch": encoding,
            "clock": getattr(clock, "__name__", str(clock)),
            "threads": torch.get_num_threads(),
            "budget": None if fold.model is not None else budget,
        },
    )


def list_modes(
    bag: FoldBag, budget: float, filtered: PrefilterCost | None
) -> Iterator[InferenceMode]:
    """Every mode of the bag; the whole bag comes first, controls and the prefilter last."""
    fold, features, coords = bag.fold, bag.features, bag.coords
    network = fold.networks[0]
    host = fold.host_of(network)
    everyone, handed = torch.ones(len(bag), dtype=torch.bool), (features, coords)
    yield InferenceMode("full", network, everyone, lambda: host(features, coords).logits, handed)
    size = subset_size(len(bag), budget)
    model, explanation = fold.model, bag.explanation
    subset_mode = partial(_subset_mode, bag, network, host)
    explained_mode = partial(_subset_mode, bag, "wrapped", fold.explained)
    if model is not None and explanation is not None:
        patch_size, evidence = bag.bag.patch_size, explanation.recovery.selected
        size = int(evidence.sum())

        def predict_gated() -> Logits:
            return model.gated(features, coords, patch_size=patch_size).logits

        def find_evidence() -> Logits:
            output = read_evidence_output(model, features, coords, patch_size)
            embedded = Interventions(fold.explained, features, coords, embedded=output.embedded)
            return embedded.kept(recover_evidence(model, output, coords).selected).logits

        yield InferenceMode("soft", "wrapped", everyone, predict_gated, handed)
        yield explained_mode("discrete", evidence, find_evidence)

    def find_attended() -> Logits:
        embedded = Interventions(host, features, coords)
        return embedded.kept(top_k(embedded.full().scores, size)).logits

    attended = top_k(bag.predict(network).full.scores, size)
    yield subset_mode("attention", attended, find_attended)
    supported = supported_attributions(host)
    for mode, name in ((CLOSED_FORM, "occlusion"), (GRADIENTS, GRADIENTS)):
        if name in supported:

            def choose(
                scores: Callable[[PredictedBag], Tensor] = supported[name].scores,
            ) -> Selected:
                return top_k(scores(predict_bag(host, features, coords)), size)

            def find_attributed(choose: Callable[[], Selected] = choose) -> Logits:
                return Interventions(host, features, coords).kept(choose()).logits

            yield subset_mode(mode, choose(), find_attributed)
    for subset in take_subsets(bag, network, budget=budget):
        if subset.rule in CONTROLS:
            yield subset_mode(subset.rule, subset.selected)
    if filtered is not None:
        slide = next(one for one in filtered.slides if one.bag_id == bag.spec.bag_id)
        if slide.n_patches != len(bag):
            raise RunError(
                f"Slide '{slide.bag_id}' had {slide.n_patches} patches when the prefilter was "
                f"measured, now {len(bag)}. Measure again with 'gcemil prefilter --measure'."
            )
        left = members(torch.tensor(slide.selected, dtype=torch.long), n_patches=len(bag))
        yield explained_mode(PREFILTER_MODE, left)


def _subset_mode(
    bag: FoldBag,
    network: NetworkName,
    host: Host,
    mode: str,
    selected: Selected,
    explain: Call | None = None,
) -> InferenceMode:
    """The host on some rows, as if only they had been read."""
    rows = bag.features[selected]
    coords = None if bag.coords is None else bag.coords[selected]
    return InferenceMode(
        mode, network, selected, lambda: host(rows, coords).logits, (rows, coords), explain
    )


def time_encoder(name: str, *, repeats: int, clock: Clock) -> float:
    """Seconds per patch of an encoder's architecture with random weights."""
    spec = find_encoder_spec(RANDOM_PREFIX + name)
    network = spec.load(WeightSource()).eval()
    patches = torch.zeros(TIMED_PATCHES, 3, spec.input_px, spec.input_px)
    network(patches)
    return time_interleaved({name: lambda: network(patches)}, repeats, clock)[name] / TIMED_PATCHES


def measure_modes(
    bag: FoldBag,
    modes: Sequence[InferenceMode],
    repeats: int,
    clock: Clock,
    encoding: Mapping[str, float],
) -> Iterator[dict[str, Any]]:
    """Labels, time and memory of each mode on one bag, over those of the first.

    With an encoder before it also the time from patches to the explained prediction.
    """
    full, n_patches = modes[0], len(bag)
    calls = {f"predict {mode.name}": mode.predict for mode in modes}
    calls |= {f"explain {mode.name}": mode.explain for mode in modes if mode.explain is not None}
    if n_patches > 1:
        interventions = bag.predict(full.network).interventions
        # All patches but one; each turn another, spread over the bag.
        left_out = iter([turn * 7919 % n_patches for turn in range(repeats)])
        calls["one out"] = lambda: interventions.kept(torch.arange(n_patches) != next(left_out))
    memory = {
        mode.name: peak_bytes(mode.predict)
        + sum(one.numel() * one.element_size() for one in mode.handed if one is not None)
        for mode in modes
    }
    seconds = time_interleaved(calls, repeats, clock)
    unit = seconds["predict full"]

    def describe(
        labels: Labels, mode: InferenceMode, explained: float | None
    ) -> Iterator[dict[str, Any]]:
        if explained is not None:
            for name, per_patch in encoding.items():
                whole = n_patches * per_patch
                ratio = (whole + explained) / (whole + unit)
                yield {**labels, "encoder": name, "extraction_time": 1.0, "end_to_end_time": ratio}
        yield {
            **labels,
            "aggregation_time": seconds[f"predict {mode.name}"] / unit,
            "explained_time": None if explained is None else explained / unit,
            "peak_memory": memory[mode.name] / memory["full"],
            "patch_ratio": float(mode.selected.double().mean()),
        }

    for mode in modes:
        explained = seconds.get(f"explain {mode.name}", seconds[f"predict {mode.name}"])
        # A prefilter finds its subset while it encodes; controls are not inference modes.
        is_timed_alone = mode.name != PREFILTER_MODE and mode.name not in CONTROLS
        labels = {"mode": mode.name, "network": mode.network, "timing": "measured"}
        yield from describe(labels, mode, explained if is_timed_alone else None)
    kept = next(mode for mode in modes if mode.name == "attention")
    labels = {"mode": "occlusion", "network": full.network, "timing": "extrapolated"}
    explained = unit + n_patches * seconds.get("one out", 0.0) + seconds["predict attention"]
    yield from describe(labels, kept, explained)


def time_interleaved(calls: dict[str, Call], repeats: int, clock: Clock) -> dict[str, float]:
    """The median time of each call; every round starts with another one."""
    names = list(calls)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(repeats):
        start = turn % len(names)
        for name in names[start:] + names[:start]:
            before = clock()
            calls[name]()
            seconds[name].append(clock() - before)
    return {name: median(times) for name, times in seconds.items()}


def find_utility(mode: str, utility: Mapping[str, float]) -> float | None:
    """The metric of a mode over that of whole bags; None if it was never predicted from."""
    # The closed form gives the very scores that one pass per patch gives.
    ours = utility.get(CLOSED_FORM if mode == "occlusion" else mode)
    return None if ours is None or utility["full"] == 0 else ours / utility["full"]


def cost_notes(
    fold: TrainedFold, utility: dict[str, float], filtered: PrefilterCost | None
) -> Iterator[str]:
    yield describe_encoding(filtered)
    if fold.model is None:
        yield "The run has no wrapper: no rows 'soft' and 'discrete'."
    if CLOSED_FORM not in utility:
        yield (
            "This host has no closed form of occlusion, so its utility is not known here; see the "
            "diagnostic posthoc."
        )
    if utility["full"] == 0:
        yield "The task metric of the whole bags is 0, so no relative utility exists."


def peak_bytes(call: Callable[[], object]) -> int:
    """Bytes of tensors that were alive at once while the call ran."""
    with LiveStorages() as watch:
        call()
    return watch.peak


class LiveStorages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of storages that operations made and that are not freed yet."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._alive = 0
        self._known: dict[int, int] = {}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {storage.data_ptr() for storage in list_storages((args, kwargs))}
        for storage in list_storages(result):
            place, size = storage.data_ptr(), storage.nbytes()
            # A view shares the storage of what it was made from.
            if size and place not in given and place not in self._known:
                self._known[place] = size
                self._alive += size
                weakref.finalize(storage, self._freed, place)
        self.peak = max(self.peak, self._alive)
        return result

    def _freed(self, place: int) -> None:
        self._alive -= self._known.pop(place)


def list_storages(values: Any) -> list[torch.UntypedStorage]:
    """The storages of every dense tensor in a nested value."""
    tensors = [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]
    return [tensor.untyped_storage() for tensor in tensors if tensor.layout == torch.strided]
