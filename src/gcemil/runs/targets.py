"""A run of several targets: one model with an output z_t per target, and each target as an ordinary run of two classes.

  RUN/                      the shared model, a plain host trained on all targets at once
  RUN/targets/<target>/     the same host seen for one target, with the evidence of that target

  logits of the view        (-z_t / 2, z_t / 2), so that softmax gives (1 - sigmoid(z_t), sigmoid(z_t))

The view is a host of the same class with two outputs: what belongs to output t is split between its classes, everything
else is copied. Where outputs share weights there is no such host, and the model is refused.
"""

from __future__ import annotations

from contextlib import suppress

import torch
from torch import Tensor

from gcemil.config import HostSettings
from gcemil.errors import UsageError
from gcemil.hosts.table import AnyHost
from gcemil.runs.checkpoint import build_host

CHECKED_PATCHES = 16
TOLERANCE = 1e-4
_SHARES_WEIGHTS = (
    "Host '{}' cannot have several targets: its outputs share weights, or its own loss takes one class per slide. "
    "Use abmil, transmil or mean, or import one target at a time."
)


def target_host(settings: HostSettings, host: AnyHost, index: int) -> AnyHost:
    """The host as it sees one target; UsageError where no host of two outputs answers as this one does."""
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
            if _answers_alike(host, view, index):
                return view
    raise UsageError(_SHARES_WEIGHTS.format(settings.name))


@torch.no_grad()
def _answers_alike(host: AnyHost, view: AnyHost, index: int) -> bool:
    """Whether the log-odds of the view are the output of the target, on patches drawn at random."""
    features, coords = _draw_patches(host)
    was_training = host.training
    whole, seen = host.eval()(features, coords).logits, view.eval()(features, coords).logits
    host.train(was_training)
    expected = whole[index]
    return bool((seen[1] - seen[0] - expected).abs() <= TOLERANCE * (1 + expected.abs()))


def check_host_serves_targets(settings: HostSettings, *, in_dim: int, n_targets: int) -> None:
    """Refuse a host whose loss takes one class per slide, or whose outputs share weights, before anything is trained."""
    with torch.random.fork_rng(devices=[]):
        host = build_host(settings, in_dim=in_dim, n_outputs=n_targets)
        labels = torch.tensor([float(target % 2) for target in range(n_targets)])
        try:
            host(*_draw_patches(host), target=labels)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            raise UsageError(_SHARES_WEIGHTS.format(settings.name)) from error
        for index in range(n_targets):
            target_host(settings, host, index)


def _draw_patches(host: AnyHost) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    parameter = next(host.parameters())
    features = torch.randn(CHECKED_PATCHES, host.in_dim, generator=generator)
    index = torch.arange(CHECKED_PATCHES)
    coords = torch.stack([index % 4, index // 4], dim=1) * 512
    return features.to(parameter.device), coords.to(parameter.device)
