"""Which weights learn at which rate."""

import pytest

from gcemil.training.optimizer import create_optimizer
from wrapper_builders import prepared_host, wrapped


@pytest.mark.parametrize(("rate", "narrow"), [(2.5e-4, 2e-3), (2e-3, 2e-3), (5e-3, 5e-3)])
def test_what_reads_anchors_and_scores_keeps_its_rate_at_any_width(rate, narrow):
    model = wrapped(prepared_host("abmil"))
    optimizer = create_optimizer(model, rate, 1e-5)
    rates = {id(weight): group["base_rate"] for group in optimizer.param_groups for weight in group["params"]}
    found = {name: rates[id(weight)] for name, weight in model.named_parameters() if weight.requires_grad}
    assert len(found) == len(rates)
    assert {name for name in found if found[name] == narrow} >= {
        "utility.raw_weights",
        "utility.bias",
        "selector.attention_weight",
        "selector.contribution_weight",
        "selector.presence_weight",
    }
    assert {found[name] for name in found if name.startswith(("host.", "bridge."))} == {rate}


def test_a_plain_host_has_one_rate():
    (group,) = create_optimizer(prepared_host("abmil"), 1e-3, 0.0).param_groups
    assert group["base_rate"] == 1e-3
