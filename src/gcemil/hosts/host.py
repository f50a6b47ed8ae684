"""The contract of a MIL host: patch features in, one prediction and one raw score per patch out.

A host is two steps. `embed` works on every patch alone and without gates; `aggregate` pools the
embedded patches under log-gates. Interventions, occlusion and subset search embed once and
aggregate many times.

Two gate modes:
  deletion  a gate of 0 removes the patch, wherever the mathematics of the host allows it
  paper     as in the GCE-MIL paper: a bias on the attention logit, a factor on the feature, or both

A target is a class index (0-d, integer), a value or, for a risk, (time, event). Hosts with one
output read its presence only.

A class may offer shortcuts, which make diagnostics fast or possible; none is needed:
  linear_form(embedded)   softmax pooling as a few numbers per patch (attention.py)
  subset_form(embedded, coords)   a function from a subset to its logits
  closed_form()           one logit without, and with only, each patch, where there is no linear
                          form; None where the options rule it out
  lrp_constants           modules that make pooling weights, held constant by relevance propagation
Only the class itself counts: a subclass may pool in its own way, so it has to offer its own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Generic, Literal, Protocol, TypeVar, cast, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gcemil.config import Precision
from gcemil.device import computing_in
from gcemil.errors import BagError, UsageError
from gcemil.row_blocks import mapped_rows, to_float32
from gcemil.shapes import Coords, Features, Gates, LogGates, Logits, Scores, Selected

GateMode = Literal["paper", "deletion"]
GatePosition = Literal["logit", "feature", "both"]


E = TypeVar("E", bound="Embedded")


@dataclass(frozen=True)
class Embedded:
    """Per-patch tensors of an embedded bag; hosts add fields by subclassing.

    Args:
        tokens: The embedded patches, (patches, width).

    Example:
        >>> import gcemil, torch
        >>> embedded = gcemil.Embedded(torch.zeros(5, 4))
        >>> embedded.rows(torch.tensor([0, 2])).tokens.shape
        torch.Size([2, 4])
        >>> embedded.with_tensors({"tokens": torch.ones(5, 4)}).present()["tokens"].sum()
        tensor(20.)
    """

    tokens: Float[Tensor, "n w"]

    def rows(self: E, index: Tensor) -> E:
        """Take some of the patches.

        Args:
            index: Rows, or a bool mask over the patches.

        Returns:
            The same tensors for these patches.
        """
        return self.with_tensors({name: value[index] for name, value in self.present().items()})

    def with_tensors(self: E, tensors: Mapping[str, Tensor]) -> E:
        """Replace tensors.

        Args:
            tensors: New tensors by name.

        Returns:
            A copy with these tensors.
        """
        return replace(self, **tensors)

    def present(self) -> dict[str, Tensor]:
        """List the tensors.

        Returns:
            Every field that is not None, by name.
        """
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class HostOutput:
    """The output of a host for one bag.

    Example:
        >>> import gcemil, torch
        >>> output = gcemil.create_host("abmil", in_dim=8, n_outputs=2)(torch.randn(5, 8))
        >>> output.logits.shape, output.scores.shape
        (torch.Size([2]), torch.Size([5]))
    """

    logits: Logits
    """One number per class, or a single risk or value, (outputs,)."""
    bag_feature: Float[Tensor, "w"]
    """The pooled bag, (width,)."""
    scores: Scores
    """Finite score of each patch, (patches,); higher means more attention."""
    contributions: Scores | None = None
    """Signed share of each patch in the predicted output, (patches,); None unless the host pools
    linearly."""
    auxiliary_logits: Mapping[str, Logits] = field(default_factory=dict)
    """Further logits that the task loss applies to, weighted by the host's `task_weights`."""
    losses: Mapping[str, Float[Tensor, ""]] = field(default_factory=dict)
    """Losses of the host itself, already weighted; empty without a target."""


@dataclass(frozen=True)
class ClosedForm:
    """One logit of an embedded bag, given by its index, without and with only each patch."""

    without: Callable[[Any, Coords | None, int], Scores]
    alone: Callable[[Any, int], Scores]


@dataclass(frozen=True)
class Stage:
    """One pass of training over all epochs; most hosts have one.

    Example:
        >>> import gcemil
        >>> gcemil.create_host("abmil", in_dim=8, n_outputs=2).stages()
        (Stage(name='train', prepares=False, keeps_best=False),)
    """

    name: str
    """Name in the history of a training."""
    prepares: bool = False
    """A preparing stage trains the plain host only, with and without evidence."""
    keeps_best: bool = False
    """A preparing stage ends with the weights of its best epoch on validation."""


@runtime_checkable
class Host(Protocol):
    """What the wrapper, the training loop and the diagnostics need from a host.

    `MilHost` implements it all but for `embed` and `pool`, which a subclass writes.

    Attributes:
        in_dim: Width of the features.
        n_outputs: Number of classes; 1 for a risk or a value.
        gate_mode: "paper" or "deletion", see hosts/host.py.
        task_weights: Weight of the task loss on "bag", the logits, and on each auxiliary logit.

    Example:
        >>> import gcemil
        >>> isinstance(gcemil.create_host("abmil", in_dim=8, n_outputs=2), gcemil.Host)
        True
    """

    in_dim: int
    n_outputs: int
    gate_mode: GateMode
    task_weights: Mapping[str, float]

    @property
    def reweights_features(self) -> bool: ...

    def __call__(
        self,
        features: Tensor,
        coords: Tensor | None = None,
        *,
        gates: Tensor | None = None,
        target: Tensor | None = None,
    ) -> HostOutput: ...

    def embed(self, features: Tensor) -> Embedded: ...

    def aggregate(
        self,
        embedded: Embedded,
        coords: Tensor | None,
        *,
        log_gates: Tensor | None = None,
        target: Tensor | None = None,
    ) -> HostOutput: ...

    def gated(
        self,
        features: Tensor,
        embedded: Embedded,
        coords: Tensor | None,
        log_gates: Tensor,
        *,
        target: Tensor | None = None,
    ) -> HostOutput: ...

    def stages(self) -> tuple[Stage, ...]: ...

    def begin_stage(
        self, stage: Stage, bag_features: Callable[[], Tensor], n_steps: int
    ) -> None: ...

    def after_step(self) -> None: ...


class MilHost(nn.Module, Generic[E]):
    """Base class of hosts; a subclass writes `embed` and `pool`.

    Args:
        in_dim: Width of the features.
        n_outputs: Number of classes; 1 for a risk or a value.
        gate_mode: "paper" applies gates as the paper does, "deletion" removes a patch of gate 0.

    Raises:
        UsageError: A number is below 1.

    Example:
        >>> import gcemil, torch
        >>> class Mean(gcemil.MilHost):
        ...     def __init__(self, in_dim, n_outputs, gate_mode="deletion"):
        ...         super().__init__(in_dim, n_outputs, gate_mode)
        ...         self.classifier = torch.nn.Linear(in_dim, n_outputs)
        ...
        ...     def embed(self, features):
        ...         return gcemil.Embedded(features)
        ...
        ...     def pool(self, embedded, coords, log_gates, target):
        ...         if log_gates is None:
        ...             log_gates = torch.zeros(len(embedded.tokens))
        ...         weights = torch.softmax(log_gates, dim=0)
        ...         feature = weights @ embedded.tokens
        ...         return gcemil.HostOutput(self.classifier(feature), feature, scores=weights)
        >>> host, features = Mean(8, 2), torch.randn(5, 8)
        >>> embedded, log_gates = host.embed(features), torch.zeros(5)
        >>> host.aggregate(embedded, None, log_gates=log_gates).logits.shape
        torch.Size([2])
        >>> gated = host.gated(features, embedded, None, log_gates)
        >>> torch.equal(gated.logits, host.pool(embedded, None, log_gates, None).logits)
        True
        >>> host.embed_scaled(features, log_gates.exp(), embedded).tokens.shape
        torch.Size([5, 8])
        >>> host.begin_stage(host.stages()[0], lambda: torch.zeros(3, 8), 100)
        >>> host.after_step()
        >>> host.place(torch.device("cpu"))
    """

    paper_gate: GatePosition = "logit"
    precision: Precision = "32"
    """Precision in which a bag is embedded; everything after that is float32."""
    task_weights: Mapping[str, float] = {"bag": 1.0}
    """Weight of the task loss on the bag logits and on each of the auxiliary logits."""

    def __init__(self, in_dim: int, n_outputs: int, gate_mode: GateMode = "paper") -> None:
        super().__init__()
        if in_dim < 1 or n_outputs < 1:
            raise UsageError(
                f"A host needs in_dim >= 1 and n_outputs >= 1, got {in_dim} and {n_outputs}."
            )
        self.in_dim = in_dim
        self.n_outputs = n_outputs
        self.gate_mode: GateMode = gate_mode
        self._elsewhere: tuple[MilHost[E], ...] = ()

    def place(self, device: torch.device) -> None:
        """Embed and pool on another device from now on, where no gradient is needed.

        Bags and outputs stay on the CPU. The weights must not change afterwards.

        Args:
            device: The device of the copy that computes; the CPU removes the copy.
        """
        # In a tuple, so that torch does not count the copy among the weights.
        self._elsewhere = () if device.type == "cpu" else (copy.deepcopy(self).to(device=device),)

    def __getstate__(self) -> dict[str, Any]:
        # A copy of this host may get other weights, and is placed anew.
        return {**self.__dict__, "_elsewhere": ()}

    @property
    def elsewhere(self) -> MilHost[E] | None:
        """The copy that `place` made; None without one, and where gradients are computed."""
        return None if torch.is_grad_enabled() or not self._elsewhere else self._elsewhere[0]

    def embed(self, features: Features) -> E:
        """Embed every patch on its own.

        Args:
            features: Patch features, (patches, in_dim).

        Returns:
            Tensors with one row per patch.
        """
        raise NotImplementedError

    def pool(
        self, embedded: E, coords: Coords | None, log_gates: LogGates | None, target: Tensor | None
    ) -> HostOutput:
        """Pool the embedded patches into one prediction.

        Args:
            embedded: What `embed` returned.
            coords: Top-left corners in level-0 pixels, (patches, 2); None if unknown.
            log_gates: Logarithms of the gates, (patches,), all finite; None without gates.
            target: The label in training; None otherwise.

        Returns:
            Logits, bag feature and patch scores.
        """
        raise NotImplementedError

    def forward(
        self,
        features: Tensor,
        coords: Tensor | None = None,
        *,
        gates: Tensor | None = None,
        target: Tensor | None = None,
    ) -> HostOutput:
        """Predict one bag.

        Args:
            features: Patch features, (patches, in_dim).
            coords: Top-left corners in level-0 pixels, (patches, 2); None if unknown.
            gates: One gate per patch in [0, 1], (patches,); None uses every patch.
            target: The label, for hosts with losses of their own; None otherwise.

        Returns:
            Logits (n_outputs,), scores (patches,) and the pooled feature.

        Raises:
            BagError: Features, coordinates or gates do not fit together.

        Example:
            >>> import gcemil, torch
            >>> host = gcemil.create_host("abmil", in_dim=8, n_outputs=2)
            >>> host(torch.randn(5, 8), gates=torch.tensor([1.0, 0.5, 0, 0, 0])).logits.shape
            torch.Size([2])
        """
        # Users call this: shapes are checked here with a message, not by annotation.
        check_bag(features, coords, in_dim=self.in_dim)
        if gates is None:
            output = self.aggregate(embedded_bag(self, features), coords, target=target)
        else:
            check_gates(gates, n_patches=len(features))
            embedded = None if self.reweights_features else embedded_bag(self, features)
            output = self.gated(features, embedded, coords, log_with_zero(gates), target=target)
        check_finite(output, features)
        return output

    @property
    def reweights_features(self) -> bool:
        """Whether a gate is a factor on the features, so that a gated bag is embedded again."""
        return self.gate_mode == "paper" and self.paper_gate != "logit"

    def gated(
        self,
        features: Features,
        embedded: E | None,
        coords: Coords | None,
        log_gates: LogGates,
        *,
        target: Tensor | None = None,
    ) -> HostOutput:
        """Predict a bag under gates; it is embedded again only where gates scale the features.

        Args:
            features: Patch features, (patches, in_dim).
            embedded: What `embed` returned for them; None embeds them.
            coords: Top-left corners in level-0 pixels, (patches, 2); None if unknown.
            log_gates: Logarithms of the gates, (patches,); -inf removes a patch.
            target: The label in training; None otherwise.

        Returns:
            The output over all patches.

        Raises:
            BagError: Every gate is 0.
        """
        bias: LogGates | None = log_gates
        if embedded is None or self.reweights_features:
            embedded = self.embed_scaled(features, log_gates.exp(), embedded)
            bias = log_gates if self.paper_gate == "both" else None
        return self.aggregate(embedded, coords, log_gates=bias, target=target)

    def embed_scaled(self, features: Features, factors: Gates, plain: E | None) -> E:
        """Embed a bag whose features are scaled.

        Args:
            features: Patch features, (patches, in_dim).
            factors: Factor of each patch, (patches,).
            plain: What `embed` returned for the same features unscaled, for hosts that use it.

        Returns:
            The embedded bag.
        """
        return embedded_bag(self, features, factors)

    def aggregate(
        self,
        embedded: E,
        coords: Coords | None,
        *,
        log_gates: LogGates | None = None,
        target: Tensor | None = None,
    ) -> HostOutput:
        """Pool the patches that are left; one whose log-gate is -inf is removed before `pool`.

        Args:
            embedded: What `embed` returned.
            coords: Top-left corners in level-0 pixels, (patches, 2); None if unknown.
            log_gates: Logarithms of the gates, (patches,); None without gates.
            target: The label in training; None otherwise.

        Returns:
            The output over all patches.

        Raises:
            BagError: Every gate is 0.
        """
        if (copied := self.elsewhere) is not None:
            bag, places, bias, label = moved(
                (embedded, coords, log_gates, target), find_device(copied)
            )
            output = copied.aggregate(bag, places, log_gates=bias, target=label)
            return cast(HostOutput, moved(output, embedded.tokens.device))
        if log_gates is None:
            return self.pool(embedded, coords, None, target)
        kept = torch.isfinite(log_gates)
        index = kept.nonzero().squeeze(1)
        if len(index) == len(kept):
            return self.pool(embedded, coords, log_gates, target)
        if len(index) == 0:
            raise BagError(f"All {len(kept)} gates are 0, so no patch is left. Keep at least one.")
        kept_coords = None if coords is None else coords[index]
        return scatter_output(
            self.pool(embedded.rows(index), kept_coords, log_gates[index], target), kept
        )

    def stages(self) -> tuple[Stage, ...]:
        """List the stages of training.

        Returns:
            The stages in their order.
        """
        return (Stage("train"),)

    def begin_stage(self, stage: Stage, bag_features: Callable[[], Tensor], n_steps: int) -> None:
        """Prepare a stage of training; the training loop calls this before each.

        Args:
            stage: The stage.
            bag_features: Returns the pooled features (training bags, width) under the current
                weights.
            n_steps: Optimiser steps of the stage.
        """

    def after_step(self) -> None:
        """Update what the host keeps beside its weights, after each optimiser step."""


def embedded_bag(host: Any, features: Features, factors: Gates | None = None) -> Any:
    """The embedding of a bag, each row times its factor; outside training in blocks."""
    if (embed_bag := getattr(host, "embed_bag", None)) is not None:
        return embed_bag(features)
    pieces: list[Embedded] = []

    def tensors(rows: Tensor, *factors: Tensor) -> list[Tensor]:
        factor = list(factors)
        home, copied = rows.device, getattr(host, "elsewhere", None)
        if copied is not None:
            rows, *factor = moved((rows, *factor), find_device(copied))
        with computing_in(getattr(host, "precision", "32"), rows.device):
            embedded = (copied or host).embed(rows * factor[0].unsqueeze(1) if factor else rows)
        pieces[:] = [moved(embedded, home)]
        return [to_float32(one) for one in pieces[0].present().values()]

    whole = mapped_rows(tensors, features, *([] if factors is None else [factors]))
    return pieces[0].with_tensors(dict(zip(pieces[0].present(), whole, strict=True)))


def moved(value: Any, device: torch.device) -> Any:
    """The same with every tensor in it on the device."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, Mapping):
        return {name: moved(one, device) for name, one in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(moved(one, device) for one in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value, **{one.name: moved(getattr(value, one.name), device) for one in fields(value)}
        )
    return value


def find_device(model: object) -> torch.device:
    """Where the weights of a model are; the CPU for a function."""
    parameters = model.parameters() if isinstance(model, nn.Module) else iter(())
    return next((parameter.device for parameter in parameters), torch.device("cpu"))


def shortcut(host: object, name: str) -> Any:
    """What the host's own class offers under this name beyond the protocol, or None."""
    return getattr(host, name) if name in vars(type(host)) else None


def closed_form(host: object) -> ClosedForm | None:
    """One logit without, and with only, each patch, where the host's class and options allow it."""
    if (linear_form := shortcut(host, "linear_form")) is not None:
        return ClosedForm(
            lambda embedded, coords, index: linear_form(embedded).without_each(index),
            lambda embedded, index: linear_form(embedded).alone(index),
        )
    create = shortcut(host, "closed_form")
    return None if create is None else create()


def ask_subsets(
    host: Host, embedded: Embedded, coords: Tensor | None
) -> Callable[[Selected], Logits]:
    """A function from a subset of an embedded bag to its logits."""
    if not getattr(host, "training", False):
        if (linear_form := shortcut(host, "linear_form")) is not None:
            return cast(Callable[[Selected], Logits], linear_form(embedded).subset_logits)
        if (subset_form := shortcut(host, "subset_form")) is not None:
            return cast(Callable[[Selected], Logits], subset_form(embedded, coords))
    return lambda selected: pool_rows(host, embedded, coords, selected)


def pool_rows(
    host: Host | MilHost[Any], embedded: Any, coords: Tensor | None, selected: Selected
) -> Logits:
    """The logits of the bag that consists of these rows alone."""
    return host.aggregate(
        embedded.rows(selected), None if coords is None else coords[selected]
    ).logits


def scatter_output(output: HostOutput, kept: Selected) -> HostOutput:
    """The output over the full bag: a removed patch has the lowest score and contributes 0."""
    scores = output.scores.new_full(kept.shape, float(output.scores.detach().min()))
    scores = scores.masked_scatter(kept, output.scores)
    contributions = output.contributions
    if contributions is not None:
        contributions = contributions.new_zeros(kept.shape).masked_scatter(kept, contributions)
    return replace(output, scores=scores, contributions=contributions)


def log_with_zero(gates: Gates) -> LogGates:
    """log pi with -inf at exactly 0, and a gradient that stays finite there."""
    is_open = gates > 0
    return torch.where(is_open, gates, 1.0).log().masked_fill(~is_open, -torch.inf)


def check_bag(features: Tensor, coords: Tensor | None, *, in_dim: int) -> None:
    if features.ndim != 2 or len(features) == 0:
        raise BagError(
            f"A bag is (patches, {in_dim}) with at least one patch, "
            f"got shape {tuple(features.shape)}."
        )
    if features.shape[1] != in_dim:
        raise BagError(
            f"This host takes features of width {in_dim}, got {features.shape[1]}. Create it with "
            f"in_dim={features.shape[1]}, or use features of the encoder it was trained on."
        )
    if coords is not None and coords.shape != (len(features), 2):
        raise BagError(
            f"{len(features)} feature rows need coords of shape ({len(features)}, 2), "
            f"got {tuple(coords.shape)}."
        )


def check_gates(gates: Tensor, *, n_patches: int) -> None:
    if gates.shape != (n_patches,):
        raise BagError(
            f"{n_patches} patches need {n_patches} gates, got shape {tuple(gates.shape)}."
        )
    # Written so that NaN fails too.
    is_valid = (gates >= 0) & (gates <= 1)
    if not bool(is_valid.all()):
        wrong = int((~is_valid).nonzero()[0])
        raise BagError(f"Gates lie in [0, 1], but patch {wrong} has gate {float(gates[wrong])}.")


def check_finite(output: HostOutput, features: Tensor) -> None:
    """NaN in a feature always reaches the logits or the scores, so only those are checked."""
    # Both at once: the result is read off the device, once for every bag.
    if bool(torch.isfinite(output.logits).all() & torch.isfinite(output.scores).all()):
        return
    raise not_finite_error(
        features,
        "The host returned NaN or infinite values for finite features: its weights have diverged.",
    )


def not_finite_error(features: Tensor, otherwise: str) -> BagError:
    """Which patches have features that are not finite, or what is wrong where all of them are."""
    bad = (~torch.isfinite(features).all(dim=1)).nonzero().flatten()
    if len(bad) == 0:
        return BagError(otherwise)
    return BagError(
        f"{len(bad)} of {len(features)} patches have NaN or infinite features, "
        f"the first is patch {int(bad[0])}."
    )
