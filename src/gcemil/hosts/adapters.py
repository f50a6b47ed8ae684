"""Bring your own model: any callable over a bag, or a torchmil model, becomes a host.

A black box has one place for a gate, its input. So a soft gate multiplies the features in both modes, and in deletion
mode (the default here) a gate of exactly 0 removes the row before the model is called.

Patch scores, by the option `scores`:
  model     the model returns (logits, scores)
  slope     (default) d output_c / d pi_i at pi = 1, c the predicted output: what the first of a gate's closing does to
            the prediction. One backward pass for all patches; needs a differentiable model.
  keep-one  output_c of the bag {i}: one call per patch, for models without gradients (numpy, scikit-learn, ...)
Scores the model returns are used whatever the option says.

One logit for two classes is read as the log-odds of class 1: (0, logit). The bag feature of a black box is its logits.
Evaluation is as deterministic as the model is.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gcemil.errors import UsageError
from gcemil.hosts.host import Embedded, GateMode, HostOutput, MilHost
from gcemil.shapes import Coords, Features, LogGates, Logits, Scores

ScoreSource = Literal["model", "slope", "keep-one"]


class CallableHost(MilHost[Embedded]):
    """`model(features)` or `model(features, coords)`, returning logits or (logits, scores)."""

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
                "The model was to return (logits, scores) and returned logits only. Use scores='slope'."
            )
        if scores is None:
            scores = self._keep_one(features, coords, int(logits.argmax()))
        return HostOutput(logits=logits, bag_feature=logits, scores=scores)

    def _with_slope(self, features: Features, coords: Coords | None) -> tuple[Logits, Scores | None]:
        keeps_graph = torch.is_grad_enabled()
        with torch.inference_mode(False), torch.enable_grad():
            gates = torch.ones_like(features[:, :1]).requires_grad_()
            logits, scores = self._answer(outside_inference(features) * gates, coords)
            if scores is None:
                scores = slope(logits, gates, keeps_graph=keeps_graph)
        return (logits, scores) if keeps_graph else (logits.detach(), scores.detach())

    def _keep_one(self, features: Features, coords: Coords | None, output: int) -> Scores:
        alone = [
            self._answer(features[i : i + 1], None if coords is None else coords[i : i + 1])[0][output]
            for i in range(len(features))
        ]
        return torch.stack(alone).detach()

    def _answer(self, features: Features, coords: Coords | None) -> tuple[Logits, Scores | None]:
        answer = self.model(features, coords) if self.takes_coords else self.model(features)
        logits, scores = answer if isinstance(answer, tuple) else (answer, None)
        return read_logits(logits, features, self.n_outputs), read_scores(scores, features)


class TorchmilHost(CallableHost):
    """A torchmil model through its `predict`; `adjacency(features, coords)` feeds the models that take a graph."""

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
            raise UsageError(f"{type(model).__name__} has no 'predict'. Wrap it in a CallableHost instead.")
        accepted = inspect.signature(predict).parameters
        if "adj" in accepted and adjacency is None:
            raise UsageError(
                f"{type(model).__name__} takes a graph. Pass adjacency=(features, coords) -> (n, n)."
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


def slope(logits: Logits, gates: Float[Tensor, "n 1"], *, keeps_graph: bool) -> Scores:
    """Derivative of the predicted output by each gate."""
    if not logits.requires_grad:
        raise UsageError(
            "The model returned no patch scores and its logits carry no gradient. "
            "Return (logits, scores), or use scores='keep-one'."
        )
    (derivative,) = torch.autograd.grad(logits[logits.argmax()], gates, retain_graph=keeps_graph)
    return derivative.squeeze(1)


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


def outside_inference(features: Features) -> Features:
    """Tensors made in inference mode cannot be recorded; a copy can."""
    return features.clone() if features.is_inference() else features
