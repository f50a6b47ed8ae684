"""One slide explained: its evidence, or the host's attention, kept and removed under the network of one fold, or of several.

The slide is of the run's cohort (explain_cohort.py), or new: then its bag is made from a feature file or a slide file, and
nothing of the cohort is needed. Several folds choose patches each for itself; those that most of them chose are kept and
removed under their mean prediction (runs/consensus.py). With `unit="region"` every connected region of the patches is kept and removed by itself too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal

import numpy as np
import torch

from gcemil.bags.bag import Bag, grid_stride
from gcemil.config import TrainSettings
from gcemil.diagnostics.regions import RegionJudge, find_regions
from gcemil.diagnostics.snr import (
    BagOutputs,
    OutputScale,
    RiskScale,
    Tolerances,
    bag_outcome,
    judge_subset,
)
from gcemil.diagnostics.subsets import find_further_sets
from gcemil.diagnostics.trained_fold import (
    DEFAULT_BUDGET,
    FoldNetwork,
    NetworkBag,
    PredictedBag,
    predict_bag,
    read_risk_scale,
)
from gcemil.errors import BagError, UsageError
from gcemil.explanation import Explanation, Interventions, explain_bag, slide_evidence
from gcemil.exports.certificate import (
    NEW,
    AnchorCoverage,
    Certificate,
    Consensus,
    Prediction,
    Predictions,
    Subject,
    Verdict,
    VerdictName,
)
from gcemil.exports.geojson import SlideRegions
from gcemil.exports.overlay import SlidePlace
from gcemil.exports.slide_export import ExplainedSlide
from gcemil.metrics import TASKS
from gcemil.outputs import AskedOutput, ClassQuestion
from gcemil.records import FurtherSet, SlideEvidence
from gcemil.recovery import subset_size, top_k
from gcemil.runs.checkpoint import join_hashes
from gcemil.runs.consensus import (
    Ensemble,
    EnsembleEmbedded,
    average_scores,
    choose_majority,
    find_consensus,
    share_folds,
)
from gcemil.runs.environment import describe_environment
from gcemil.runs.folder import Run, RunFold
from gcemil.runs.predict import FoldModel
from gcemil.search import find_class_evidence
from gcemil.shapes import Logits, Scores, Selected
from gcemil.tasks.task import Task

EVIDENCE_RULE = "recovered evidence"
MAX_REGIONS = 64
"""Regions of a slide that are kept and removed one by one."""
Unit = Literal["patch", "region"]


@dataclass(frozen=True)
class ExplainOptions:
    """How a slide is explained."""

    budget: float | None = None
    """Share of patches, for a run without the wrapper; None is 5 %."""
    tolerances: Tolerances = field(default_factory=Tolerances)
    unit: Unit = "patch"
    """Whether connected regions are judged one by one as well."""
    target: str | None = None
    """The class whose evidence is shown; None is the predicted one."""
    against: str | None = None
    """The class that it is held against."""


class SourceBag(NetworkBag):
    """A bag put before a network, and where it comes from."""

    def __init__(
        self,
        network: FoldNetwork,
        bag: Bag,
        part: str,
        hashes: dict[str, dict[str, str]],
        options: ExplainOptions,
    ) -> None:
        """`part` is that of the fold, or 'new'; `hashes` are of the features or of the slide file, by slide."""
        super().__init__(bag, network)
        self.part = part
        self.hashes = hashes
        self.options = options
        self.names = tuple(name.removeprefix("prob_") for name in network.task.prediction_names)
        self.question = ClassQuestion.read(self.names, options.target, options.against)

    @cached_property
    def explanation(self) -> Explanation | None:
        """Gates and evidence for what is asked; None for a run without the wrapper."""
        model = self.network.model
        return None if model is None else explain_bag(model, self.bag, self.question)

    @cached_property
    def view(self) -> PredictedBag:
        """The bag as it was predicted, for the question of further sets."""
        found, host = self.explanation, self.network.explained
        if found is None:
            return predict_bag(host, self.features, self.coords)
        return PredictedBag(
            host, self.features, self.coords, found.output.embedded, found.output.answer
        )

    @property
    def asked(self) -> AskedOutput | None:
        """The class that is asked about."""
        return None if self.question is None else self.question.ask(self.view.full.logits)

    @property
    def output_scale(self) -> OutputScale:
        """How predictions of the network are compared."""
        return OutputScale(self.network.task.n_outputs, self.network.scale, asked=self.asked)


@dataclass(frozen=True, eq=False)
class EnsembleNetwork(FoldNetwork):
    """Several folds of a run as one network."""

    members: tuple[FoldNetwork, ...]

    @classmethod
    def of(cls, members: Sequence[FoldNetwork]) -> EnsembleNetwork:
        """The mean of the risks of the folds is in the mean of their units."""
        first = members[0]
        mean, unit = (
            fmean(getattr(one.scale, name) for one in members) for name in ("mean", "deviation")
        )
        host = Ensemble([one.explained for one in members])
        return cls(
            first.run,
            first.fold,
            first.task,
            first.settings,
            host,
            None,
            RiskScale(mean, unit),
            tuple(members),
        )

    @property
    def model_hash(self) -> str:
        """One fingerprint of all checkpoints."""
        return join_hashes([one.model_hash for one in self.members])


class ConsensusBag(SourceBag):
    """A bag put before several folds, whose predictions are averaged."""

    def __init__(self, members: Sequence[SourceBag]) -> None:
        first = members[0]
        network = EnsembleNetwork.of([one.network for one in members])
        super().__init__(network, first.bag, first.part, first.hashes, first.options)
        self.members = tuple(members)

    @cached_property
    def view(self) -> PredictedBag:
        """The bag as the folds predicted it, which is not embedded again."""
        host = self.network.explained
        embedded = EnsembleEmbedded.of([one.view.embedded for one in self.members])
        with torch.no_grad():
            full = host.aggregate(embedded, self.coords)
        return PredictedBag(host, self.features, self.coords, embedded, full)

    @property
    def wrapped(self) -> Interventions:
        """Questions to the mean of the folds."""
        return self.view.asked


@dataclass(frozen=True, eq=False)
class ChosenSet:
    """The patches that stand for the prediction, and how they were chosen."""

    selected: Selected
    scores: Scores
    """From which they were taken."""
    raw_scores: Scores
    """The host's."""
    full: Logits
    rule: str
    settings: dict[str, Any]
    notes: tuple[str, ...] = ()
    turning: Selected | None = None
    evidence: SlideEvidence | None = None
    """The record of the slide; None without the wrapper."""
    share: Scores | None = None
    """The share of the folds that chose each patch, where there are several."""
    consensus: Consensus | None = None


def explain_new_slide(
    models: Sequence[FoldModel],
    bag: Bag,
    place: SlidePlace,
    hashes: dict[str, str],
    options: ExplainOptions,
) -> ExplainedSlide:
    """A slide outside the cohort, from the checkpoints of one or several folds alone."""
    (slide_id,) = bag.slide_ids
    networks = [_open_network(model) for model in models]

    def ask(options: ExplainOptions) -> SourceBag:
        members = [SourceBag(one, bag, NEW, {slide_id: hashes}, options) for one in networks]
        return members[0] if len(members) == 1 else ConsensusBag(members)

    if len(networks) > 1 and options.against is not None and options.target is None:
        # The folds may predict different classes; the question is about that of their mean.
        plain = ask(replace(options, against=None))
        options = replace(options, target=plain.names[int(plain.view.full.logits.argmax())])
    source = ask(options)
    stride = None if bag.coords is None else grid_stride(bag.coords)
    size = bag.patch_size or (None if stride is None else max(1, round(stride)))
    if bag.coords is not None and size is None:
        raise BagError(
            f"{place.source}: the size of its patches is not known, and they are no grid to read it from. "
            "Extract the slide with a tool that states patch_size_level0."
        )
    folder = Run(source.network.run).new_slides / slide_id
    return explain_bag_slide(source, slide_id, size, options, place, folder)


def _open_network(model: FoldModel) -> FoldNetwork:
    """The network of a checkpoint, without its cohort."""
    fold = RunFold(model.folder)
    return FoldNetwork(
        run=fold.run.path,
        fold=fold.number,
        task=model.task,
        settings=TrainSettings.model_validate(model.meta["settings"]),
        host=model.loaded.host,
        model=model.loaded.model,
        scale=read_risk_scale(fold.run.path, fold.number),
    )


def explain_bag_slide(
    source: SourceBag,
    slide_id: str,
    patch_size: int | None,
    options: ExplainOptions,
    place: SlidePlace,
    folder: Path,
) -> ExplainedSlide:
    """The patches that stand for the prediction of a bag, those of one slide for its files, and their certificate."""
    bag, asked = source.bag, source.asked
    rows = bag.rows_of(slide_id)
    hashes = {"model": source.network.model_hash, **source.hashes[slide_id]}
    if isinstance(source, ConsensusBag):
        chosen = choose_consensus(source, slide_id, hashes)
    else:
        chosen = choose_patches(source, slide_id, hashes)
    regions = _judge_regions(source, chosen, options)
    further = find_further_sets(
        source.view,
        chosen.selected,
        chosen.scores,
        source.output_scale,
        options.tolerances,
        source.names,
        turning=chosen.turning,
        against=None if asked is None else asked.against,
    )
    certificate = _certify(source, slide_id, chosen, options, regions, further)
    return ExplainedSlide(
        slide_id=slide_id,
        selected=chosen.selected.numpy()[rows],
        coords=bag.slide_coords(slide_id),
        patch_size=patch_size,
        rule=certificate.rule,
        stop_reason=certificate.stop_reason,
        scores=chosen.raw_scores.numpy()[rows],
        evidence=chosen.evidence,
        fold_share=None if chosen.share is None else chosen.share.numpy()[rows],
        hashes=hashes,
        regions=None if regions is None else regions.of_slide(slide_id, rows),
        certificate=certificate,
        place=place,
        measure_classes=lambda: {
            name: support.numpy()[rows]
            for name, support in zip(source.names, source.view.class_support, strict=False)
        },
        folder=folder if asked is None else folder / re.sub(r"[^\w.-]+", "_", chosen.rule),
        further=tuple(
            (
                one,
                np.array(
                    [row - rows.start for row in one.patches if rows.start <= row < rows.stop], int
                ),
            )
            for one in further
        ),
    )


def choose_patches(source: SourceBag, slide_id: str, hashes: dict[str, str]) -> ChosenSet:
    """The patches that one network chooses: recovered, searched for a class, or of highest attention."""
    network, found, asked, options = (
        source.network,
        source.explanation,
        source.asked,
        source.options,
    )
    if network.model is not None and found is not None:
        if options.budget is not None:
            raise UsageError(
                f"{network.run} recovers its own evidence, whose size is not free. Leave --budget out; it is for plain hosts."
            )
        records = slide_evidence(network.model, source.bag, found, hashes)
        return ChosenSet(
            selected=found.recovery.selected,
            scores=found.output.scores,
            raw_scores=found.output.full.scores,
            full=found.output.answer.logits,
            rule=EVIDENCE_RULE if asked is None else name_question(asked, source.names),
            settings=network.model.settings.model_dump(mode="json"),
            turning=found.turning,
            evidence=next(record for record in records if record.slide_id == slide_id),
        )
    if asked is not None:
        if options.budget is not None:
            raise UsageError(
                "The evidence for a class is searched, and its size not free. Leave --budget out."
            )
        view = source.view
        searched = find_class_evidence(
            view.host,
            view.features,
            view.embedded,
            view.coords,
            view.full,
            asked,
            options.tolerances,
        )
        return ChosenSet(
            selected=searched.selected,
            scores=searched.scores,
            raw_scores=view.full.scores,
            full=view.full.logits,
            rule=name_question(asked, source.names),
            settings={},
            turning=searched.turning,
        )
    # The highest scores of a plain host, named as what they are.
    full, budget = source.wrapped.full(), options.budget or DEFAULT_BUDGET
    return ChosenSet(
        selected=top_k(full.scores, subset_size(len(source), budget)),
        scores=full.scores,
        raw_scores=full.scores,
        full=full.logits,
        rule=f"attention top-k at budget {budget:g}",
        settings={"budget": budget},
        notes=(
            "The run has no wrapper: these patches are where the host looked most, not recovered evidence.",
        ),
    )


def choose_consensus(source: ConsensusBag, slide_id: str, hashes: dict[str, str]) -> ChosenSet:
    """The patches that most folds choose, each for itself."""
    members, full, task = source.members, source.view.full.logits, source.network.task
    chosen = [choose_patches(one, slide_id, hashes) for one in members]
    share = share_folds([one.selected for one in chosen])
    models = [one.network.model for one in members if one.network.model is not None]
    explanations = [one.explanation for one in members if one.explanation is not None]
    records = find_consensus(models, source.bag, explanations, hashes) if models else []
    per_fold = [name_prediction(task, one.full) for one in chosen]
    mean = name_prediction(task, full)
    main = max(mean, key=mean.__getitem__)
    dissent = (
        f"Fold {member.network.fold} predicts {source.names[int(one.full.argmax())]} and chose patches for that."
        for member, one in zip(members, chosen, strict=True)
        if source.asked is None and int(one.full.argmax()) != int(full.argmax())
    )
    return ChosenSet(
        selected=choose_majority(share),
        scores=average_scores(torch.stack([one.scores for one in chosen])),
        raw_scores=average_scores(torch.stack([one.raw_scores for one in chosen])),
        full=full,
        rule=f"{chosen[0].rule}, chosen by most of {len(chosen)} folds",
        settings=chosen[0].settings,
        notes=(*dissent, *chosen[0].notes),
        turning=_find_common_turning(source, [one.turning for one in chosen]),
        evidence=next((record for record in records if record.slide_id == slide_id), None),
        share=share,
        consensus=Consensus(
            folds=tuple(one.network.fold for one in members),
            per_fold=tuple(per_fold),
            n_chosen=tuple(int(one.selected.sum()) for one in chosen),
            n_unanimous=int((share == 1).sum()),
            spread=stdev(one[main] for one in per_fold),
        ),
    )


def _find_common_turning(source: ConsensusBag, sets: Sequence[Selected | None]) -> Selected | None:
    """The smallest of the sets of the folds without which their mean predicts the other class."""
    if source.asked is None:
        return None
    for one in sorted((one for one in sets if one is not None), key=lambda one: int(one.sum())):
        without = source.view.removed(one)
        if without is not None and int(without.argmax()) == source.asked.against:
            return one
    return None


def name_question(asked: AskedOutput, names: Sequence[str]) -> str:
    """What is asked, as the name of the set that answers it."""
    against = "" if asked.against is None else f" against {names[asked.against]}"
    return f"evidence for {names[asked.target]}{against}"


def _judge_regions(
    source: SourceBag, chosen: ChosenSet, options: ExplainOptions
) -> SlideRegions | None:
    """The connected regions, each judged by itself with `unit="region"`; None without coordinates."""
    regions = find_regions(source.bag, chosen.selected, chosen.scores)
    if regions is None:
        if options.unit == "region":
            raise UsageError(
                f"Bag '{source.bag.bag_id}' has no coordinates, so its patches form no regions. Leave --unit out."
            )
        return None
    judge = RegionJudge(
        source.output_scale, options.tolerances, MAX_REGIONS if options.unit == "region" else 0
    )
    outcome_of = partial(bag_outcome, source.wrapped, full=chosen.full)
    verdicts = judge.judge(outcome_of, source.bag, regions)
    return SlideRegions(regions.number.numpy(), tuple(verdicts))


def _certify(
    source: SourceBag,
    slide_id: str,
    chosen: ChosenSet,
    options: ExplainOptions,
    regions: SlideRegions | None,
    further: tuple[FurtherSet, ...],
) -> Certificate:
    network, found, bag, asked = source.network, source.explanation, source.bag, source.asked
    gates = None if found is None else found.output.log_gates
    outcome = bag_outcome(source.wrapped, chosen.selected, gates, full=chosen.full)
    outputs = source.output_scale.read(outcome)
    rows, selected = bag.rows_of(slide_id), chosen.selected.numpy()
    judged = regions.verdicts if regions is not None and options.unit == "region" else ()
    notes = chosen.notes
    if len(judged) > MAX_REGIONS:
        notes += (
            f"The patches form {len(judged)} regions; the {MAX_REGIONS} of largest score mass were kept and removed.",
        )
    if asked is not None:
        notes += _note_answer(asked, chosen, source.names)
    predictions: dict[str, Any] = {}
    for name, output in vars(outputs).items():
        logits = getattr(outcome, name)
        there = (
            None if logits is None else Prediction(name_prediction(network.task, logits), output)
        )
        predictions[name] = there
    anchors: tuple[AnchorCoverage, ...] = ()
    # Evidence for a class is found by search: no anchor has a target.
    if network.model is not None and found is not None and asked is None:
        weights = network.model.anchor_weights(found.output.answer.logits).detach()
        columns = (
            found.recovery.coverage.tolist(),
            found.recovery.targets.tolist(),
            weights.tolist(),
        )
        prompts = network.model.bank.prompts
        anchors = tuple(AnchorCoverage(*row) for row in zip(prompts, *columns, strict=True))
    return Certificate(
        subject=Subject(
            slide_id=slide_id,
            bag_id=bag.bag_id,
            bag_slides=bag.slide_ids,
            part=source.part,
            n_patches=len(bag),
            n_selected=int(selected.sum()),
            slide_n_patches=rows.stop - rows.start,
            slide_n_selected=int(selected[rows].sum()),
        ),
        rule=chosen.rule,
        output_name=name_output(network.task, outcome.full, asked)
        + (
            "" if network.task.n_outputs == 1 or asked is not None else ", the class predicted on X"
        ),
        predictions=Predictions(**predictions),
        verdicts=judge_outputs(outputs, options.tolerances),
        stop_reason=None if chosen.evidence is None else chosen.evidence.stop_reason,
        anchors=anchors,
        settings={"host": network.settings.host.model_dump(mode="json"), "rule": chosen.settings},
        provenance=_describe_origin(source),
        notes=notes,
        regions=judged,
        further=further,
        is_confirmed=None if chosen.evidence is None else chosen.evidence.is_confirmed,
        model_warning=Run(network.run).model_warning,
        consensus=chosen.consensus,
    )


def name_prediction(task: Task, logits: Logits) -> dict[str, float]:
    """The prediction by its column names."""
    return dict(
        zip(task.prediction_names, task.prediction(logits).reshape(-1).tolist(), strict=True)
    )


def judge_outputs(outputs: BagOutputs, tolerances: Tolerances) -> dict[VerdictName, Verdict]:
    """What the three definitions say of a set of patches, with the numbers behind each verdict."""
    found = judge_subset(outputs, tolerances)
    return {
        "sufficient": Verdict(found.sufficient, outputs.full_kept_gap, tolerances.sufficiency),
        "necessary": Verdict(found.necessary, outputs.removal_gap, tolerances.necessity),
        "recoverable": Verdict(found.recoverable, outputs.cd_gap, tolerances.recoverability),
    }


def _note_answer(asked: AskedOutput, chosen: ChosenSet, names: Sequence[str]) -> tuple[str, ...]:
    """What a reader must know of the class that was asked about."""
    notes = []
    predicted = int(chosen.full.argmax())
    if predicted != asked.target:
        notes.append(
            f"The model predicts {names[predicted]} and not {names[asked.target]}; these patches speak for "
            f"{names[asked.target]} all the same."
        )
    if asked.against is not None and chosen.turning is None and predicted != asked.against:
        notes.append(
            f"No set was found whose removal turns the prediction into {names[asked.against]}."
        )
    return tuple(notes)


def name_output(task: Task, full: Logits, asked: AskedOutput | None = None) -> str:
    """What Phi is."""
    if task.n_outputs == 1:
        return TASKS[task.name].phi.removeprefix("the ")
    if asked is not None:
        names = [name.removeprefix("prob_") for name in task.prediction_names]
        against = (
            ""
            if asked.against is None
            else f" among {names[asked.target]} and {names[asked.against]}"
        )
        return f"probability of {names[asked.target]}{against}"
    return f"probability of {task.prediction_names[int(full.argmax())].removeprefix('prob_')}"


def _describe_origin(source: SourceBag) -> dict[str, Any]:
    """Versions, settings and the fingerprints of the network and of every slide of the bag; nothing of the machine."""
    network = source.network
    inputs = {"model": network.model_hash}
    if isinstance(source, ConsensusBag):
        inputs |= {
            f"model/fold_{one.network.fold}": one.network.model_hash for one in source.members
        }
    for slide_id, hashes in source.hashes.items():
        inputs |= {f"{kind}/{slide_id}": value for kind, value in hashes.items()}
    everything = describe_environment(
        seed=network.settings.seed, device=torch.device("cpu"), inputs=inputs
    )
    return {
        **{
            key: everything[key]
            for key in ("gcemil", "commit", "python", "packages", "seed", "inputs")
        },
        "run": network.run.resolve().name,
        "fold": network.fold,
        "settings_hash": network.settings.hash,
        "anchors": None
        if network.model is None
        else {
            "provenance": network.model.bank.provenance,
            "hash": network.model.bank.hash,
        },
    }
