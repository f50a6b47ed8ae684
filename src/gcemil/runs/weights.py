"""Hosts with weights that were trained elsewhere, in another run, or for several targets.

A file is safetensors or what torch.save writes; nothing in it is ever run. Three namings are read:
  a checkpoint of a run      its header names host, options, classes; the wrapper is left behind
  the names of our own class what `host.state_dict()` has; sizes are those of the options given
  the names of the authors   one table per host (hosts/published.py), sizes read from the shapes

A run of several targets has one model with an output z_t per target, and each target as a run of
two classes around a view of that model (RUN/targets/<target>). The view is a host of the same class
with two outputs: what belongs to output t is split between its classes, everything else is copied:
  logits of the view         (-z_t / 2, z_t / 2); softmax gives (1 - sigmoid(z_t), sigmoid(z_t))
Where outputs share weights there is no such host, and the model is refused.
"""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from gcemil.bags.cohort import Cohort
from gcemil.bags.fingerprint import content_hash
from gcemil.config import HostSettings, HostWeights, TrainSettings
from gcemil.errors import RunError, UsageError, WeightsError
from gcemil.files import is_file, parse_json, validate_as
from gcemil.hosts.published import (
    LAYOUTS,
    PublishedHost,
    Tensors,
    describe_misfit,
    listed,
    named_tensors,
    read_published,
)
from gcemil.hosts.table import HOSTS, AnyHost, host_spec
from gcemil.runs.checkpoint import NetworkRecord, build_host, join_hashes
from gcemil.runs.folder import Run
from gcemil.wording import near_path

SAVE_AGAIN = (
    "Where it was trained, save the tensors alone: torch.save(model.state_dict(), 'weights.pt')."
)
CHECKED_PATCHES = 16
TOLERANCE = 1e-4
SHARES_WEIGHTS = (
    "Host '{}' cannot have several targets: its outputs share weights, or its own loss takes one "
    "class per slide. Use abmil, transmil or mean, or import one target at a time."
)


@dataclass(frozen=True)
class PretrainedHost:
    """A host as a file of weights describes it; it fits the cohort."""

    source: Path
    sha256: str
    settings: HostSettings
    tensors: Tensors
    """Every tensor of the host, by our names."""
    notes: tuple[str, ...]
    label_scale: tuple[float, float] | None = None
    """Mean and deviation of its training labels, if it is a checkpoint of regression."""

    @property
    def record(self) -> dict[str, Any]:
        """What a fold keeps of where its weights came from."""
        source = str(self.source.resolve())
        return {"source": source, "sha256": self.sha256, "notes": list(self.notes)}


# Reading a file


def read_pretrained_host(path: Path, host: HostSettings, cohort: Cohort) -> PretrainedHost:
    """The host of `host.name` with the weights of a file; what does not fit is refused by name."""
    host_spec(host.name)
    content, header = _read_weights_file(path)
    is_regression, scale = cohort.card.task == "regression", None
    settings, notes = host, ()  # type: tuple[HostSettings, tuple[str, ...]]
    if header is None and is_regression and (host.weights is None or host.weights.frozen):
        raise WeightsError(
            f"{path} does not say in which unit its value is counted, so it cannot be taken as it "
            f"is. To train on from these weights: {_train_on(path, host, cohort)}."
        )
    if header is not None:
        settings, tensors, notes = _read_own_checkpoint(path, content, header, host, cohort)
        if is_regression:
            scale = header["label_mean"], header["label_deviation"]
    elif _has_our_names(content, host, cohort):
        tensors = _rename_tensors(content, _expected_tensors(host, cohort))
    else:
        settings, tensors, notes = _read_published_checkpoint(path, content, host, cohort)
    fitted = _fit_tensors(path, tensors, settings, cohort)
    return PretrainedHost(path, content_hash(path), settings, fitted, notes, scale)


def _train_on(path: Path, host: HostSettings, cohort: Cohort) -> str:
    return f"gcemil train {cohort.folder} --host {host.name} --host-weights {path}"


def _read_weights_file(path: Path) -> tuple[Any, dict[str, Any] | None]:
    """What a file of weights holds, and the header of a checkpoint of ours."""
    if not is_file(path):
        is_missing = not path.exists()
        reason = f"does not exist.{near_path(path)}".rstrip(".") if is_missing else "is not a file"
        raise WeightsError(f"{path} {reason}. Give the file of weights that your training wrote.")
    content, header = None, None
    try:
        with path.open("rb") as file:
            is_safetensors = file.read(9)[8:] == b"{"
        if is_safetensors:
            with safe_open(path, framework="pt") as tensors:
                content = {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118
                text = (tensors.metadata() or {}).get("gcemil")
            header = None if text is None else parse_json(text, path)
        else:
            with warnings.catch_warnings():
                # Old files make torch warn of how it reads them.
                warnings.simplefilter("ignore")
                content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        # A damaged or hostile pickle makes torch raise almost anything.
        if pickled := re.search(r"GLOBAL ([\w.]+)", str(error)):
            raise WeightsError(
                f"{path} holds Python objects beside tensors ({pickled[1]}), which are never "
                f"loaded. {SAVE_AGAIN}"
            ) from error
        raise WeightsError(
            f"{path} is not a file of weights: neither safetensors nor tensors saved by torch, or "
            f"damaged. {SAVE_AGAIN}"
        ) from error
    if not (named := _list_tensors(content)):
        raise WeightsError(f"{path} holds no tensors by name. {SAVE_AGAIN}")
    if any(one.layout != torch.strided or one.is_quantized for one in named):
        raise WeightsError(
            f"{path} holds sparse or quantized tensors, which no host has. Nothing was loaded."
        )
    return content, header


def _list_tensors(content: Any) -> list[Tensor]:
    """The tensors of a mapping or list, or of the mappings inside it."""
    parts = list(content.values()) if isinstance(content, Mapping) else content
    if not isinstance(parts, Sequence):
        return []
    inner = [part.values() if isinstance(part, Mapping) else [part] for part in parts]
    return [tensor for part in inner for tensor in part if isinstance(tensor, Tensor)]


def _read_own_checkpoint(
    path: Path, content: Any, header: Any, host: HostSettings, cohort: Cohort
) -> tuple[HostSettings, Tensors, tuple[str, ...]]:
    """A checkpoint of ours; the wrapper around a host is left behind."""
    remedy = "Give another file."
    record = validate_as(header, NetworkRecord, path, error=WeightsError, remedy=remedy)
    trained, card = record.settings.host, cohort.card
    if trained.name != host.name:
        raise WeightsError(
            f"{path} is a checkpoint of host '{trained.name}', not of '{host.name}'. Give --host "
            f"{trained.name}."
        )
    if tuple(record.classes) != tuple(card.classes) or record.task != card.task:
        raise WeightsError(
            f"{path} was trained for {record.task} {', '.join(record.classes)}, but "
            f"{cohort.folder} is {card.task} {', '.join(card.classes)}. Outputs would be read as "
            "other classes."
        )
    _refuse_other_options(path, trained.options, host.options)
    tensors = dict(content)
    if record.bank is not None:
        inside = (key for key in tensors if key.startswith("host."))
        tensors = {key.removeprefix("host."): tensors[key] for key in inside}
    changes = {
        "options": {**host.options, **trained.options},
        "gate_mode": host.gate_mode or trained.gate_mode,
    }
    note = (
        f"The weights were trained on features of '{record.encoder}', the cohort has "
        f"'{card.encoder}'."
    )
    notes = (note,) if record.encoder != card.encoder else ()
    return host.model_copy(update=changes), tensors, notes


def _has_our_names(content: Any, host: HostSettings, cohort: Cohort) -> bool:
    """Whether most names are those of our class; always true without a published layout."""
    if host.name not in LAYOUTS:
        return True
    names = set(named_tensors(content))
    return 2 * len(names & set(_expected_tensors(host, cohort))) > len(names)


def _rename_tensors(content: Any, expected: Mapping[str, Tensor]) -> Tensors:
    """The tensors by the host's names; own hosts and DataParallel add a word to each."""
    tensors = named_tensors(content)
    prefixes = ["", *dict.fromkeys(f"{key.split('.')[0]}." for key in expected)]
    parallel = {key.replace(".module.", "."): one for key, one in tensors.items()}
    for named, prefix in itertools.product((tensors, parallel), prefixes):
        if {f"{prefix}{key}" for key in named} == set(expected):
            return {f"{prefix}{key}": one for key, one in named.items()}
    return tensors


def _read_published_checkpoint(
    path: Path, content: Any, host: HostSettings, cohort: Cohort
) -> tuple[HostSettings, Tensors, tuple[str, ...]]:
    """A checkpoint in the authors' naming; sizes are read from its shapes."""
    try:
        published = read_published(host.name, content, risk=cohort.card.task != "classification")
    except WeightsError as error:
        fitting = [name for name in LAYOUTS if name != host.name and _is_published(name, content)]
        hint = f" It is a '{fitting[0]}': give --host {fitting[0]}." if fitting else ""
        raise WeightsError(f"{path}: {error}{hint}") from error
    if published.in_dim != cohort.card.feature_dim:
        raise WeightsError(
            f"{path} reads features of width {published.in_dim}, but {cohort.folder} has width "
            f"{cohort.card.feature_dim} ('{cohort.card.encoder}'). Use features of the encoder it "
            "was trained on."
        )
    _refuse_other_options(path, published.options, host.options)
    settings = host.model_copy(update={"options": {**host.options, **published.options}})
    classes = cohort.card.classes
    if published.n_outputs != cohort.n_outputs:
        if host.weights is None or host.weights.frozen:
            raise WeightsError(
                f"{path} has {published.n_outputs} outputs, but {cohort.folder} needs "
                f"{cohort.n_outputs} ({', '.join(classes) or 'one number'}). To train a new head "
                f"on these weights: {_train_on(path, host, cohort)}."
            )
        note = (
            f"The file has {published.n_outputs} outputs and the cohort {cohort.n_outputs}: the "
            "head starts anew."
        )
        return settings, _with_new_head(published, settings, cohort), (note, *published.caveats)
    tensors = dict(published.create(host.gate_mode, host.options).state_dict())
    if not classes:
        return settings, tensors, published.caveats
    order = ", ".join(f"{place} is {name}" for place, name in enumerate(classes))
    note = f"The file does not name its outputs; they are read in the cohort's order: {order}."
    return settings, tensors, (note, *published.caveats)


def _with_new_head(published: PublishedHost, host: HostSettings, cohort: Cohort) -> Tensors:
    """A host for the outputs of the cohort, its head drawn from a fixed seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        fresh = build_host(host, in_dim=published.in_dim, n_outputs=cohort.n_outputs).state_dict()
    given = published.tensors.items()
    kept = {key: one for key, one in given if key in fresh and one.shape == fresh[key].shape}
    return {**fresh, **kept}


def _is_published(name: str, content: Any) -> bool:
    """Whether these are the published weights of this host."""
    try:
        read_published(name, content)
    except WeightsError:
        return False
    return True


def _refuse_other_options(
    path: Path, options: Mapping[str, object], asked: Mapping[str, object]
) -> None:
    for key, value in options.items():
        if key in asked and asked[key] != value:
            raise UsageError(f"{path} has {key} {value}, but host.options.{key} is {asked[key]}.")


def _expected_tensors(host: HostSettings, cohort: Cohort) -> dict[str, Tensor]:
    """The tensors of such a host; of the built-in ones their shapes alone, whatever the sizes."""
    with torch.device("meta") if host.name in HOSTS else nullcontext():
        fresh = build_host(host, in_dim=cohort.card.feature_dim, n_outputs=cohort.n_outputs)
    return dict(fresh.state_dict())


def _fit_tensors(path: Path, tensors: Tensors, host: HostSettings, cohort: Cohort) -> Tensors:
    """The tensors in our types, if they are all of the host's and nothing else."""
    expected = _expected_tensors(host, cohort)
    misshapen = [
        f"{key} {tuple(tensors[key].shape)} where {tuple(one.shape)} was expected"
        for key, one in expected.items()
        if key in tensors and tensors[key].shape != one.shape
    ]
    missing, left_over = sorted(expected.keys() - tensors), sorted(tensors.keys() - expected)
    if misfit := describe_misfit(missing, left_over, misshapen):
        raise WeightsError(
            f"{path} does not hold a '{host.name}' for features of width {cohort.card.feature_dim} "
            f"and {cohort.n_outputs} outputs: {misfit}. Nothing was loaded."
        )
    if wild := [key for key, one in tensors.items() if not bool(torch.isfinite(one).all())]:
        raise WeightsError(
            f"{path} has NaN or infinite numbers in {listed(sorted(wild))}. It is damaged."
        )
    return {key: tensors[key].detach().to(one.dtype).contiguous() for key, one in expected.items()}


# Which file belongs to which fold


def _weights_of_folds(source: Path) -> dict[int, Path] | None:
    """The checkpoint of every trained fold of a run; None for a file, which serves every fold."""
    if not source.is_dir():
        return None
    return {fold.number: fold.checkpoint for fold in Run(source).trained_folds()}


def pretrained_host_of_fold(
    settings: TrainSettings, cohort: Cohort, fold: int
) -> PretrainedHost | None:
    """The weights that a fold starts from; None where it starts afresh."""
    if settings.host.weights is None:
        return None
    source = Path(settings.host.weights.source)
    per_fold = _weights_of_folds(source)
    if per_fold is not None and fold not in per_fold:
        raise RunError(
            f"{source} has no trained fold {fold}, only {', '.join(map(str, per_fold))}. "
            "Give --folds, or train it there."
        )
    path = source if per_fold is None else per_fold[fold]
    return read_pretrained_host(path, settings.host, cohort)


def resolve_pretrained_host(
    settings: TrainSettings, cohort: Cohort, folds: Sequence[int]
) -> TrainSettings:
    """The settings with the sizes and the hash of the weights that are to be used."""
    weights = settings.host.weights
    if weights is None:
        return settings
    source = Path(weights.source)
    if (per_fold := _weights_of_folds(source)) is not None:
        name = Run(source).card.settings.host.name
        if name != settings.host.name:
            raise UsageError(f"{source} is a run of host '{name}', not of '{settings.host.name}'.")
        Run(source).check_cohort(cohort)
    hosts = [
        host
        for fold in folds
        if (host := pretrained_host_of_fold(settings, cohort, fold)) is not None
    ]
    check_same_sizes(hosts)
    sha256 = join_hashes([content_hash(path) for path in (per_fold or {0: source}).values()])
    if weights.sha256 not in (None, sha256):
        raise WeightsError(
            f"{source} has changed: SHA-256 {sha256}, but {weights.sha256} is recorded."
        )
    used = HostWeights(source=str(source.resolve()), frozen=weights.frozen, sha256=sha256)
    sized = hosts[0].settings.model_copy(update={"weights": used})
    return settings.model_copy(update={"host": sized})


def check_same_sizes(hosts: Sequence[PretrainedHost]) -> None:
    """Refuse weights of different sizes for one run."""
    first = hosts[0]
    for other in hosts:
        if other.settings.options != first.settings.options:
            raise WeightsError(
                f"{other.source} is of other sizes than {first.source}: "
                f"{dict(other.settings.options)} and {dict(first.settings.options)}. "
                "A run has one host."
            )


# A host of several targets


def target_host(settings: HostSettings, host: AnyHost, index: int) -> AnyHost:
    """The view of one target; UsageError where no host of two outputs predicts as this one does."""
    view = build_host(settings, in_dim=host.in_dim, n_outputs=2)
    shapes = build_host(settings, in_dim=host.in_dim, n_outputs=3).state_dict()
    # An output that is a maximum has no mirrored twin, but one that stays at 0.
    for shares in ((-0.5, 0.5), (0.0, 1.0)):
        # Tensors that do not fit are those of outputs that share weights.
        with suppress(RuntimeError, KeyError, IndexError):
            tensors = {
                name: tensor
                if shapes[name].shape == view.state_dict()[name].shape
                else torch.stack([share * tensor[index] for share in shares])
                for name, tensor in host.state_dict().items()
            }
            view.load_state_dict(tensors)
            if _predicts_alike(host, view, index):
                return view
    raise UsageError(SHARES_WEIGHTS.format(settings.name))


@torch.no_grad()
def _predicts_alike(host: AnyHost, view: AnyHost, index: int) -> bool:
    """Whether the log-odds of the view are the output of the target, on random patches."""
    patches, was_training = _draw_patches(host), host.training
    logits, odds = host.eval()(*patches).logits[index], view.eval()(*patches).logits.diff()
    host.train(was_training)
    return bool((odds - logits).abs() <= TOLERANCE * (1 + logits.abs()))


def check_host_serves_targets(settings: HostSettings, *, in_dim: int, n_targets: int) -> None:
    """Refuse a host without a view of every target before anything is trained."""
    with torch.random.fork_rng(devices=[]):
        host = build_host(settings, in_dim=in_dim, n_outputs=n_targets)
        try:
            host(*_draw_patches(host), target=torch.arange(n_targets) % 2.0)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            raise UsageError(SHARES_WEIGHTS.format(settings.name)) from error
        for index in range(n_targets):
            target_host(settings, host, index)


def _draw_patches(host: AnyHost) -> tuple[Tensor, Tensor]:
    features = torch.randn(CHECKED_PATCHES, host.in_dim, generator=torch.Generator().manual_seed(0))
    index, device = torch.arange(CHECKED_PATCHES), next(host.parameters()).device
    coords = torch.stack([index % 4, index // 4], dim=1) * 512
    return features.to(device), coords.to(device)
