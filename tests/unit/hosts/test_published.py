"""Reading the authors' checkpoints: what every table covers, how files are wrapped, and what does not fit."""

import json
from pathlib import Path

import pytest
import torch

from builders.authors import has_parity, small_checkpoint
from gcemil.errors import WeightsError
from gcemil.hosts.published import read_published
from gcemil.hosts.table import HOSTS

PARITY = Path(__file__).parents[2] / "reference" / "parity"
FILES = {
    **{name: name for name in HOSTS if has_parity(name)},
    "dsmil_passing_v": "dsmil",
}


def authors_tensors(name):
    """Their names and shapes, as the parity files have them; of ibmil the second stage."""
    listed = json.loads((PARITY / f"{name}.json").read_text())["tensors"]
    torch.manual_seed(0)
    tensors = {key: torch.randn(shape) for key, shape, _ in listed}
    if name == "ibmil":
        tensors = {
            key.removeprefix("stage2/"): value for key, value in tensors.items() if "stage2" in key
        }
    return tensors


def as_modules(tensors):
    """{"network": {"name": tensor}} of "network/name"."""
    modules = {}
    for key, tensor in tensors.items():
        network, name = key.split("/")
        modules.setdefault(network, {})[name] = tensor
    return modules


@torch.no_grad()
def answer(published, n=9):
    host = published.create()
    features = torch.randn(n, published.in_dim, generator=torch.Generator().manual_seed(1))
    return host(features).logits


@pytest.mark.parametrize("name", FILES)
def test_a_table_covers_every_weight_of_its_host(name):
    published = read_published(FILES[name], authors_tensors(name))
    host = published.create()
    assert {key for key, _ in host.named_parameters()} <= set(published.tensors)
    assert set(published.tensors) <= set(host.state_dict())
    assert not host.training
    for key, tensor in published.tensors.items():
        assert torch.equal(host.state_dict()[key].float(), tensor.float()), key


@pytest.mark.parametrize("name", FILES)
def test_every_missing_tensor_is_named(name):
    tensors = authors_tensors(name)
    for key in tensors:
        # Without the last these are other published networks, of which the rest is then too much.
        if key.startswith(("instance_loss_fn", "confounder_feat", "b_classifier.v.1.weight")):
            continue
        rest = {other: value for other, value in tensors.items() if other != key}
        with pytest.raises(
            WeightsError, match=f"not the published weights of '{FILES[name]}': missing: {key}"
        ):
            read_published(FILES[name], rest)


@pytest.mark.parametrize("name", FILES)
def test_a_tensor_too_many_is_named(name):
    tensors = authors_tensors(name) | {"head.extra": torch.zeros(3)}
    if name == "mhim":
        tensors = {**as_modules(authors_tensors(name)), "more": {"head.extra": torch.zeros(3)}}
    with pytest.raises(WeightsError, match=r"left over: (more/)?head\.extra\. Nothing was loaded"):
        read_published(FILES[name], tensors)


@pytest.mark.parametrize(
    ("name", "key", "shape", "message"),
    [
        (
            "clam_sb",
            "attention_net.3.attention_b.0.bias",
            (200,),
            r"attention_b.0.bias \(200,\) where \(256\)",
        ),
        (
            "clam_sb",
            "classifiers.weight",
            (2, 500),
            r"classifiers.weight \(2, 500\) where \(n_outputs, 512\)",
        ),
        ("transmil", "layer2.attn.to_qkv.weight", (512, 512), r"\(512, 512\) where \(1536, 512\)"),
        ("dtfd", "att_classifier/classifier.fc.weight", (3, 512), r"\(3, 512\) where \(2, 512\)"),
        ("ibmil", "classifier.weight", (2, 512), r"classifier.weight \(2, 512\) where \(2, 1024\)"),
        (
            "camil",
            "encoder.custom_att.wk",
            (512, 512),
            r"custom_att.wk \(512, 512\) where \(512, 256\)",
        ),
        (
            "hdmil",
            "classifiers.1.act_fun.0.cheby_coeffs",
            (512, 1, 17),
            r"17\) where \(512, 1, 13\)",
        ),
        ("abmil", "attention_w.weight", (128,), r"attention_w.weight \(128,\) where \(1, 128\)"),
    ],
)
def test_a_tensor_of_another_shape_is_named_with_the_one_expected(name, key, shape, message):
    with pytest.raises(WeightsError, match=f"of another shape: .*{message} was expected"):
        read_published(name, authors_tensors(name) | {key: torch.zeros(shape)})


@pytest.mark.parametrize("name", ["clam_sb", "hdmil"])
def test_names_of_old_checkpoints_are_understood(name):
    tensors = authors_tensors(name)
    plain = answer(read_published(name, tensors))
    parallel = {
        key.replace("attention_net.", "attention_net.module."): value
        for key, value in tensors.items()
    }
    undropped = {
        key.replace("attention_net.3", "attention_net.2"): value
        for key, value in tensors.items()
        if not key.startswith("instance_loss_fn")
    }
    for other in (parallel, undropped, {f"module.{key}": value for key, value in tensors.items()}):
        torch.testing.assert_close(answer(read_published(name, other)), plain)


def test_a_training_checkpoint_around_one_network_is_unwrapped():
    tensors = authors_tensors("transmil")
    lightning = {
        "epoch": 12,
        "state_dict": {f"model.{key}": value for key, value in tensors.items()},
        "optimizer_states": [{"state": {}}],
    }
    expected = answer(read_published("transmil", tensors))
    torch.testing.assert_close(answer(read_published("transmil", lightning)), expected)


def test_four_modules_of_dtfd_are_one_host():
    tensors = authors_tensors("dtfd")
    expected = answer(read_published("dtfd", tensors))
    torch.testing.assert_close(answer(read_published("dtfd", as_modules(tensors))), expected)


@pytest.mark.parametrize("alone", [True, False])
def test_a_student_of_mhim_without_a_teacher_is_its_own(alone):
    modules = as_modules(authors_tensors("mhim"))
    both = read_published("mhim", {"model": modules["student"], "teacher": modules["teacher"]})
    single = modules["student"] if alone else {"model": modules["student"], "teacher": None}
    student = read_published("mhim", single)
    torch.testing.assert_close(answer(student), answer(both))
    host = student.create()
    assert torch.equal(host.teacher.head.weight, host.student.head.weight)
    assert bool(host.student_stage)


@pytest.mark.parametrize(("name", "n_heads"), [("clam_sb", 1), ("hdmil", 1)])
def test_a_risk_has_one_output_and_no_instance_heads(name, n_heads):
    tensors = authors_tensors(name)
    risk = {key: value for key, value in tensors.items() if "classifiers.1" not in key}
    for key in ("classifiers.weight", "classifiers.bias"):
        if key in risk:
            risk[key] = risk[key][:1]
    if name == "hdmil":
        for part in ("weight", "bias"):
            risk[f"attention_net.3.attention_c.{part}"] = risk[
                f"attention_net.3.attention_c.{part}"
            ][:1]
    published = read_published(name, risk, risk=True)
    assert published.n_outputs == n_heads
    assert answer(published).shape == (1,)


def test_one_sigmoid_is_the_log_odds_of_the_second_class_unless_it_is_a_risk():
    tensors = authors_tensors("abmil")
    classes, risk = read_published("abmil", tensors), read_published("abmil", tensors, risk=True)
    assert (classes.n_outputs, risk.n_outputs) == (2, 1)
    torch.testing.assert_close(answer(classes), torch.cat([torch.zeros(1), answer(risk)]))


def linear(tensors, name, rows):
    return rows @ tensors[f"{name}.weight"].T + tensors[f"{name}.bias"]


def gated_scores(tensors, tokens, names):
    content, gate, last = names
    product = linear(tensors, content, tokens).tanh() * linear(tensors, gate, tokens).sigmoid()
    return linear(tensors, last, product)


@torch.no_grad()
def test_clam_mb_reads_each_class_through_its_own_branch():
    """The published equations, written out on the published names."""
    theirs, features = small_checkpoint("clam_mb", in_dim=8), torch.randn(9, 8)
    tokens = linear(theirs, "attention_net.0", features).relu()
    places = ("attention_a.0", "attention_b.0", "attention_c")
    scores = gated_scores(theirs, tokens, [f"attention_net.3.{place}" for place in places])
    bags = scores.softmax(dim=0).T @ tokens
    expected = torch.cat([linear(theirs, f"classifiers.{c}", bags[c]) for c in range(2)])
    output = read_published("clam_mb", theirs).create()(features)
    torch.testing.assert_close(output.logits, expected)
    torch.testing.assert_close(output.scores, scores[:, expected.argmax()])


@torch.no_grad()
def test_acmil_pools_by_the_mean_of_its_branches():
    theirs, features = small_checkpoint("acmil", in_dim=8), torch.randn(9, 8)
    tokens = (features @ theirs["dimreduction.fc1.weight"].T).relu()
    places = ("attention_V.0", "attention_U.0", "attention_weights")
    weights = gated_scores(theirs, tokens, [f"attention.{place}" for place in places]).softmax(
        dim=0
    )
    output = read_published("acmil", theirs).create()(features)
    expected = linear(theirs, "Slide_classifier.fc", weights.mean(dim=1) @ tokens)
    torch.testing.assert_close(output.logits, expected)
    for k in range(2):
        branch = linear(theirs, f"classifier.{k}.fc", weights[:, k] @ tokens)
        torch.testing.assert_close(output.auxiliary_logits[f"branch_{k}"], branch)
