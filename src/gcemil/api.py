"""The public functions of gcemil: train on tensors, explain a prediction, audit any explanation.

  wrap     a host and anchors        -> GceMil
  fit      bags and labels           -> FittedModel
  explain  a model and a bag         -> Evidence
  audit    any model and explanation -> pandas.DataFrame
  save, load                            a folder of safetensors, JSON and a model card

A bag is a matrix of features (patches, width) as tensor or array, a tuple (features, coords), a
`gcemil.Bag`, or an item of a torchmil dataset (X, Y, coords).
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from gcemil import __version__
from gcemil.bags import store
from gcemil.bags.cohort import Cohort, Task, run_ahead
from gcemil.bags.folds import Fold, carve_validation
from gcemil.bags.memory import as_array, iterate_items, make_cohort, read_bag_item
from gcemil.bags.targets import refuse_targets
from gcemil.config import EvidenceSettings, HostSettings, TrainSettings
from gcemil.device import one_thread, pick_device
from gcemil.diagnostics.audit import (
    Scoring,
    apply_rules,
    describe_table,
    judge_outcome,
    measure_risk_scale,
    name_bag_in_errors,
)
from gcemil.diagnostics.audit_inputs import check_answers
from gcemil.diagnostics.snr import BagOutcome, OutputScale, RiskScale
from gcemil.diagnostics.subsets import find_further_sets
from gcemil.diagnostics.trained_fold import PredictedBag
from gcemil.errors import UsageError
from gcemil.evidence.anchors import AnchorBank
from gcemil.evidence.bridge import CentredBridge
from gcemil.explanation import bag_tensors, explain_bag, slide_evidence
from gcemil.exports.evidence import Evidence
from gcemil.hosts.adapters import adapt_model
from gcemil.hosts.host import Host, find_device
from gcemil.hosts.table import is_untrained
from gcemil.model import GceMil
from gcemil.outputs import ClassQuestion, Output, ValueOutput, create_output
from gcemil.runs.checkpoint import (
    PRETRAINED_FORMAT,
    LoadedNetwork,
    describe_network,
    load_network,
    save_network,
)
from gcemil.runs.folder import FoldParts, Run, RunFold, fold_parts
from gcemil.runs.predict import read_new_slide
from gcemil.runs.pretrained import UNKNOWN_LICENSE, write_folder
from gcemil.runs.weights import pretrained_host_of_fold, resolve_pretrained_host
from gcemil.tasks.task import create_task, stacked_targets, training_task
from gcemil.training.fold import PAIRS_FILE, create_network, reference_patches
from gcemil.training.loop import OnEpoch, fit_evidence, train
from gcemil.training.optimizer import stream_seed

Anchors = AnchorBank | Mapping[str, Any] | int | None


def wrap(
    host: Any,
    anchors: Anchors = None,
    *,
    patches: Any = None,
    pairs: tuple[Any, Any] | None = None,
    settings: EvidenceSettings | None = None,
    task: Task | None = None,
    explains_host: bool = True,
) -> GceMil:
    """Put the evidence wrapper around a trained model, without training.

    Args:
        host: A gcemil host, a torchmil model, or any module from features (patches, width) to
            logits or (logits, scores).
        anchors: A bank, examples as {concept: patches}, or the number of prototypes of `patches`;
            None takes 8.
        patches: Features (n, width) of training slides, by which the responses to the anchors are
            calibrated.
        pairs: The same patches in feature space and in anchor space, for a bank of text anchors.
        settings: How the evidence is found.
        task: "survival" if a single output is a risk, "regression" if it is a value in standard
            deviations of the training labels; otherwise it is the log-odds of the second class.
        explains_host: The evidence explains the given host. False: host and evidence head
            together.

    Returns:
        The wrapped model in evaluation mode.

    Raises:
        UsageError: Patches are missing where the anchors or the host need them.

    Example:
        >>> import gcemil, torch
        >>> host = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Linear(4, 2))
        >>> model = gcemil.wrap(lambda bag: host(bag).mean(dim=0), 3, patches=torch.randn(60, 8))
        >>> gcemil.explain(model, torch.randn(30, 8)).scores.shape
        (30,)
    """
    reference = None if patches is None else torch.from_numpy(as_array(patches)).float()
    if reference is None and not (isinstance(host, Host) and isinstance(anchors, AnchorBank)):
        raise UsageError(
            "Give patches=, features (n, width) of training slides: anchors and host are fitted to "
            "them."
        )
    if is_untrained(host):
        warnings.warn(
            "The host has the weights it was created with: it is untrained, and its evidence means "
            "nothing. Load its state_dict first, or train it with gcemil.fit.",
            UserWarning,
            stacklevel=2,
        )
    is_number = task in ("survival", "regression")
    wrapped = host
    if not isinstance(host, Host):
        wrapped = adapt_model(host, reference, is_number=is_number)  # type: ignore[arg-type]
    model = GceMil(
        wrapped,
        _make_bank(anchors, reference),
        in_dim=wrapped.in_dim,
        settings=settings,
        explains_host=explains_host,
        task=task if wrapped.n_outputs == 1 else None,
    )
    if pairs is not None:
        model.bridge.fit(*(torch.from_numpy(as_array(one)).float() for one in pairs))
    if reference is not None:
        if isinstance(model.bridge, CentredBridge):
            model.bridge.set_centre(reference.mean(dim=0))
        model.calibrate(reference)
    return model.to(find_device(host)).eval()


def _make_bank(anchors: Anchors, patches: Tensor | None, n_prototypes: int = 8) -> AnchorBank:
    """The bank that `anchors` describes."""
    if isinstance(anchors, AnchorBank):
        return anchors
    if patches is None:
        raise UsageError("Anchors need patches=, unless they are a gcemil.AnchorBank.")
    if isinstance(anchors, Mapping):
        examples = {
            name: torch.from_numpy(as_array(rows)).float() for name, rows in anchors.items()
        }
        return AnchorBank.from_examples(examples, patches)
    return AnchorBank.prototypes(patches, n_prototypes if anchors is None else anchors)


@dataclass(frozen=True, eq=False)
class FittedModel:
    """A trained network with the names of its outputs, as `fit` and `load` return it.

    Example:
        >>> import gcemil, torch
        >>> bags = [torch.randn(20, 8) + number % 2 for number in range(12)]
        >>> model = gcemil.fit(bags, ["normal", "tumour"] * 6, epochs=2)
        >>> model.classes, sorted(model.predict(bags[0])) == sorted(model.classes)
        (('normal', 'tumour'), True)
        >>> model.explain(bags[0], target="tumour").scores.shape
        (20,)
    """

    loaded: LoadedNetwork
    """The network and the scale of its labels."""
    record: dict[str, Any]
    """What is needed to build the network again: settings, sizes, classes, anchors."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """One record per epoch; empty for a model that was loaded."""
    data: dict[str, Any] = field(default_factory=dict)
    """Facts about the training bags, for the model card."""

    @property
    def network(self) -> GceMil | nn.Module:
        """The wrapper with its host, or the plain host."""
        return self.loaded.network

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the outputs; ("risk",) for survival and ("value",) for regression."""
        return self.output_kind.names(self.record["classes"])

    @property
    def output_kind(self) -> Output:
        """Meaning of the outputs: classes, a risk or a value."""
        if self.record["task"] == "regression":
            mean, deviation = self.loaded.label_scale
            return ValueOutput(label_mean=mean, label_deviation=deviation)
        return create_output(self.record["task"], self.record["n_outputs"])

    def predict(self, bag: Any) -> dict[str, float]:
        """Predict one bag.

        Args:
            bag: Features (patches, width), (features, coords), or a `Bag`.

        Returns:
            The probability of every class by its name, {"risk": log-risk}, or {"value": value} in
            the unit of the labels.

        Raises:
            BagError: The bag does not fit the model.
        """
        given, device = read_bag_item(bag, "bag"), find_device(self.network)
        with torch.no_grad():
            output = self.network(*bag_tensors(given, device))
        logits = output.answer.logits if isinstance(self.network, GceMil) else output.logits
        return dict(zip(self.classes, self.output_kind.values(logits), strict=True))

    def predict_files(self, paths: Iterable[Path | str]) -> Iterator[tuple[Path, dict[str, float]]]:
        """Predict feature files one after the other, the next being read meanwhile.

        Args:
            paths: Feature files of gcemil, CLAM, TRIDENT or STAMP; they may come from a generator
                without an end.

        Yields:
            The path and its prediction, as `predict` gives it.

        Raises:
            InputError: A file cannot be read or does not fit the model.

        Example:
            >>> import gcemil, pathlib, tempfile, torch
            >>> from gcemil.bags import store
            >>> bags = [torch.randn(20, 8) + number % 2 for number in range(12)]
            >>> model = gcemil.fit(bags, [0, 1] * 6, epochs=1)
            >>> file = pathlib.Path(tempfile.mkdtemp()) / "new.h5"
            >>> store.write(file, {"features": torch.randn(30, 8).numpy()})
            >>> next(model.predict_files([file]))[0].name
            'new.h5'
        """
        files = ((Path(path), read_new_slide(Path(path), self.record)[0]) for path in paths)
        with closing(run_ahead(files, 1, size=lambda pair: pair[1].features.nbytes)) as ready:
            for path, bag in ready:
                yield path, self.predict(bag)

    def explain(
        self, bag: Any, *, target: str | int | None = None, against: str | int | None = None
    ) -> Evidence:
        """Find the evidence of one bag; see `gcemil.explain`.

        Args:
            bag: Features (patches, width), (features, coords), or a `Bag`.
            target: The class whose evidence is searched; None is the predicted class.
            against: A class to compare the target with; None compares with all others.

        Returns:
            The evidence with its verdict.

        Raises:
            UsageError: The model is a plain host, or has no such class.
            BagError: The bag does not fit the model.
        """
        return explain(self, bag, target=target, against=against)

    def save(self, path: Path | str) -> Path:
        """Write the model into a new folder; see `gcemil.save`.

        Args:
            path: The folder, which must not exist or be empty.

        Returns:
            The folder.

        Raises:
            UsageError: The folder is not empty.

        Example:
            >>> import gcemil, tempfile, torch
            >>> bags = [torch.randn(20, 8) + number % 2 for number in range(12)]
            >>> gcemil.fit(bags, [0, 1] * 6, epochs=1).save(tempfile.mkdtemp()).is_dir()
            True
        """
        return save(self, path)


def fit(
    bags: Any,
    labels: Sequence[Any] | None = None,
    *,
    host: str | type | HostSettings = "abmil",
    anchors: Anchors = None,
    task: Task | None = None,
    classes: Sequence[str] | None = None,
    cases: Sequence[str] | None = None,
    validation: Sequence[int] | None = None,
    pairs: tuple[Any, Any] | None = None,
    settings: TrainSettings | None = None,
    out: Path | str | None = None,
    on_epoch: OnEpoch | None = None,
    **changes: Any,
) -> FittedModel:
    """Train a host with evidence on bags in memory, by the same loop as `gcemil train`.

    Args:
        bags: A list of bags, a torchmil-style dataset (items with X, Y, coords), a `Cohort`, or the
            folder of one.
        labels: Class names, class indices, numbers to predict with task="regression", or (time,
            event) pairs; None takes those of the items.
        host: Name of a host, "package.module:Class", a class, or `HostSettings` with options and
            weights; "abmil" leaves the host of `settings`, if given, as it is.
        anchors: A bank, examples as {concept: patches}, a number of prototypes, or None for the
            settings' choice.
        task: "classification", "survival" or "regression"; None reads the first two off the labels.
        classes: Names of the classes in the order of their indices.
        cases: The case of every bag; bags of one case are never split between training and
            validation.
        validation: Indices of the validation bags, which choose the epoch; None takes an eighth of
            every class.
        pairs: The same patches in feature space and in anchor space, for a bank of text anchors.
        settings: Settings of the training; None takes the defaults.
        out: A new folder that keeps the checkpoint and the history; None keeps nothing on disk.
        on_epoch: Called with the record of every epoch.
        **changes: Single training settings, such as epochs=20, seed=1, device="cpu"; evidence=None
            trains the plain host.

    Returns:
        The model with the weights of the chosen epoch.

    Raises:
        UsageError: Labels are missing or do not fit the bags, or `out` is not empty.
        InputError: A bag, a class or a part of the split cannot be used.

    Example:
        >>> import gcemil, torch
        >>> bags = [torch.randn(20, 8) + number % 2 for number in range(12)]
        >>> model = gcemil.fit(bags, [0, 1] * 6, host="abmil", epochs=2, seed=1)
        >>> round(sum(model.predict(bags[0]).values()), 6)
        1.0
    """
    name = f"{host.__module__}:{host.__qualname__}" if isinstance(host, type) else host
    chosen = settings.host if settings and host == "abmil" else name
    base = (settings or TrainSettings()).model_dump() | changes
    base["host"] = chosen if isinstance(chosen, HostSettings) else HostSettings(name=chosen)
    values = TrainSettings.from_values(base, "The settings of fit")
    with _open_folder(out) as folder, one_thread(), torch.random.fork_rng(devices=[]):
        if isinstance(bags, Cohort | Path | str):
            if labels is not None or pairs is not None:
                raise UsageError(
                    "A cohort has its own labels and pairs. Leave labels and pairs out."
                )
            cohort = bags if isinstance(bags, Cohort) else Cohort.load(Path(bags))
            refuse_targets(cohort)
        else:
            cohort = make_cohort(bags, labels, folder, task=task, classes=classes, cases=cases)
        if pairs is not None:
            features, anchor_space = map(as_array, pairs)
            store.write(folder / PAIRS_FILE, {"features": features, "anchor_space": anchor_space})
        values = resolve_pretrained_host(values, cohort, [0])
        parts = _split(cohort, values, validation)
        torch.manual_seed(stream_seed(values.seed, 0, 99))
        given = pretrained_host_of_fold(values, cohort, 0)
        bank = None
        if anchors is not None:
            bank = _make_bank(anchors, reference_patches(cohort, parts.train, seed=values.seed))
        loaded = create_network(
            cohort, parts.train, values, pick_device(values.device), given, bank
        )
        objective = training_task(cohort, values, parts.train, loaded.label_scale)
        progress = train(
            loaded, cohort, parts, objective, values, RunFold(folder), on_epoch=on_epoch
        )
        fit_evidence(loaded, cohort, parts, values)
        if out is not None:
            save_network(RunFold(folder).checkpoint, loaded, cohort, values)
    loaded.network.eval()
    counts = {"train": len(parts.train), "val": len(parts.val), "test": 0}
    data = {"cohort": cohort.card.name, "slides": counts}
    return FittedModel(loaded, describe_network(loaded, cohort, values), progress.history, data)


@contextmanager
def _open_folder(out: Path | str | None) -> Iterator[Path]:
    """A new folder to train in, or a temporary one."""
    if out is None:
        with tempfile.TemporaryDirectory(prefix="gcemil_") as name:
            yield Path(name)
        return
    folder = Path(out)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} exists and is not empty. Give out= a new folder.")
    folder.mkdir(parents=True, exist_ok=True)
    yield folder


def _split(cohort: Cohort, settings: TrainSettings, validation: Sequence[int] | None) -> FoldParts:
    """Training and validation bags; both must have something to compare."""
    if validation is None:
        fold = carve_validation(
            cohort.slides, Fold(0, {row.slide_id: "train" for row in cohort.slides})
        )
        parts = fold_parts(cohort, fold)
    else:
        chosen = {range(len(cohort.bags))[number] for number in validation}
        train_bags = [spec for number, spec in enumerate(cohort.bags) if number not in chosen]
        parts = FoldParts(train_bags, [cohort.bags[number] for number in sorted(chosen)], [])
    for name, specs in (("training", parts.train), ("validation", parts.val)):
        if not specs:
            raise UsageError(
                f"{len(cohort.bags)} bags leave none for {name}. Give more bags, or validation=."
            )
        create_task(cohort, settings).check(stacked_targets(specs), where=f"The {name} bags")
    return parts


def explain(
    model: FittedModel | GceMil,
    bag: Any,
    *,
    target: str | int | None = None,
    against: str | int | None = None,
) -> Evidence:
    """Find the patches on which the prediction of a bag rests, and predict with and without them.

    Args:
        model: What `fit`, `load` or `wrap` returned.
        bag: Features (patches, width), (features, coords), or a `Bag`.
        target: The class whose evidence is searched, by name or index, predicted or not; None is
            the predicted class.
        against: A class to compare `target` with, by name or index: the evidence supports `target`
            and not this class, and `further` has the smallest set found whose removal changes the
            prediction to this class. None compares with all others.

    Returns:
        The evidence with its verdict, and in `further` a second and third set of patches that keep
        the prediction.

    Raises:
        UsageError: The model is a plain host or in training mode, or has no such class.
        BagError: The bag does not fit the model.

    Example:
        >>> import gcemil, torch
        >>> model = gcemil.wrap(lambda bag: bag.mean(dim=0)[:2], 2, patches=torch.randn(40, 8))
        >>> evidence = gcemil.explain(model, torch.randn(30, 8))
        >>> len(evidence.scores), sorted(evidence.prediction)
        (30, ['0', '1'])
    """
    fitted = model if isinstance(model, FittedModel) else None
    network = fitted.network if fitted else model
    if isinstance(network, str | Path):
        raise UsageError(
            f"Open the model first: gcemil.explain(gcemil.load({str(network)!r}), bag)."
        )
    if not isinstance(network, GceMil):
        raise UsageError(
            f"A {type(network).__name__} has no evidence. Put it into gcemil.wrap first."
        )
    given = read_bag_item(bag, "bag")
    kind = fitted.output_kind if fitted else network.output_kind
    names = kind.names(fitted.record["classes"] if fitted else ())
    explanation = explain_bag(network, given, ClassQuestion.read(names, target, against))
    output, asked = explanation.output, explanation.asked
    tensors = bag_tensors(given, network.anchors.device)
    scale = RiskScale(deviation=float(network.risk_spread))
    further = find_further_sets(
        PredictedBag(network.explained, *tensors, output.embedded, output.answer),
        explanation.recovery.selected,
        output.scores,
        OutputScale(network.n_outputs, scale, asked=asked),
        network.tolerances,
        names,
        turning=explanation.turning,
        against=None if asked is None else asked.against,
    )
    prediction, kept, removed = (
        None if one is None else dict(zip(names, kind.values(one.logits), strict=True))
        for one in (output.answer, explanation.kept, explanation.removed)
    )
    return Evidence(
        bag=given,
        slides=tuple(slide_evidence(network, given, explanation)),
        prediction=prediction or {},
        kept=kept or {},
        removed=removed,
        further=further,
    )


def audit(
    model: Any,
    bags: Any,
    explanation: Scoring | Mapping[str, Scoring] | None = None,
    *,
    budget: float = 0.05,
    gates: bool = False,
    tolerances: Sequence[float] = (0.01, 0.05, 0.1),
    task: Task | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Judge an explanation of any model by keeping and removing the patches that it selects.

    Phi is the probability of the class predicted on all patches, or the risk or value in units of
    those of the bags.

    Args:
        model: What `fit`, `load` or `wrap` returned, a host, or any module or function from
            features (patches, width) or (1, patches, width) to logits, (logits, scores), a dict
            with "logits", or the tuple of a CLAM model. A model whose output for one bag varies,
            and outputs that look like probabilities, are warned of.
        bags: A list of bags, a dataset or a `Cohort`.
        explanation: A function from a bag, as given, to scores (patches,) or to a boolean mask, or
            {name: function}. None judges the model's own evidence and attention.
        budget: Share of the patches that scores select.
        gates: The scores are gates in [0, 1], so that recoverability is measured too.
        tolerances: Differences of Phi at which verdicts are given.
        task: "survival" if a single output is a risk, "regression" if it is a value; otherwise it
            is the log-odds of the second class.
        seed: Seed of the random patches that every table has for comparison.

    Returns:
        A row per bag and rule: n_patches, n_selected, phi_full, phi_kept, phi_removed, phi_gated,
        sufficiency_gap, necessity_gap, recoverability_gap, and sufficient@t, necessary@t,
        recoverable@t for every tolerance t. A sentence for every rule, with a 95 % interval, is in
        attrs["verdict"].

    Raises:
        UsageError: The model is in training mode, or an explanation has the wrong length or type.

    Example:
        >>> import gcemil, torch
        >>> bags = [torch.randn(40, 8) for _ in range(3)]
        >>> rules = {"norm": lambda bag: bag.norm(dim=1)}
        >>> table = gcemil.audit(lambda bag: bag.mean(dim=0)[:2], bags, rules)
        >>> sorted(table.rule.unique()), len(table)
        (['norm', 'random'], 6)
    """
    items = map(bags.read_bag, bags.bags) if isinstance(bags, Cohort) else iterate_items(bags)
    network: Any = model.network if isinstance(model, FittedModel) else model
    if getattr(network, "training", False):
        raise UsageError("The model is in training mode. Call model.eval().")
    asked = {"scores": explanation} if callable(explanation) else dict(explanation or {})
    rows: list[dict[str, Any]] = []
    outcomes: list[BagOutcome] = []
    for number, item in enumerate(items):
        bag = read_bag_item(item, f"bag_{number}")
        if not isinstance(network, GceMil | Host):
            network = adapt_model(
                network, bag_tensors(bag)[0], is_number=task in ("survival", "regression")
            )
            given = bag_tensors(bag, find_device(network))
            for note in check_answers(bag.bag_id, partial(_ask_logits, network, given)):
                warnings.warn(note, UserWarning, stacklevel=2)
        with name_bag_in_errors(bag.bag_id):
            for rule, selected, outcome in apply_rules(
                network, item, bag, asked, budget, gates, seed
            ):
                counts = {"n_patches": len(bag), "n_selected": int(selected.sum())}
                rows.append({"bag_id": bag.bag_id, "rule": rule, **counts})
                outcomes.append(outcome)
    if not rows:
        raise UsageError("There is no bag to audit. Give at least one bag.")
    # The unit of risk is that of the training bags if the model has it.
    spread = float(network.risk_spread) if isinstance(network, GceMil) else None
    answers = OutputScale(
        network.n_outputs, measure_risk_scale(outcomes, network.n_outputs, spread)
    )
    table = pd.DataFrame(
        [
            row | judge_outcome(answers, outcome, tolerances)
            for row, outcome in zip(rows, outcomes, strict=True)
        ]
    )
    table.attrs["verdict"] = describe_table(table, tolerances)
    return table


def _ask_logits(network: Host, bag: tuple[Tensor, Tensor | None]) -> Tensor:
    with torch.no_grad():
        return network(*bag).logits


def save(model: FittedModel, path: Path | str, *, license_name: str = UNKNOWN_LICENSE) -> Path:
    """Write a fitted model into a new folder: model.safetensors, config.json and a model card.

    Args:
        model: What `fit` or `load` returned.
        path: The folder, which must not exist or be empty.
        license_name: Licence of the weights, for the card.

    Returns:
        The folder.

    Raises:
        UsageError: The folder is not empty, or the model cannot be built again from its settings.

    Example:
        >>> import gcemil, tempfile, torch
        >>> bags = [torch.randn(20, 8) + number % 2 for number in range(12)]
        >>> folder = gcemil.save(gcemil.fit(bags, [0, 1] * 6, epochs=1), tempfile.mkdtemp())
        >>> sorted(path.name for path in folder.iterdir())
        ['README.md', 'config.json', 'model.safetensors']
    """
    if not isinstance(model, FittedModel):
        raise UsageError(
            f"A {type(model).__name__} cannot be built again from settings. Save its state_dict "
            "with safetensors."
        )
    record, unknown = model.record, {"cohort": "unknown", "slides": None}
    data = {
        **unknown,
        **model.data,
        "encoder": record["encoder"],
        "feature_width": record["in_dim"],
        "patch_size_level0": record["patch_size_level0"],
        "simulated": None,
    }
    config = {
        "format": PRETRAINED_FORMAT,
        "gcemil": __version__,
        "network": record,
        "license": license_name,
        "data": data,
        "measured": {"task": {}, "snr": None},
        "provenance": {"fold": 0},
    }
    return write_folder(Path(path), model.loaded, config)


def load(path: Path | str, device: torch.device | str = "cpu") -> FittedModel:
    """Open a trained model; nothing in its files is executed.

    Args:
        path: A folder of `save` or `gcemil export --pretrained`, a run (its first trained fold), a
            fold or a checkpoint.
        device: Where the model is put.

    Returns:
        The model in evaluation mode.

    Raises:
        RunError: The folder holds no trained model.

    Example:
        >>> import gcemil, tempfile, torch
        >>> bags = [torch.randn(20, 8) + number % 2 for number in range(12)]
        >>> model = gcemil.fit(bags, [0, 1] * 6, epochs=1)
        >>> again = gcemil.load(model.save(tempfile.mkdtemp()))
        >>> again.predict(bags[0]) == model.predict(bags[0])
        True
    """
    place = Path(path)
    if Run(place).is_begun:
        Run(place).refuse_targets()
        place = Run(place).trained_folds()[0].path
    return FittedModel(
        *load_network(RunFold(place).checkpoint if place.is_dir() else place, device)
    )
