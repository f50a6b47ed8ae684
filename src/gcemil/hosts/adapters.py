"""A class of a user, or any callable over a bag, as a host (also torchmil's models).

A black box has one place for a gate, its input. So a soft gate multiplies the features in both
modes, and in deletion mode (the default here) a gate of exactly 0 removes the row.

Patch scores, by the option `scores`, unless the model returns them:
  model     the model returns (logits, scores)
  slope     (default) d output_c / d pi_i at pi = 1, c the predicted output: one backward pass;
            needs a differentiable model
  keep-one  output_c of the bag {i}: one call per patch, for models without gradients

One logit for two classes is the log-odds of class 1: (0, logit). The bag feature of a black box is
its logits.

gcemil gives `in_dim`, `n_outputs` and `gate_mode` under these names, as far as the constructor
takes them; everything else comes from the options. A class that is not built in is first tried on a
small bag.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, cast, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gcemil.errors import UsageError
from gcemil.hosts.host import Embedded, GateMode, HostOutput, MilHost, find_device
from gcemil.hosts.table import construct, describe_failure
from gcemil.shapes import Coords, Features, LogGates, Logits, Scores

ScoreSource = Literal["model", "slope", "keep-one"]


class CallableHost(MilHost[Embedded]):
    """A host around any function or module from the features of a bag to logits.

    Args:
        model: `model(features)` or `model(features, coords)`, returning logits (n_outputs,) or a
            pair of logits and patch scores (patches,). One logit for two classes is the log-odds of
            the second.
        in_dim: Width of the features.
        n_outputs: Number of classes; 1 for a risk or a value.
        gate_mode: In "deletion" a gate of 0 removes the patch; other gates scale its features.
        takes_coords: Whether the model takes level-0 coordinates, (patches, 2).
        scores: Where patch scores come from: "slope" is the gradient by each gate, "keep-one"
            predicts each patch alone, "model" takes those that the model returns.

    Raises:
        UsageError: A call returns the wrong number of logits or scores, or no gradient for "slope".

    Example:
        >>> import gcemil, torch
        >>> classifier = torch.nn.Linear(8, 2)
        >>> host = gcemil.CallableHost(lambda bag: classifier(bag.mean(dim=0)), 8, 2)
        >>> host(torch.randn(5, 8)).scores.shape
        torch.Size([5])
    """

    paper_gate = "feature"

    def __init__(
        self,
        model: Callable[..., object],
        in_dim: int,
        n_outputs: int,
        gate_mode: GateMode = "deletion",
        *,
        takes_coords: bool = False,
        scores: ScoreSource = "slope",
    ) -> None:
        super().__init__(in_dim, n_outputs, gate_mode)
        self.model = model
        self.takes_coords = takes_coords
        self.score_source: ScoreSource = scores

    def embed(self, features: Features) -> Embedded:
        return Embedded(features)

    def pool(
        self,
        embedded: Embedded,
        coords: Coords | None,
        log_gates: LogGates | None,
        target: Tensor | None,
    ) -> HostOutput:
        features = embedded.tokens
        if log_gates is not None:
            features = features * log_gates.exp().unsqueeze(1)
        answer = self._with_slope if self.score_source == "slope" else self._answer
        logits, scores = answer(features, coords)
        if scores is None and self.score_source == "model":
            raise UsageError(
                "scores='model' needs a model that returns (logits, scores); it returned logits. "
                "Use scores='slope'."
            )
        if scores is None:
            scores = self._keep_one(features, coords, int(logits.argmax()))
        return HostOutput(logits=logits, bag_feature=logits, scores=scores)

    def _with_slope(
        self, features: Features, coords: Coords | None
    ) -> tuple[Logits, Scores | None]:
        keeps_graph = torch.is_grad_enabled()
        with torch.inference_mode(False), torch.enable_grad():
            gates = torch.ones_like(features[:, :1]).requires_grad_()
            # Tensors made in inference mode cannot be recorded; a copy can.
            recorded = features.clone() if features.is_inference() else features
            logits, scores = self._answer(recorded * gates, coords)
            if scores is None:
                scores = slope(logits, gates, keeps_graph=keeps_graph)
        return (logits, scores) if keeps_graph else (logits.detach(), scores.detach())

    def _keep_one(self, features: Features, coords: Coords | None, output: int) -> Scores:
        parts = [features[i : i + 1] for i in range(len(features))]
        places = [None if coords is None else coords[i : i + 1] for i in range(len(features))]
        alone = [self._answer(*one)[0][output] for one in zip(parts, places, strict=True)]
        return torch.stack(alone).detach()

    def _answer(self, features: Features, coords: Coords | None) -> tuple[Logits, Scores | None]:
        answer = self.model(features, coords) if self.takes_coords else self.model(features)
        logits, scores = unpack_answer(answer)
        return read_logits(logits, features, self.n_outputs), read_scores(scores, features)


class WithBatchAxis(nn.Module):
    """A model of (1, patches, width) as one of (patches, width)."""

    def __init__(self, model: Any, takes_coords: bool) -> None:
        super().__init__()
        self.model = model
        self.takes_coords = takes_coords

    def forward(self, features: Any, coords: Any = None) -> Any:
        # An index works for tensors and numpy arrays alike.
        if self.takes_coords:
            return self.model(features[None], None if coords is None else coords[None])
        return self.model(features[None])


def match_batch_axis(
    model: Any,
    features: Any,
    coords: Any,
    *,
    takes_coords: bool,
    is_logits: Callable[[Tensor], bool],
) -> Any:
    """The model as it is, or with an axis before the patches where it needs one."""
    for one in (model, WithBatchAxis(model, takes_coords)):
        try:
            answer = one(features, coords) if takes_coords else one(features)
            if is_logits(torch.as_tensor(unpack_answer(answer)[0])):
                return one
        except Exception:
            # Calling the model itself raises what is wrong.
            continue
    return model


class TorchmilHost(CallableHost):
    """A host around a torchmil model, called through its `predict`.

    Args:
        model: A torchmil model; for another one use `CallableHost`.
        in_dim: Width of the features.
        n_outputs: Number of classes; 1 for a risk or a value.
        gate_mode: In "deletion" a gate of 0 removes the patch; other gates scale its features.
        adjacency: A function from features and coordinates to the adjacency matrix (patches,
            patches), for models that need a graph.

    Raises:
        UsageError: The model has no `predict`, or needs a graph and there is no `adjacency`.

    Example:
        >>> import gcemil, torch
        >>> class Model(torch.nn.Module):  # as torchmil.models.ABMIL
        ...     def predict(self, bags, return_inst_pred=True):
        ...         return bags.mean(dim=(1, 2)), bags.mean(dim=2)
        >>> gcemil.TorchmilHost(Model(), 8, 2)(torch.randn(5, 8)).scores.shape
        torch.Size([5])
    """

    def __init__(
        self,
        model: nn.Module,
        in_dim: int,
        n_outputs: int,
        gate_mode: GateMode = "deletion",
        *,
        adjacency: Callable[[Features, Coords | None], Float[Tensor, "n n"]] | None = None,
    ) -> None:
        predict = getattr(model, "predict", None)
        if predict is None:
            raise UsageError(
                f"{type(model).__name__} has no 'predict'. Wrap it in a CallableHost instead."
            )
        accepted = inspect.signature(predict).parameters
        if "adj" in accepted and adjacency is None:
            raise UsageError(
                f"{type(model).__name__} takes a graph. "
                "Pass adjacency=(features, coords) -> (n, n)."
            )
        super().__init__(model, in_dim, n_outputs, gate_mode, takes_coords=True, scores="model")
        self.adjacency = adjacency if "adj" in accepted else None
        self.takes_mask = "mask" in accepted

    def _answer(self, features: Features, coords: Coords | None) -> tuple[Logits, Scores | None]:
        inputs: dict[str, Tensor] = {}
        if self.adjacency is not None:
            inputs["adj"] = self.adjacency(features, coords).unsqueeze(0)
        if self.takes_mask:
            # Some of torchmil's models fail without one.
            inputs["mask"] = features.new_ones(1, len(features), dtype=torch.bool)
        predict = getattr(self.model, "predict")  # noqa: B009
        logit, scores = predict(features.unsqueeze(0), **inputs, return_inst_pred=True)
        return read_logits(logit, features, self.n_outputs), read_scores(scores, features)


def adapt_model(model: Any, features: Features, *, is_number: bool = False) -> CallableHost:
    """A module or function as a host; its outputs are counted on these features."""
    if not callable(model):
        raise UsageError(
            f"A model is a host, a module or a function of features, got {type(model).__name__}."
        )
    predict = getattr(model, "predict", None)
    is_torchmil = (
        predict is not None and "return_inst_pred" in inspect.signature(predict).parameters
    )
    called = getattr(model, "forward", model)
    takes_coords = not is_torchmil and "coords" in inspect.signature(called).parameters
    features = features.to(find_device(model))
    # A model may need coordinates; those of these patches are not known.
    row = torch.arange(len(features), device=features.device)
    places = torch.stack([row % 64, row // 64], dim=1) if takes_coords else None

    def is_logits(value: Tensor) -> bool:
        """Whether it is one output for the bag, and not one for every patch."""
        return value.numel() < len(features) or value.ndim < 2 or len(value) == 1

    with torch.no_grad():
        if is_torchmil:
            output = getattr(model, "predict")(features.unsqueeze(0))  # noqa: B009
        else:
            model = match_batch_axis(
                model, features, places, takes_coords=takes_coords, is_logits=is_logits
            )
            output = model(features, places) if takes_coords else model(features)
    n_outputs = torch.as_tensor(unpack_answer(output)[0]).numel()
    n_outputs = 2 if n_outputs == 1 and not is_number else n_outputs
    if is_torchmil:
        return TorchmilHost(model, features.shape[1], n_outputs)
    return CallableHost(model, features.shape[1], n_outputs, takes_coords=takes_coords)


def slope(logits: Logits, gates: Float[Tensor, "n 1"], *, keeps_graph: bool) -> Scores:
    """Derivative of the predicted output by each gate."""
    if not logits.requires_grad:
        raise UsageError(
            "The model returned no patch scores and its logits carry no gradient. "
            "Return (logits, scores), or use scores='keep-one'."
        )
    (derivative,) = torch.autograd.grad(logits[logits.argmax()], gates, retain_graph=keeps_graph)
    return derivative.squeeze(1)


SCORE_KEYS = ("scores", "attention_scores", "attention")


def unpack_answer(answer: Any) -> tuple[Any, Any]:
    """Logits and patch scores of a pair, a dict, CLAM's tuple of five, or logits alone."""
    if isinstance(answer, Mapping):
        if "logits" not in answer:
            raise UsageError(
                f"The model returned a dict without 'logits', only: {', '.join(map(str, answer))}. "
                "Name them 'logits'."
            )
        scores = next((answer[key] for key in SCORE_KEYS if answer.get(key) is not None), None)
        return answer["logits"], scores
    if isinstance(answer, tuple) and len(answer) == 5 and isinstance(answer[4], Mapping):
        logits, attention = (torch.as_tensor(answer[place]) for place in (0, 3))
        # CLAM-MB has a row of attention for every class.
        has_rows = attention.ndim == 2 and len(attention) == logits.numel() > 1
        return logits, attention[int(logits.argmax())] if has_rows else attention
    return answer if isinstance(answer, tuple) and len(answer) == 2 else (answer, None)


def read_logits(answer: object, features: Features, n_outputs: int) -> Logits:
    logits = torch.as_tensor(answer).to(features).flatten()
    if len(logits) == 1 and n_outputs == 2:
        return torch.cat([torch.zeros_like(logits), logits])
    if len(logits) != n_outputs:
        raise UsageError(
            f"The model gave {len(logits)} logits for one bag; this host has n_outputs={n_outputs}."
        )
    return logits


def read_scores(answer: object, features: Features) -> Scores | None:
    if answer is None:
        return None
    scores = torch.as_tensor(answer).to(features).flatten()
    if len(scores) != len(features):
        raise UsageError(f"The model gave {len(scores)} patch scores for {len(features)} patches.")
    return scores


STEPS = ("embed", "aggregate", "gated", "stages", "begin_stage", "after_step")
"""The methods of the protocol; a plain module has none of them."""
ATTRIBUTES = ("in_dim", "n_outputs", "gate_mode", "task_weights", "reweights_features")
PROBED_PATCHES = 16


def create_own(
    name: str, host_class: Any, given: Mapping[str, Any], options: Mapping[str, object]
) -> MilHost[Any]:
    """A host of a class that is not built in, tried on one small bag first."""
    if not issubclass(host_class, nn.Module):
        raise UsageError(f"'{name}' is not a host: a host is a subclass of torch.nn.Module.")
    missing = [step for step in STEPS if not callable(getattr(host_class, step, None))]
    if missing and not {"embed", "aggregate"} <= set(missing):
        raise UsageError(
            f"Host '{name}' implements the Host protocol in part: it has no '{missing[0]}'. "
            "Let it be a subclass of gcemil.MilHost, which has what is missing."
        )
    create = adapt_module if missing else construct
    host: Any = create(name, host_class, given, options)
    check_host(name, host, given)
    return host


def adapt_module(
    name: str, module_class: type, given: Mapping[str, Any], options: Mapping[str, object]
) -> CallableHost:
    """A module from features to logits as a host: gates act on its input."""
    options, source = dict(options), "slope"
    if "scores" not in inspect.signature(module_class).parameters:
        source = str(options.pop("scores", source))
    if source not in get_args(ScoreSource):
        raise UsageError(
            f"Host '{name}': option 'scores' is one of {', '.join(get_args(ScoreSource))}, "
            f"got '{source}'."
        )
    model = construct(
        name, module_class, {key: given[key] for key in ("in_dim", "n_outputs")}, options
    )
    return CallableHost(
        model,
        given["in_dim"],
        given["n_outputs"],
        given.get("gate_mode") or "deletion",
        takes_coords="coords" in inspect.signature(model.forward).parameters,
        scores=cast(ScoreSource, source),
    )


def check_host(name: str, host: Any, given: Mapping[str, Any]) -> None:
    """Check sizes, attributes of the protocol, and the output on a small bag."""
    if missing := [attribute for attribute in ATTRIBUTES if not hasattr(host, attribute)]:
        raise UsageError(
            f"Host '{name}' has no '{missing[0]}', which the Host protocol names. "
            "Let it be a subclass of gcemil.MilHost, and call its constructor."
        )
    for size in ("in_dim", "n_outputs"):
        if getattr(host, size) != given[size]:
            raise UsageError(
                f"Host '{name}' should have {size} {given[size]} and has {getattr(host, size)}."
            )
    if any(tensor.is_meta for tensor in host.state_dict().values()):
        return
    rows = torch.arange(PROBED_PATCHES)
    numbers = torch.arange(PROBED_PATCHES * given["in_dim"]).float()
    features = torch.sin(numbers).view(PROBED_PATCHES, -1)
    coords = 256 * torch.stack([rows % 4, rows // 4], dim=1)
    trains = host.training
    # In evaluation and without touching the random numbers: the host stays as it was.
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        host.eval()
        try:
            check_output(name, host(features, coords), given["n_outputs"])
            halves = torch.full((PROBED_PATCHES,), math.log(0.5))
            gated = host.gated(features, host.embed(features), coords, halves)
            check_output(name, gated, given["n_outputs"])
        except UsageError:
            raise
        except Exception as error:
            raise UsageError(
                f"Host '{name}' failed on a bag of {PROBED_PATCHES} patches of width "
                f"{given['in_dim']} ({describe_failure(error)})."
            ) from error
        finally:
            host.train(trains)


def check_output(name: str, output: Any, n_outputs: int) -> None:
    if not isinstance(output, HostOutput):
        raise UsageError(
            f"Host '{name}' returns {type(output).__name__} for a bag, not gcemil.HostOutput."
        )
    for part, length in (("logits", n_outputs), ("scores", PROBED_PATCHES)):
        tensor: Tensor = getattr(output, part)
        if tuple(tensor.shape) != (length,):
            raise UsageError(
                f"Host '{name}' gives {part} of shape {tuple(tensor.shape)} for {PROBED_PATCHES} "
                f"patches and {n_outputs} outputs; the shape must be ({length},)."
            )
