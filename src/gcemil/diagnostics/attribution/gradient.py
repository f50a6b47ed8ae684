"""Scores from the slope of the predicted output f, by captum.

  saliency              sum_d |df / dh_id|                               how much a patch could move f, without a sign
  gradient_x_input      sum_d h_id df / dh_id
  integrated_gradients  sum_d h_id integral_0^1 df(t h) / dh_id dt       sums to f(X) - f(0) where f is continuous
The path of the integral starts at a bag of zero vectors; 16 points of the Gauss-Legendre rule, one bag in memory.
Without coordinates dtfd groups patches by the bits of their features, so that its groups change along the path.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from captum.attr import InputXGradient, IntegratedGradients, Saliency  # type: ignore[import-untyped]
from jaxtyping import Float
from torch import Tensor

from gcemil.diagnostics.attribution.predicted import predicted
from gcemil.hosts.adapters import CallableHost
from gcemil.shapes import Scores

N_STEPS = 16


def is_differentiable(host: Any) -> bool:
    """Whether the host passes gradients to its features; a black box says so by scoring patches by slope."""
    return not isinstance(host, CallableHost) or host.score_source == "slope"


def saliency(host: Any, features: Tensor, coords: Tensor | None) -> Scores:
    return per_patch(
        Saliency(output_function(host, features, coords)).attribute(as_batch(features), abs=True)
    )


def gradient_x_input(host: Any, features: Tensor, coords: Tensor | None) -> Scores:
    return per_patch(InputXGradient(output_function(host, features, coords)).attribute(as_batch(features)))


def integrated_gradients(host: Any, features: Tensor, coords: Tensor | None) -> Scores:
    method = IntegratedGradients(output_function(host, features, coords))
    # One point of the path at a time: together they would hold the bag sixteen times.
    attributions = method.attribute(
        as_batch(features), n_steps=N_STEPS, method="gausslegendre", internal_batch_size=1
    )
    return per_patch(attributions)


def output_function(
    host: Any, features: Tensor, coords: Tensor | None
) -> Callable[[Tensor], Float[Tensor, "1"]]:
    """The explained output as captum wants it: one bag as a batch of one."""
    index = predicted(host, features, coords).index

    def output(batch: Float[Tensor, "1 n d"]) -> Float[Tensor, "1"]:
        with torch.enable_grad():
            return host(batch[0], coords).logits[index].unsqueeze(0)

    return output


def as_batch(features: Tensor) -> Float[Tensor, "1 n d"]:
    return features.detach().clone().unsqueeze(0).requires_grad_()


def per_patch(attributions: Float[Tensor, "1 n d"]) -> Scores:
    return attributions.detach()[0].sum(dim=1)
