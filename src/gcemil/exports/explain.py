"""One slide explained: its evidence, or the host's attention, kept and removed.

The slide is of the run's cohort (explain_cohort.py), or new: then its bag is made from a feature
file or a slide file, and nothing of the cohort is needed. Several folds choose patches each for
itself; the patches that most of them chose are kept and removed under their mean prediction
(runs/consensus.py). With `unit="region"` every connected region of the patches is kept and removed
by itself too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal

import numpy as np
import torch

from gcemil.bags.bag import Bag, grid_stride
from gcemil.config import TrainSettings
from gcemil.device import describe_environment
from gcemil.diagnostics.regions import RegionJudge, find_regions
from gcemil.diagnostics.snr import (
    BagOutcome,
    BagOutputs,
    OutputScale,
    RiskScale,
    Tolerances,
    judge_subset,
)
from gcemil.diagnostics.subsets import find_further_sets
from gcemil.diagnostics.trained_fold import (
    DEFAULT_BUDGET,
    FoldNetwork,
    NetworkBag,
    PredictedBag,
    read_risk_scale,
)
from gcemil.errors import BagError, UsageError
from gcemil.explanation import slide_evidence
from gcemil.exports.certificate import Judgement, Verdict, VerdictName, describe_direction
from gcemil.exports.evidence import ExplainedSlide
from gcemil.exports.geojson import SlideRegions
from gcemil.exports.overlay import SlidePlace
from gcemil.files import without_nan
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
from gcemil.runs.folder import Run, RunFold
from gcemil.runs.predict import FoldModel
from gcemil.search import find_class_evidence
from gcemil.shapes import Logits, Scores, Selected
from gcemil.tasks.task import Task

EVIDENCE_RULE = "recovered evidence"
NEW = "new"
"""The part of a slide that is in no fold of the cohort."""
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
    """The class that it is compared with."""


class SourceBag(NetworkBag):
    """A bag under a network, and where it comes from."""

    def __init__(
        self,
        network: FoldNetwork,
        bag: Bag,
        part: str,
        hashes: dict[str, dict[str, str]],
        options: ExplainOptions,
    ) -> None:
        """`part` is that of the fold, or 'new'; `hashes` are of the inputs, by slide."""
        self.names = tuple(name.removeprefix("prob_") for name in network.task.prediction_names)
        question = ClassQuestion.read(self.names, options.target, options.against)
        super().__init__(bag, network, question)
        self.part = part
        self.hashes = hashes
        self.options = options

    @property
    def model_hash(self) -> str:
        """The fingerprint of the checkpoint."""
        return self.network.model_hash

    @property
    def asked(self) -> AskedOutput | None:
        """The class whose evidence is shown, unless it is the predicted one."""
        return None if self.question is None else self.question.ask(self.view.full.logits)

    @property
    def output_scale(self) -> OutputScale:
        """How predictions of the network are compared."""
        return OutputScale(self.network.task.n_outputs, self.network.scale, asked=self.asked)


class ConsensusBag(SourceBag):
    """A bag under several folds, whose predictions are averaged."""

    def __init__(self, members: Sequence[SourceBag]) -> None:
        first, networks = members[0], [one.network for one in members]
        # The mean of the risks of the folds is in the mean of their units.
        scale = RiskScale(
            fmean(one.scale.mean for one in networks),
            fmean(one.scale.deviation for one in networks),
        )
        host = Ensemble([one.explained for one in networks])
        network = replace(first.network, host=host, model=None, scale=scale)
        super().__init__(network, first.bag, first.part, first.hashes, first.options)
        self.members = tuple(members)

    @property
    def model_hash(self) -> str:
        """One fingerprint of all checkpoints."""
        return join_hashes([one.model_hash for one in self.members])

    @cached_property
    def view(self) -> PredictedBag:
        """The bag as the folds predicted it, which is not embedded again."""
        host = self.network.explained
        embedded = EnsembleEmbedded.of([one.view.embedded for one in self.members])
        with torch.no_grad():
            full = host.aggregate(embedded, self.coords)
        return PredictedBag(host, self.features, self.coords, embedded, full)


@dataclass(frozen=True, eq=False)
class ChosenSet:
    """The patches that are the evidence, and how they were chosen."""

    selected: Selected
    scores: Scores
    """From which they were taken."""
    raw_scores: Scores
    """The host's."""
    rule: str
    settings: dict[str, Any]
    notes: tuple[str, ...] = ()
    turning: Selected | None = None
    evidence: SlideEvidence | None = None
    """The record of the slide; None without the wrapper."""
    share: Scores | None = None
    """The share of the folds that chose each patch, where there are several."""
    consensus: dict[str, Any] | None = None
    """How several folds agree."""


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

    def open_source(options: ExplainOptions) -> SourceBag:
        members = [SourceBag(one, bag, NEW, {slide_id: hashes}, options) for one in networks]
        return members[0] if len(members) == 1 else ConsensusBag(members)

    if len(networks) > 1 and options.against is not None and options.target is None:
        # The folds may predict different classes; the question is about that of their mean.
        plain = open_source(replace(options, against=None))
        options = replace(options, target=plain.names[int(plain.view.full.logits.argmax())])
    source = open_source(options)
    stride = None if bag.coords is None else grid_stride(bag.coords)
    size = bag.patch_size or (None if stride is None else max(1, round(stride)))
    if bag.coords is not None and size is None:
        raise BagError(
            f"{place.source}: the size of its patches is not known, and they form no grid to read "
            "it from. Extract the slide with a tool that states patch_size_level0."
        )
    folder = Run(source.network.run).new_slides / slide_id
    return explain_bag_slide(source, slide_id, size, place, folder)


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
    source: SourceBag, slide_id: str, patch_size: int | None, place: SlidePlace, folder: Path
) -> ExplainedSlide:
    """Choose the patches of a bag, keep and remove them; the files show those of one slide."""
    bag, asked = source.bag, source.asked
    rows = bag.rows_of(slide_id)
    hashes = {"model": source.model_hash, **source.hashes[slide_id]}
    chosen = (
        choose_consensus(source, slide_id, hashes)
        if isinstance(source, ConsensusBag)
        else choose_patches(source, slide_id, hashes)
    )
    regions = _judge_regions(source, chosen)
    further = find_further_sets(
        source.view,
        chosen.selected,
        chosen.scores,
        source.output_scale,
        source.options.tolerances,
        source.names,
        turning=chosen.turning,
        against=None if asked is None else asked.against,
    )
    outcome = _predict_versions(source, chosen)
    evidence = chosen.evidence
    judgement = Judgement(
        judge_outputs(source.output_scale.read(outcome), source.options.tolerances),
        None if evidence is None else evidence.is_confirmed,
        Run(source.network.run).model_warning,
    )
    return ExplainedSlide(
        slide_id=slide_id,
        selected=chosen.selected.numpy()[rows],
        coords=bag.slide_coords(slide_id),
        patch_size=patch_size,
        rule=chosen.rule,
        stop_reason=None if evidence is None else evidence.stop_reason,
        scores=chosen.raw_scores.numpy()[rows],
        evidence=evidence,
        fold_share=None if chosen.share is None else chosen.share.numpy()[rows],
        hashes=hashes,
        regions=None if regions is None else regions.of_slide(slide_id, rows),
        judgement=judgement,
        certificate=_certify(source, slide_id, chosen, outcome, judgement, regions, further),
        place=place,
        measure_classes=lambda: {
            name: support.numpy()[rows]
            for name, support in zip(source.names, source.view.class_support, strict=False)
        },
        folder=folder if asked is None else folder / re.sub(r"[^\w.-]+", "_", chosen.rule),
        further=tuple(
            (
                one,
                np.array([row for row in one.patches if row in range(rows.start, rows.stop)], int)
                - rows.start,
            )
            for one in further
        ),
    )


def choose_patches(source: SourceBag, slide_id: str, hashes: dict[str, str]) -> ChosenSet:
    """The patches of one network: recovered, searched for a class, or of highest attention."""
    network, explanation, asked = source.network, source.explanation, source.asked
    budget = source.options.budget
    rule = EVIDENCE_RULE if asked is None else name_question(asked, source.names)
    if network.model is not None and explanation is not None:
        if budget is not None:
            raise UsageError(
                f"{network.run} recovers its own evidence, whose size is not free. Leave --budget "
                "out; it is for plain hosts."
            )
        records = slide_evidence(network.model, source.bag, explanation, hashes)
        return ChosenSet(
            selected=explanation.recovery.selected,
            scores=explanation.output.scores,
            raw_scores=explanation.output.full.scores,
            rule=rule,
            settings=network.model.settings.model_dump(mode="json"),
            turning=explanation.turning,
            evidence=next(record for record in records if record.slide_id == slide_id),
        )
    view = source.view
    if asked is not None:
        if budget is not None:
            raise UsageError(
                "The evidence for a class is searched, and its size is not free. Leave --budget "
                "out."
            )
        result = find_class_evidence(
            view.host,
            view.features,
            view.embedded,
            view.coords,
            view.full,
            asked,
            source.options.tolerances,
        )
        return ChosenSet(
            selected=result.selected,
            scores=result.scores,
            raw_scores=view.full.scores,
            rule=rule,
            settings={},
            turning=result.turning,
        )
    # The highest scores of a plain host, named as what they are.
    budget, scores = budget or DEFAULT_BUDGET, view.full.scores
    return ChosenSet(
        selected=top_k(scores, subset_size(len(source), budget)),
        scores=scores,
        raw_scores=scores,
        rule=f"attention top-k at budget {budget:g}",
        settings={"budget": budget},
        notes=(
            "The run has no wrapper: these patches are where the host looked most, not recovered "
            "evidence.",
        ),
    )


def choose_consensus(source: ConsensusBag, slide_id: str, hashes: dict[str, str]) -> ChosenSet:
    """The patches that most folds choose, each for itself."""
    members, task, full = source.members, source.network.task, source.view.full.logits
    chosen = [choose_patches(one, slide_id, hashes) for one in members]
    share = share_folds([one.selected for one in chosen])
    models = [one.network.model for one in members if one.network.model is not None]
    explanations = [one.explanation for one in members if one.explanation is not None]
    records = find_consensus(models, source.bag, explanations, hashes) if models else []
    logits = [one.view.full.logits for one in members]
    per_fold = [name_prediction(task, one) for one in logits]
    mean = name_prediction(task, full)
    main = max(mean, key=mean.__getitem__)
    dissent = [
        f"Fold {member.network.fold} predicts {source.names[int(one.argmax())]} and chose patches "
        "for that."
        for member, one in zip(members, logits, strict=True)
        if source.asked is None and int(one.argmax()) != int(full.argmax())
    ]
    return ChosenSet(
        selected=choose_majority(share),
        scores=average_scores(torch.stack([one.scores for one in chosen])),
        raw_scores=average_scores(torch.stack([one.raw_scores for one in chosen])),
        rule=f"{chosen[0].rule}, chosen by most of {len(chosen)} folds",
        settings=chosen[0].settings,
        notes=(*dissent, *chosen[0].notes),
        turning=_find_common_turning(source, [one.turning for one in chosen]),
        evidence=next((record for record in records if record.slide_id == slide_id), None),
        share=share,
        consensus={
            "folds": [one.network.fold for one in members],
            "per_fold": per_fold,
            "n_chosen": [int(one.selected.sum()) for one in chosen],
            "n_unanimous": int((share == 1).sum()),
            "spread": stdev(one[main] for one in per_fold),
        },
    )


def _find_common_turning(source: ConsensusBag, sets: Sequence[Selected | None]) -> Selected | None:
    """The smallest set of a fold without which the mean prediction is the other class."""
    if source.asked is None:
        return None
    for one in sorted((one for one in sets if one is not None), key=lambda one: int(one.sum())):
        without = source.view.removed(one)
        if without is not None and int(without.argmax()) == source.asked.against:
            return one
    return None


def name_question(asked: AskedOutput, names: Sequence[str]) -> str:
    """The name of the set that supports a class."""
    against = "" if asked.against is None else f" against {names[asked.against]}"
    return f"evidence for {names[asked.target]}{against}"


def _judge_regions(source: SourceBag, chosen: ChosenSet) -> SlideRegions | None:
    """The connected regions, each judged with `unit="region"`; None without coordinates."""
    options = source.options
    regions = find_regions(source.bag, chosen.selected, chosen.scores)
    if regions is None:
        if options.unit == "region":
            raise UsageError(
                f"Bag '{source.bag.bag_id}' has no coordinates, so its patches form no regions. "
                "Leave --unit out."
            )
        return None
    limit = MAX_REGIONS if options.unit == "region" else 0
    judge = RegionJudge(source.output_scale, options.tolerances, limit)
    verdicts = judge.judge(source.view.outcome, source.bag, regions)
    return SlideRegions(regions.number.numpy(), tuple(verdicts))


def _predict_versions(source: SourceBag, chosen: ChosenSet) -> BagOutcome:
    """X, X_S, X_notS and X_pi; what the explanation has predicted is not predicted again."""
    explanation = source.explanation
    if explanation is None:
        return source.view.outcome(chosen.selected)
    removed = explanation.removed
    return BagOutcome(
        full=source.view.full.logits,
        kept=explanation.kept.logits,
        removed=None if removed is None else removed.logits,
        gated=source.view.interventions.gated(explanation.output.log_gates).logits,
        fraction=float(chosen.selected.double().mean()),
    )


def _certify(
    source: SourceBag,
    slide_id: str,
    chosen: ChosenSet,
    outcome: BagOutcome,
    judgement: Judgement,
    regions: SlideRegions | None,
    further: tuple[FurtherSet, ...],
) -> dict[str, Any]:
    """The content of certificate.json."""
    network, bag, asked, options = source.network, source.bag, source.asked, source.options
    rows, selected = bag.rows_of(slide_id), chosen.selected.numpy()
    n_selected, slide_n_selected = int(selected.sum()), int(selected[rows].sum())
    judged = regions.verdicts if regions is not None and options.unit == "region" else ()
    notes = [] if judgement.model_warning is None else [judgement.model_warning]
    if len(bag.slide_ids) > 1:
        notes.append(
            f"Case '{bag.bag_id}' has {len(bag.slide_ids)} slides, which form one bag: "
            f"predictions, verdicts, fraction and coverage are of the case. {slide_n_selected} of "
            f"its {n_selected} selected patches lie on slide '{slide_id}'."
        )
    if source.part not in ("test", NEW):
        notes.append(
            f"The model is not new to this slide: it is in the {source.part} part of the fold."
        )
    notes += chosen.notes
    if len(judged) > MAX_REGIONS:
        notes.append(
            f"The patches form {len(judged)} regions; the {MAX_REGIONS} of largest score mass "
            "were kept and removed."
        )
    if asked is not None:
        notes += _note_class(asked, chosen, outcome.full, source.names)
    predictions = {
        name: describe_prediction(network.task, source.output_scale, outcome.full, logits)
        for name, logits in vars(outcome).items()
        if name != "fraction"
    }
    output_name = name_output(network.task, outcome.full, asked)
    if network.task.n_outputs > 1 and asked is None:
        output_name += ", the class predicted on X"
    certificate: dict[str, Any] = {
        "subject": {
            "slide_id": slide_id,
            "bag_id": bag.bag_id,
            "bag_slides": bag.slide_ids,
            "part": source.part,
            "n_patches": len(bag),
            "n_selected": n_selected,
            "fraction": n_selected / len(bag),
            "slide_n_patches": rows.stop - rows.start,
            "slide_n_selected": slide_n_selected,
        },
        "rule": chosen.rule,
        "output_name": output_name,
        "predictions": predictions,
        "verdicts": {name: asdict(one) for name, one in judgement.verdicts.items()},
        "stop_reason": None if chosen.evidence is None else chosen.evidence.stop_reason,
        "anchors": _list_anchors(source),
        "settings": {
            "host": network.settings.host.model_dump(mode="json"),
            "rule": chosen.settings,
        },
        "provenance": _describe_origin(source),
        "notes": notes,
        "regions": [asdict(one) for one in judged],
        "further": [asdict(one) for one in further],
        "is_confirmed": judgement.is_confirmed,
        "model_warning": judgement.model_warning,
        "consensus": chosen.consensus,
        "headline": judgement.headline,
        "verdict": judgement.text,
        "direction": describe_direction(predictions),
    }
    plain: dict[str, Any] = without_nan(certificate)
    return plain


def _list_anchors(source: SourceBag) -> list[dict[str, Any]]:
    """How surely the evidence shows each anchor; one with target 0 does not count."""
    model, explanation = source.network.model, source.explanation
    # Evidence for a class is found by search: no anchor has a target.
    if model is None or explanation is None or source.asked is not None:
        return []
    recovery = explanation.recovery
    columns = {
        "prompt": model.bank.prompts,
        "coverage": recovery.coverage.tolist(),
        "target": recovery.targets.tolist(),
        "weight": model.anchor_weights(explanation.output.answer.logits).detach().tolist(),
    }
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    for row in rows:
        row["covered"] = None if row["target"] == 0 else row["coverage"] >= row["target"]
    return rows


def name_prediction(task: Task, logits: Logits) -> dict[str, float]:
    """The prediction by its column names."""
    return dict(
        zip(task.prediction_names, task.prediction(logits).reshape(-1).tolist(), strict=True)
    )


def describe_prediction(
    task: Task, scale: OutputScale, full: Logits, logits: Logits | None
) -> dict[str, Any] | None:
    """A prediction and its Phi; None where there is none."""
    if logits is None:
        return None
    return {"values": name_prediction(task, logits), "output": scale.output(full, logits)}


def judge_outputs(outputs: BagOutputs, tolerances: Tolerances) -> dict[VerdictName, Verdict]:
    """The verdicts by the three definitions, with the numbers behind them."""
    verdict = judge_subset(outputs, tolerances)
    return {
        "sufficient": Verdict(verdict.sufficient, outputs.full_kept_gap, tolerances.sufficiency),
        "necessary": Verdict(verdict.necessary, outputs.removal_gap, tolerances.necessity),
        "recoverable": Verdict(verdict.recoverable, outputs.cd_gap, tolerances.recoverability),
    }


def _note_class(
    asked: AskedOutput, chosen: ChosenSet, full: Logits, names: Sequence[str]
) -> list[str]:
    """Notes on evidence for a given class."""
    notes, predicted = [], int(full.argmax())
    if predicted != asked.target:
        notes.append(
            f"The model predicts {names[predicted]} and not {names[asked.target]}; these patches "
            f"support {names[asked.target]} nevertheless."
        )
    if asked.against is not None and chosen.turning is None and predicted != asked.against:
        notes.append(
            f"No set was found whose removal changes the prediction to {names[asked.against]}."
        )
    return notes


def name_output(task: Task, full: Logits, asked: AskedOutput | None = None) -> str:
    """What Phi is."""
    if task.n_outputs == 1:
        return TASKS[task.name].phi.removeprefix("the ")
    names = [name.removeprefix("prob_") for name in task.prediction_names]
    if asked is None:
        return f"probability of {names[int(full.argmax())]}"
    target = names[asked.target]
    among = "" if asked.against is None else f" among {target} and {names[asked.against]}"
    return f"probability of {target}{among}"


def _describe_origin(source: SourceBag) -> dict[str, Any]:
    """Versions, settings and fingerprints of network and slides; nothing of the machine."""
    network, model = source.network, source.network.model
    inputs = {"model": source.model_hash}
    if isinstance(source, ConsensusBag):
        inputs |= {f"model/fold_{one.network.fold}": one.model_hash for one in source.members}
    for slide_id, hashes in source.hashes.items():
        inputs |= {f"{kind}/{slide_id}": value for kind, value in hashes.items()}
    environment = describe_environment(
        seed=network.settings.seed, device=torch.device("cpu"), inputs=inputs
    )
    names = ("gcemil", "commit", "python", "packages", "seed", "inputs")
    anchors = None
    if model is not None:
        anchors = {"provenance": model.bank.provenance, "hash": model.bank.hash}
    return {
        **{name: environment[name] for name in names},
        "run": network.run.resolve().name,
        "fold": network.fold,
        "settings_hash": network.settings.hash,
        "anchors": anchors,
    }
