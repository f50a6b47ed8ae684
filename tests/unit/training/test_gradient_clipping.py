"""Host and wrapper are clipped each by its own norm."""

import torch

from builders.wrappers import prepared_host, wrapped
from gcemil.runs.checkpoint import LoadedNetwork
from gcemil.training.epochs import GradientNorms, find_failures
from gcemil.training.optimizer import clip_gradients


def filled(*, host, wrapper):
    """A wrapped host whose gradients have these norms."""
    model = wrapped(prepared_host("abmil"))
    own = {id(weight) for weight in model.host.parameters()}
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    next(model.host.parameters()).grad.view(-1)[0] = host
    next(weight for weight in model.parameters() if id(weight) not in own).grad.view(-1)[0] = (
        wrapper
    )
    return LoadedNetwork(model.host, model, None), model


def test_a_huge_gradient_of_the_wrapper_leaves_the_host_its_own():
    loaded, model = filled(host=2.0, wrapper=1e6)
    norms = clip_gradients(loaded, 5.0)
    assert float(norms["host"]) == 2.0
    assert float(norms["wrapper"]) == 1e6
    host = torch.stack([weight.grad.norm() for weight in model.host.parameters()]).norm()
    whole = torch.stack([weight.grad.norm() for weight in model.parameters()]).norm()
    torch.testing.assert_close(host, torch.tensor(2.0))
    torch.testing.assert_close(whole, torch.tensor(29.0).sqrt(), rtol=1e-4, atol=0)


def epoch_of(*norms):
    found = GradientNorms()
    for norm in norms:
        found.add({"host": torch.tensor(norm)}, 5.0)
    return found.summary()


def test_a_limit_that_cuts_most_steps_to_less_than_a_fifth_is_said():
    said = find_failures(epoch_of(4.0, 60.0, 70.0), {})
    assert said == [
        "the gradient of the host was cut to less than a fifth in 67% of the steps (median norm 60): "
        "lower the learning rate, or raise 'clip'."
    ]
