"""A host on another device: its copy embeds and pools there, and everything around it stays on the CPU."""

import copy

import pytest
import torch
from typer.testing import CliRunner

from builders.wrappers import PATCH, prepared_host, tensor_bag, wrapped
from gcemil.bags.bag import slide_bag
from gcemil.cli.main import app
from gcemil.explanation import explain_bag
from gcemil.hosts.host import embedded_bag
from gcemil.hosts.table import HOSTS

META = torch.device("meta")
COMPUTING = ("train", "encode", "predict", "explain", "diagnose", "audit", "view", "prefilter")


def test_every_command_that_computes_takes_a_device():
    for command in COMPUTING:
        said = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"}).output
        assert "--device" in said, command


@pytest.mark.parametrize("name", list(HOSTS))
@torch.no_grad()
def test_patches_are_embedded_where_the_host_is_placed(name):
    """On the meta device nothing can come back, so what is embedded there cannot have been on the CPU."""
    host, (features, coords) = prepared_host(name), tensor_bag(40)
    before = host(features, coords)
    host.place(META)
    with pytest.raises(NotImplementedError, match="meta"):
        embedded_bag(host, features)
    assert {one.device.type for one in host.parameters()} <= {"cpu"}
    host.place(torch.device("cpu"))
    assert torch.equal(host(features, coords).logits, before.logits)


@pytest.mark.parametrize("name", list(HOSTS))
def test_the_copy_answers_and_its_answers_are_the_hosts_own(name):
    model, (features, coords) = wrapped(prepared_host(name)), tensor_bag(40)
    bag = slide_bag("bag", features.numpy(), coords.numpy(), patch_size=PATCH)
    here = explain_bag(model, bag)
    asked = []
    other = copy.deepcopy(model.host)
    own = other.aggregate
    other.aggregate = lambda *given, **named: asked.append(1) or own(*given, **named)
    # A stand-in for a copy on an accelerator, which this machine does not have.
    model.host._elsewhere = (other,)
    there = explain_bag(model, bag)
    assert len(asked) >= 3
    assert torch.equal(there.output.logits, here.output.logits)
    assert torch.equal(there.recovery.selected, here.recovery.selected)


def test_a_copy_of_a_placed_host_is_not_placed_and_the_copy_is_not_saved():
    host = prepared_host("abmil")
    names = set(host.state_dict())
    host.place(META)
    assert set(host.state_dict()) == names
    with torch.no_grad():
        assert host.elsewhere is not None
        assert copy.deepcopy(host).elsewhere is None
    assert host.elsewhere is None
