"""Every entry of HOSTS through the same questions; what a host cannot promise is written down and tested as false."""

import re
from pathlib import Path

import pytest
import torch

from builders.wrappers import prepared_host as make_host
from builders.wrappers import tensor_bag as make_bag
from gcemil.hosts.host import Host, ask_subsets, embedded_bag, log_with_zero
from gcemil.hosts.table import HOSTS, create_host

NAMES = list(HOSTS)
MODES = ["paper", "deletion"]

# A factor on the features scales them (paper); TransMIL's class token and CAMIL's global tokens know no gate to
# cancel against, so even a uniform log-gate shifts attention between gated and ungated tokens. HDMIL keeps a patch
# where z + log pi > 0, so a uniform gate below 1 keeps fewer.
# Hosts whose gate acts on the logits alone, in both modes.
LOGIT_GATED = {"abmil", "clam_sb", "ibmil", "clam_mb", "acmil", "additive", "mean", "max", "linear"}
UNIFORM_GATE_IS_NO_GATE = {
    "paper": LOGIT_GATED,
    "deletion": LOGIT_GATED | {"dsmil", "dtfd", "mhim"},
}
# A feature factor of 0 leaves a null token behind; every log-gate of -inf is a removed row.
ZERO_GATE_IS_DELETION = {"paper": LOGIT_GATED | {"dsmil", "mhim"}, "deletion": set(NAMES)}
# Tokens on TransMIL's grid and in the Nystrom segments keep their place however small their gate is.
VANISHING_GATE_IS_DELETION = {
    "paper": ZERO_GATE_IS_DELETION["paper"],
    "deletion": LOGIT_GATED | {"dsmil", "dtfd", "mhim", "hdmil"},
}
# Positions on a sequence: TransMIL's grid and both hosts' Nystrom segments and value convolution.
ORDER_MATTERS = {"transmil", "camil"}
POOLS_LINEARLY = set(NAMES) - {"transmil", "ibmil", "hdmil", "max"}
NYSTROM = {"transmil", "camil"}

LAWS = {
    "equal gates for all patches have no effect": UNIFORM_GATE_IS_NO_GATE,
    "a gate of 0 is the same as removing the row": ZERO_GATE_IS_DELETION,
    "so is the limit of a gate that tends to 0": VANISHING_GATE_IS_DELETION,
    "the order of rows does not matter": {mode: set(NAMES) - ORDER_MATTERS for mode in MODES},
}


def tolerance(name):
    return 1e-5 if name in NYSTROM else 1e-6


def make_target(n_outputs):
    return torch.tensor([12.0, 1.0]) if n_outputs == 1 else torch.tensor(n_outputs - 1)


def total(output):
    parts = [output.logits, *output.auxiliary_logits.values(), *output.losses.values()]
    return sum(part.square().sum() for part in parts)


def difference(one, other):
    """The largest difference, relative to the larger of 1 and the largest value."""
    scale = max(1.0, float(other.detach().abs().max()))
    return float((one - other).detach().abs().max()) / scale


every_host = pytest.mark.parametrize("name", NAMES)
every_mode = pytest.mark.parametrize("mode", MODES)
every_task = pytest.mark.parametrize("n_outputs", [1, 2, 5])


def documented_laws():
    """The table of docs/hosts.md: law, then the hosts that keep it in each mode."""
    page = (Path(__file__).parents[2] / "docs" / "hosts.md").read_text()
    table = page[page.index("| law |") :].split("\n\n")[0].splitlines()
    assert [cell.strip(" `") for cell in table[0].strip("|").split("|")] == ["law", *MODES]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]
    return {law: dict(zip(MODES, map(hosts_named, cells), strict=True)) for law, *cells in rows}


def hosts_named(text):
    """'all', 'all but a and b', or 'a, b, c'."""
    named = set(re.findall(r"\w+", text)) & set(NAMES)
    return set(NAMES) - named if text.startswith("all") else named


def test_the_documented_laws_are_those_that_are_tested():
    assert documented_laws() == LAWS


def test_the_documented_hosts_are_those_of_the_table():
    page = (Path(__file__).parents[2] / "docs" / "hosts.md").read_text(encoding="utf-8")
    table = page[page.index("| host | paper | what it is |") :].split("\n\n")[0].splitlines()[2:]
    rows = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in table]
    assert [row[0] for row in rows] == NAMES
    for name, _, _, parameters, stages, _, contributions in rows:
        assert parameters == f"{HOSTS[name].parameters:,}", name
        named = [stage.name for stage in make_host(name).stages()]
        assert stages == ("one" if len(named) == 1 else "`, `".join(named)), name
        assert contributions == ("yes" if name in POOLS_LINEARLY else "no"), name


@every_host
def test_a_host_honours_the_protocol(name):
    host = make_host(name)
    assert isinstance(host, Host)
    assert host.task_weights["bag"] > 0
    assert host.stages()[-1].prepares is False


@every_host
def test_parameters_are_those_of_the_publication(name):
    host = create_host(name, in_dim=1024, n_outputs=2)
    assert sum(p.numel() for p in host.parameters() if p.requires_grad) == HOSTS[name].parameters


@every_host
def test_no_gate_is_embedding_then_aggregating_bit_for_bit(name):
    host, (features, coords) = make_host(name), make_bag(40)
    whole, again = host(features, coords), host(features, coords)
    assert torch.equal(whole.logits, again.logits)
    parts = host.aggregate(host.embed(features), coords)
    assert torch.equal(whole.logits, parts.logits)
    assert torch.equal(whole.scores, parts.scores)


@every_host
@every_mode
def test_gate_of_ones_leaves_the_host_unchanged(name, mode):
    host, (features, coords) = make_host(name, mode=mode), make_bag(40)
    plain, gated = host(features, coords), host(features, coords, gates=torch.ones(40))
    assert difference(gated.logits, plain.logits) <= tolerance(name)
    assert difference(gated.scores, plain.scores) <= tolerance(name)


@every_host
@every_mode
def test_gated_reuses_the_embedding_and_agrees_with_the_public_door(name, mode):
    host, (features, coords) = make_host(name, mode=mode), make_bag(40)
    gates = torch.linspace(0.05, 1, 40)
    reused = host.gated(features, host.embed(features), coords, log_with_zero(gates))
    assert difference(reused.logits, host(features, coords, gates=gates).logits) <= tolerance(name)


@every_host
@every_mode
def test_uniform_gate_is_no_gate_exactly_where_stated(name, mode):
    host, (features, coords) = make_host(name, mode=mode), make_bag(40)
    gated = host(features, coords, gates=torch.full((40,), 0.3))
    apart = difference(gated.logits, host(features, coords).logits)
    assert_law(apart, holds=name in UNIFORM_GATE_IS_NO_GATE[mode], name=name)


@every_host
@every_mode
def test_gate_of_zero_is_deletion_exactly_where_stated(name, mode):
    host, (features, coords) = make_host(name, mode=mode), make_bag(40)
    kept = torch.arange(40) % 4 == 1
    gated = host(features, coords, gates=kept.float())
    apart = difference(gated.logits, host(features[kept], coords[kept]).logits)
    assert_law(apart, holds=name in ZERO_GATE_IS_DELETION[mode], name=name)


@every_host
@every_mode
def test_vanishing_gate_is_deletion_exactly_where_stated(name, mode):
    host, (features, coords) = make_host(name, mode=mode), make_bag(40)
    kept = torch.arange(40) % 10 == 1
    gated = host(features, coords, gates=kept.float().clamp(min=1e-35))
    apart = difference(gated.logits, host(features[kept], coords[kept]).logits)
    assert_law(apart, holds=name in VANISHING_GATE_IS_DELETION[mode], name=name)


def assert_law(apart, *, holds, name):
    """A law that is stated as false must be seen to be false, or the table is out of date."""
    if holds:
        assert apart <= tolerance(name)
    else:
        assert apart > 10 * tolerance(name)


@every_host
def test_removed_patch_scores_lowest_and_contributes_nothing(name):
    host, (features, coords) = make_host(name, mode="deletion"), make_bag(40)
    gates = torch.ones(40)
    gates[[3, 30]] = 0
    output = host(features, coords, gates=gates)
    assert output.scores[[3, 30]].tolist() == [output.scores.min().item()] * 2
    if name in POOLS_LINEARLY:
        assert output.contributions[[3, 30]].tolist() == pytest.approx([0, 0])


@every_host
@every_mode
@every_task
def test_gradients_are_finite_at_gates_of_0_and_1_and_a_millionth(name, mode, n_outputs):
    host, (features, coords) = make_host(name, mode=mode, n_outputs=n_outputs).train(), make_bag(40)
    gates = torch.tensor([0, 1e-6, 1, 0.5]).repeat(10).requires_grad_()
    total(host(features, coords, gates=gates, target=make_target(n_outputs))).backward()
    assert gates.grad.isfinite().all()
    assert gates.grad.abs().max() > 0
    assert all(p.grad.isfinite().all() for p in host.parameters() if p.grad is not None)


@every_host
def test_order_of_patches_matters_exactly_where_stated(name):
    host, (features, coords) = make_host(name), make_bag(40)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(3))
    plain, shuffled = host(features, coords), host(features[order], coords[order])
    assert_law(
        difference(plain.logits, shuffled.logits), holds=name not in ORDER_MATTERS, name=name
    )
    if name not in ORDER_MATTERS:
        assert difference(plain.scores[order], shuffled.scores) <= tolerance(name)


@every_host
@every_mode
@every_task
@pytest.mark.parametrize("n", [1, 2, 3, 20])
def test_small_bags_train_and_evaluate(name, mode, n_outputs, n):
    host, (features, coords) = make_host(name, mode=mode, n_outputs=n_outputs), make_bag(n)
    gates = torch.linspace(0.2, 0.9, n)
    for training in (True, False):
        output = host.train(training)(features, coords, gates=gates, target=make_target(n_outputs))
        total(output).backward()
        assert output.logits.shape == (n_outputs,)
        assert output.scores.shape == (n,)
        assert all(p.grad.isfinite().all() for p in host.parameters() if p.grad is not None)


@every_host
@every_task
def test_every_parameter_that_trains_gets_a_gradient(name, n_outputs):
    host, (features, coords) = make_host(name, n_outputs=n_outputs).train(), make_bag(60)
    for label in range(n_outputs):
        target = make_target(1) if n_outputs == 1 else torch.tensor(label)
        total(host(features, coords, target=target)).backward()
    training = {k: p.grad for k, p in host.named_parameters() if p.requires_grad and not cancels(k)}
    assert [k for k, gradient in training.items() if gradient is None or not gradient.any()] == []


def cancels(parameter_name):
    """A bias added to every attention logit leaves the softmax as it was."""
    return parameter_name.endswith("score.bias")


@every_host
@every_task
def test_losses_appear_with_a_target_only_and_every_prediction_has_a_weight(name, n_outputs):
    host, (features, coords) = make_host(name, n_outputs=n_outputs).train(), make_bag(40)
    assert host(features, coords).losses == {}
    output = host(features, coords, target=make_target(n_outputs))
    assert {"bag", *output.auxiliary_logits} == set(host.task_weights)
    assert all(logits.shape == (n_outputs,) for logits in output.auxiliary_logits.values())
    assert all(loss.isfinite() for loss in output.losses.values())


@every_host
@every_mode
def test_coordinates_are_optional(name, mode):
    host, (features, _) = make_host(name, mode=mode), make_bag(40)
    plain, gated = host(features), host(features, gates=torch.ones(40))
    assert difference(plain.logits, gated.logits) <= tolerance(name)


@every_host
def test_rows_of_an_embedding_are_the_embedding_of_the_rows(name):
    host, (features, coords) = make_host(name, mode="deletion"), make_bag(40)
    index = torch.tensor([0, 3, 4, 17, 39])
    chosen, fresh = host.embed(features).rows(index), host.embed(features[index])
    assert difference(chosen.tokens, fresh.tokens) <= 1e-6
    once, again = host.aggregate(chosen, coords[index]), host.aggregate(fresh, coords[index])
    assert difference(once.logits, again.logits) <= tolerance(name)
    assert difference(once.scores, again.scores) <= tolerance(name)


@every_host
@pytest.mark.parametrize("places", [True, False])
def test_embedding_in_pieces_is_embedding_the_bag(name, places, monkeypatch):
    host, (features, coords) = make_host(name, mode="deletion"), make_bag(40)
    monkeypatch.setattr("gcemil.row_blocks.BLOCK_ROWS", 7)
    with torch.no_grad():
        pieces = host.aggregate(embedded_bag(host, features), coords if places else None)
        whole = host.aggregate(host.embed(features), coords if places else None)
    assert difference(pieces.logits, whole.logits) <= tolerance(name)
    assert difference(pieces.scores, whole.scores) <= tolerance(name)


@every_host
@every_mode
@every_task
def test_contributions_sum_to_the_centred_logit_where_the_host_pools_linearly(
    name, mode, n_outputs
):
    host, (features, coords) = make_host(name, mode=mode, n_outputs=n_outputs), make_bag(40)
    output = host(features, coords, gates=torch.linspace(0.1, 1, 40))
    assert (output.contributions is not None) == (name in POOLS_LINEARLY)
    if name in POOLS_LINEARLY:
        centre = output.logits.mean() if n_outputs > 1 else 0
        assert difference(output.contributions.sum(), output.logits.max() - centre) <= tolerance(
            name
        )


@every_host
@every_task
@pytest.mark.parametrize("has_coords", [True, False])
@torch.no_grad()
def test_a_subset_asked_of_an_embedded_bag_is_the_bag_of_its_rows(name, n_outputs, has_coords):
    host = make_host(name, n_outputs=n_outputs)
    features, coords = make_bag(60)
    coords = coords if has_coords else None
    ask = ask_subsets(host, embedded_bag(host, features), coords)
    for few in (1, 6, 57):
        selected = torch.arange(60).roll(23) < few
        expected = host(features[selected], None if coords is None else coords[selected]).logits
        assert difference(ask(selected), expected) < tolerance(name)
