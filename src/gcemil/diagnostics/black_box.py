"""A model of unknown origin behind a checked door: any callable (features, coords) -> logits, or (logits, scores).

It is handed float32 features (n, d) and integer coords (n, 2) or None, as torch tensors or numpy arrays on the CPU, and
may answer in either. One bag per call; the outputs in the order of the cohort's classes, or one risk.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor

from gcemil.errors import InputError, UsageError
from gcemil.hosts.adapters import CallableHost, read_logits, slope
from gcemil.row_blocks import widened

Arrays = Literal["torch", "numpy"]


class BlackBox:
    """The callable; every answer is checked before anyone computes with it."""

    def __init__(
        self, model: Any, name: str, *, in_dim: int, n_outputs: int, arrays: Arrays = "torch"
    ) -> None:
        if not callable(model):
            raise UsageError(f"'{name}' is a {type(model).__name__} and cannot be called with a bag.")
        if inspect.isclass(model):
            raise UsageError(f"'{name}' is a class. Name a function, or an object of the class.")
        self.name = name
        self.in_dim = in_dim
        self.n_outputs = n_outputs
        self.arrays: Arrays = arrays
        self._model = model
        self._takes_coords = accepts_coords(model)

    def host(self) -> CallableHost:
        """The model as a host, its own scores where it gives any and zeros otherwise."""
        return CallableHost(self._with_scores, self.in_dim, self.n_outputs, takes_coords=True, scores="model")

    def slopes(self, features: Tensor, coords: Tensor | None) -> Tensor:
        """How the predicted output answers to each patch's gate, for a model that gives no scores."""
        features = widened(features)
        with torch.enable_grad():
            gates = torch.ones_like(features[:, :1]).requires_grad_()
            logits = read_logits(self.answer(features * gates, coords)[0], features, self.n_outputs)
            if not logits.requires_grad:
                raise UsageError(
                    f"Model '{self.name}' returns no patch scores and its logits carry no gradient, so there is nothing "
                    "to audit. Let it return (logits, scores), or give --scores DIR."
                )
            return slope(logits, gates, keeps_graph=False)

    def answer(self, features: Tensor, coords: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Logits and, where the model gives them, patch scores; both finite and of the right length."""
        features = widened(features)
        given: list[Any] = [features, coords] if self._takes_coords else [features]
        if self.arrays == "numpy":
            given = [None if one is None else one.detach().cpu().numpy() for one in given]
        try:
            found = self._model(*given)
        except Exception as error:
            raise UsageError(
                f"Model '{self.name}' failed on {len(features)} patches ({type(error).__name__}: {error}). "
                f"It is called with features {tuple(features.shape)} and coords as {self.arrays} arrays."
            ) from error
        logits, scores = found if isinstance(found, tuple) and len(found) == 2 else (found, None)
        return self._checked_logits(logits), self._checked_scores(scores, len(features))

    def _with_scores(self, features: Tensor, coords: Tensor | None) -> tuple[Tensor, Tensor]:
        logits, scores = self.answer(features, coords)
        return logits, features.new_zeros(len(features)) if scores is None else scores

    def _checked_logits(self, value: Any) -> Tensor:
        logits = self._tensor(value, "logits")
        accepted = {self.n_outputs, 1} if self.n_outputs == 2 else {self.n_outputs}
        if logits.numel() not in accepted:
            raise UsageError(
                f"Model '{self.name}' gave logits of shape {tuple(logits.shape)} for one bag; this cohort has "
                f"{self.n_outputs} {'outputs' if self.n_outputs > 1 else 'output, the risk'}. "
                "Return one logit per class, in the order of cohort.yaml, or one risk."
            )
        return self._finite(logits, "logits")

    def _checked_scores(self, value: Any, n_patches: int) -> Tensor | None:
        if value is None:
            return None
        scores = self._tensor(value, "scores")
        if scores.numel() != n_patches:
            raise UsageError(
                f"Model '{self.name}' gave scores of shape {tuple(scores.shape)} for {n_patches} patches. "
                "Return one score per patch, in the order of the features."
            )
        return self._finite(scores, "scores")

    def _tensor(self, value: Any, what: str) -> Tensor:
        try:
            return torch.as_tensor(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise UsageError(
                f"Model '{self.name}' gave {what} of type {type(value).__name__}. "
                "Return logits, or the tuple (logits, scores), as arrays."
            ) from error

    def _finite(self, values: Tensor, what: str) -> Tensor:
        if not bool(torch.isfinite(values).all()):
            raise UsageError(
                f"Model '{self.name}' gave NaN or infinite {what}. Subsets of a bag are asked about too, down to one patch: "
                "the model must have an answer for them."
            )
        return values


def accepts_coords(model: Callable[..., Any]) -> bool:
    """Whether the callable accepts coordinates beside the features; assumed where it does not say."""
    try:
        inspect.signature(model).bind(None, None)
    except TypeError:
        return False
    except ValueError:
        return True
    return True


@contextmanager
def name_bag_in_errors(bag_id: str) -> Iterator[None]:
    """Puts the bag in front of what is wrong with it."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"Bag '{bag_id}': {error}") from error
    except InputError as error:
        raise type(error)(f"Bag '{bag_id}': {error}") from error
