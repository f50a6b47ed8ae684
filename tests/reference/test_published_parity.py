"""Every host against the numbers of its authors' own code, on weights drawn by a recipe and read through published.py.

`parity/<host>.json` holds the authors' tensor names and shapes, the seeds of weights and inputs, and what their code
answered (CPU, float32). Checksums tell a wrong recipe from a wrong host, so they come first.
"""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from gcemil.hosts import hdmil, mhim
from gcemil.hosts.camil import neighbour_graph
from gcemil.hosts.dtfd import group_of
from gcemil.hosts.published import read_published

FOLDER = Path(__file__).parent / "parity"
FILES = sorted(path.stem for path in FOLDER.glob("*.json"))
LABEL = torch.tensor(1)


def facts(name):
    return json.loads((FOLDER / f"{name}.json").read_text())


def drawn_weights(name):
    """The authors' state dict: their names, values by the recipe."""
    told = facts(name)
    generator = np.random.default_rng(told["weights"]["seed"])
    tensors, drawn = {}, []
    for key, shape, scale in told["tensors"]:
        if scale is None:
            tensors[key] = torch.tensor(told["buffers"][key])
            continue
        drawn.append((generator.standard_normal(shape) * scale).astype(np.float32))
        tensors[key] = torch.from_numpy(drawn[-1])
    return tensors, drawn


def drawn_bag(name, bag="main"):
    recipe = facts(name)["input"]["bags"][bag]
    generator = np.random.default_rng(recipe["seed"])
    values = generator.standard_normal((recipe["n"], recipe["dim"])).astype(np.float32)
    return torch.from_numpy(np.abs(values) if recipe["abs"] else values)


def published(name, host=None, *, network=None):
    """The host with the recipe's weights; `network` is the word before the slash where the file has several."""
    tensors, _ = drawn_weights(name)
    if network is not None:
        tensors = {
            key.removeprefix(f"{network}/"): value
            for key, value in tensors.items()
            if network in key
        }
    return read_published(host or name, tensors)


def without_dropout(host):
    for module in host.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return host.train()


def agree(found, expected, tolerance=1e-5):
    expected = torch.as_tensor(expected, dtype=torch.float32).squeeze()
    # Long vectors of the files are cut.
    found = (
        found.detach().squeeze()[..., : expected.shape[-1]]
        if expected.ndim
        else found.detach().squeeze()
    )
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("name", FILES)
def test_recipe_gives_the_weights_and_inputs_of_the_file(name):
    told = facts(name)
    _, drawn = drawn_weights(name)
    digest = hashlib.sha256(b"".join(array.astype("<f4").tobytes() for array in drawn))
    assert digest.hexdigest() == told["weights"]["sha256"]
    for bag, recipe in told["input"]["bags"].items():
        assert (
            hashlib.sha256(drawn_bag(name, bag).numpy().tobytes()).hexdigest() == recipe["sha256"]
        )


@torch.no_grad()
def test_abmil_agrees():
    found, told = published("abmil"), facts("abmil")["outputs"]
    host, features = found.create(), drawn_bag("abmil")
    assert (found.in_dim, found.n_outputs, found.options) == (800, 2, {"width": 500, "hidden": 128})
    output = host(features)
    # One sigmoid output is the log-odds of class 1.
    assert float(output.logits[0]) == 0.0
    agree(output.logits[1], told["eval"]["logit"])
    agree(output.logits.softmax(dim=0)[1], told["eval"]["Y_prob"])
    agree(output.scores, told["eval"]["attention_logits"])
    agree(output.scores.softmax(dim=0), told["eval"]["A"])
    agree(output.bag_feature, told["eval"]["bag_feature"])
    for label in (0, 1):
        expected = told[f"loss_label{label}"]["neg_log_likelihood"]
        agree(F.cross_entropy(output.logits, torch.tensor(label)), expected)


@torch.no_grad()
def test_clam_sb_agrees():
    told = facts("clam_sb")["outputs"]["eval"]
    output = published("clam_sb").create()(drawn_bag("clam_sb"))
    agree(output.logits, told["logits"])
    agree(output.scores, told["A_raw"])
    agree(output.bag_feature, told["features"])


@pytest.mark.parametrize("subtyping", [False, True])
@pytest.mark.parametrize(("loss", "word"), [("svm", "svm"), ("cross_entropy", "ce")])
@torch.no_grad()
def test_clam_sb_losses_agree(subtyping, loss, word):
    told = facts("clam_sb")["outputs"][f"train_label1_{word}_subtyping_{str(subtyping).lower()}"]
    host = published("clam_sb").create(options={"subtyping": subtyping, "instance_loss": loss})
    output = without_dropout(host)(drawn_bag("clam_sb"), target=LABEL)
    bag_loss = F.cross_entropy(output.logits, LABEL)
    agree(bag_loss, told["bag_loss"])
    agree(output.losses["instance"], 0.3 * told["instance_loss"])
    total = host.task_weights["bag"] * bag_loss + output.losses["instance"]
    agree(total, told["total_loss"])


@pytest.mark.parametrize("bag", ["main", "long"])
@torch.no_grad()
def test_transmil_agrees(bag):
    told = facts("transmil")
    host, features = published("transmil").create(), drawn_bag("transmil", bag)
    output = host(features)
    agree(output.logits, told["outputs"][f"eval_{bag}"]["logits"])
    agree(output.scores, told["outputs"][f"eval_{bag}"]["class_token_row"])
    trained = without_dropout(host)(features, target=LABEL)
    agree(
        F.cross_entropy(trained.logits, LABEL),
        told["outputs"][f"train_label1_{bag}"]["cross_entropy"],
    )
    # The version the authors pin answers otherwise, as docs/hosts.md says.
    pinned = torch.tensor(told["outputs_nystrom_0.0.9"][f"eval_{bag}"]["logits"][0])
    assert (output.logits - pinned).abs().max() > 0.4


@pytest.mark.parametrize("name", ["dsmil", "dsmil_passing_v"])
@torch.no_grad()
def test_dsmil_agrees(name):
    told = facts(name)["outputs"]
    host, features = published(name, "dsmil").create(), drawn_bag(name)
    output, expected = host(features), told["eval"]
    agree(output.logits, expected["prediction_bag"])
    agree(output.auxiliary_logits["max"], expected["max_prediction"])
    agree(host.embed(features).instance_logits, expected["classes"])
    predicted = int(output.logits.argmax())
    agree(output.scores.softmax(dim=0), np.array(expected["A"])[:, predicted])
    agree(output.bag_feature.view(2, -1), expected["B"])
    one_hot = F.one_hot(LABEL, 2).float()
    agree(
        F.binary_cross_entropy_with_logits(output.logits, one_hot), told["loss_label1"]["bag_loss"]
    )
    max_loss = F.binary_cross_entropy_with_logits(output.auxiliary_logits["max"], one_hot)
    agree(max_loss, told["loss_label1"]["max_loss"])
    assert host.task_weights == {"bag": 0.5, "max": 0.5}


@torch.no_grad()
def test_one_output_of_dsmil_becomes_two_that_say_the_same():
    tensors, _ = drawn_weights("dsmil")
    positive = {
        key: value[1:, 1:] if key == "b_classifier.fcc.weight" else value[1:]
        for key, value in tensors.items()
        if "q" not in key
    }
    single = read_published("dsmil", tensors | positive, risk=True).create()
    pair = read_published("dsmil", tensors | positive).create()
    features = drawn_bag("dsmil")
    for bag in (features, -features):
        one, two = single(bag), pair(bag)
        assert two.logits[0].item() == 0.0
        torch.testing.assert_close(two.logits[1:], one.logits)
        torch.testing.assert_close(two.auxiliary_logits["max"][1:], one.auxiliary_logits["max"])
        assert two.auxiliary_logits["max"][0].item() == pytest.approx(0, abs=1e-12)
        # Also where the negative class is predicted, the scores are those of the one stream there is.
        torch.testing.assert_close(two.scores, one.scores)


def coords_in_groups(groups, n_patches):
    """Places whose hash puts each patch into the pseudo-bag the file gives it."""
    grid = 256 * torch.cartesian_prod(torch.arange(60), torch.arange(60))
    places = {g: iter(grid[group_of(grid, len(groups)) == g]) for g in range(len(groups))}
    group = {patch: g for g, members in enumerate(groups) for patch in members}
    return torch.stack([next(places[group[patch]]) for patch in range(n_patches)])


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [("afs", "AFS"), ("max", "MaxS"), ("maxmin", "MaxMinS")],
    ids=["afs", "max", "maxmin"],
)
@torch.no_grad()
def test_dtfd_agrees(ours, theirs):
    told = facts("dtfd")
    features, groups = drawn_bag("dtfd"), told["input"]["groups"]
    coords = coords_in_groups(groups, len(features))
    host = published("dtfd").create(options={"distillation": ours})
    outputs = told["outputs"]
    for label in (None, torch.tensor(0), LABEL):
        output = host(features, coords, target=label)
        agree(output.scores, outputs["eval_shared"]["attention_logits"])
        tier_one = torch.stack([output.auxiliary_logits[f"tier1_{g}"] for g in range(4)])
        agree(tier_one, outputs["eval_shared"]["tier1_logits"])
        agree(output.logits, outputs[f"eval_{theirs}"]["tier2_logits"])
        agree(output.logits.softmax(dim=0)[1], outputs[f"eval_{theirs}"]["probability_last_class"])
        if label is not None:
            losses = outputs[f"train_label{int(label)}_{theirs}"]
            agree(F.cross_entropy(tier_one, label.expand(4)), losses["loss_tier1"])
            agree(F.cross_entropy(output.logits, label), losses["loss_tier2"])


@torch.no_grad()
def test_ibmil_agrees_in_both_stages():
    told, features = facts("ibmil")["outputs"], drawn_bag("ibmil")
    one_hot = F.one_hot(LABEL, 2).float()
    for stage, key in (("stage1", "A"), ("stage2", "attention")):
        expected = told[f"eval_{stage}"]
        host = published("ibmil", network=stage).create()
        output = host(features)
        agree(output.logits, expected["Y_prob"])
        agree(output.scores, expected["attention_logits"])
        agree(output.scores.softmax(dim=0), expected[key])
        agree(output.bag_feature, expected["M"])
        loss = F.binary_cross_entropy_with_logits(output.logits, one_hot)
        agree(loss, told[f"loss_label1_{stage}"]["bce_with_logits"])
    query = host.query(output.bag_feature)
    agree(
        torch.softmax(host.key(host.confounders) @ query / len(query) ** 0.5, dim=0),
        told["eval_stage2"]["deconf_A"],
    )


@torch.no_grad()
def test_mhim_student_and_teacher_agree():
    told, features = facts("mhim")["outputs"], drawn_bag("mhim")
    host = published("mhim").create()
    output = host(features)
    agree(output.logits, told["eval_student"]["logits"])
    agree(output.scores, told["eval_student"]["attention_raw"])
    tokens, attention_logits = host.teacher(features)
    agree(attention_logits, told["eval_teacher"]["attention_raw"])
    agree(attention_logits.softmax(dim=0) @ tokens, told["teacher"]["cls_feat"])
    agree(
        host.teacher.head(attention_logits.softmax(dim=0) @ tokens), told["eval_teacher"]["logits"]
    )


@pytest.mark.parametrize("case", ["random.5_high.01_share.5", "low.8_high.03_share1"])
@torch.no_grad()
def test_mhim_losses_agree_under_a_given_mask(case, monkeypatch):
    expected = facts("mhim")["outputs"][f"train_label1_{case}"]
    masked = torch.ones(60, dtype=torch.bool)
    masked[expected["kept_rows"]] = False
    host, features = without_dropout(published("mhim").create()), drawn_bag("mhim")
    if case.startswith("low"):
        # This mask is not random, so ours must be the same.
        ranked = host.teacher(features)[1]
        assert torch.equal(mhim.masked_patches(ranked, 0.0, 0.8, 0.03, 1.0), masked)
    monkeypatch.setattr(mhim, "masked_patches", lambda hardness, *ratios: masked)
    output = host(features, target=LABEL)
    agree(output.logits, expected["logits"])
    agree(output.losses["consistency"], 0.1 * expected["consistency"])
    total = F.cross_entropy(output.logits, LABEL) + output.losses["consistency"]
    agree(total, expected["total_loss_alpha0.1"])


@torch.no_grad()
def test_camil_agrees_with_its_convolution_across_heads():
    told, features = facts("camil"), drawn_bag("camil")
    coords = torch.tensor(told["input"]["coords"])
    graph = neighbour_graph(features, coords)
    assert graph.neighbours.tolist() == told["input"]["neighbours"]
    agree(graph.shares, told["input"]["neighbour_values"])
    host = published("camil").create()
    check_camil(host, features, coords, told["outputs"]["eval"])
    loss = F.cross_entropy(host(features, coords).logits, LABEL)
    agree(loss, told["outputs"]["loss_label1"]["cross_entropy"])


@torch.no_grad()
def test_camil_agrees_without_the_convolution_when_it_runs_along_the_sequence():
    told, features = facts("camil"), drawn_bag("camil")
    tensors, _ = drawn_weights("camil")
    found = read_published("camil", tensors)
    tensors = {key: value for key, value in found.tensors.items() if "value_conv" not in key}
    sequence = type(found.create())(512, 2, width=None, hidden=128)
    sequence.load_state_dict({**sequence.state_dict(), **tensors})
    sequence.context.value_conv.weight.zero_()
    coords = torch.tensor(told["input"]["coords"])
    check_camil(sequence.eval(), features, coords, told["outputs"]["eval_conv_zero"])


def check_camil(host, features, coords, expected):
    output = host(features, coords)
    agree(output.logits, expected["logits"])
    agree(output.logits.softmax(dim=0), expected["probabilities"])
    agree(output.scores, expected["pool_logits"])
    agree(output.scores.softmax(dim=0), expected["k_alpha"])
    agree(output.bag_feature, expected["bag_feature"])
    embedded = host.embed(features)
    glob = host.context(embedded.tokens) + embedded.tokens
    agree(host.neighbour_logits(glob, neighbour_graph(features, coords), None), expected["alpha"])


@torch.no_grad()
def test_hdmil_agrees():
    told, features = facts("hdmil")["outputs"]["eval"], drawn_bag("hdmil")
    host = published("hdmil").create()
    agree(host(features).logits, told["select_logits"])
    attention_logits = host.embed(features).attention_logits
    agree(attention_logits, told["attns"])
    assert (attention_logits > 0).sum(dim=0).tolist() == told["kept_per_class"]


def hdmil_noise():
    told = facts("hdmil")["input"]
    drawn = np.random.default_rng(1803).standard_exponential((2, 1, 80, 2)).astype(np.float32)
    assert hashlib.sha256(drawn.tobytes()).hexdigest() == told["noise_sha256"]
    return torch.from_numpy(np.log(drawn[1, 0]) - np.log(drawn[0, 0]))


def trained_hdmil(monkeypatch, **options):
    noise = hdmil_noise()
    monkeypatch.setattr(hdmil, "logistic_noise", lambda logits: noise)
    host = without_dropout(published("hdmil").create(options={"normalisation": "joint", **options}))
    return host, host(drawn_bag("hdmil"), target=LABEL)


WEIGHTS = {"instance": 0.3, "prediction_match": 0.5, "feature_match": 0.5, "kept_rate": 2.0}
TERMS = {
    "instance": "instance_loss",
    "prediction_match": "kl_loss",
    "feature_match": "dis_loss",
    "kept_rate": "rate_loss",
}


def test_every_loss_of_hdmil_agrees_under_given_noise(monkeypatch):
    told = facts("hdmil")["outputs"]["train_label1_subtyping_false"]
    host, output = trained_hdmil(monkeypatch)
    agree(output.logits, told["logits"])
    for ours, theirs in TERMS.items():
        agree(output.losses[ours] / WEIGHTS[ours], told[theirs])
    total = host.task_weights["bag"] * F.cross_entropy(output.logits, LABEL) + sum(
        output.losses.values()
    )
    agree(total, told["total_loss"])
    _, subtyped = trained_hdmil(monkeypatch, subtyping=True)
    expected = facts("hdmil")["outputs"]["train_label1_subtyping_true"]["instance_loss"]
    agree(subtyped.losses["instance"], 0.3 * expected)


@pytest.mark.parametrize("ours", TERMS)
def test_gradients_of_hdmils_losses_agree(ours, monkeypatch):
    host, output = trained_hdmil(monkeypatch)
    score = host.attention.score
    parameters = [host.project[0].weight, score.weight, score.bias]
    gradients = torch.autograd.grad(
        output.losses[ours] / WEIGHTS[ours], parameters, allow_unused=True
    )
    norms = [0.0 if gradient is None else float(gradient.norm()) for gradient in gradients]
    expected = facts("hdmil")["outputs"]["train_label1_subtyping_false"]["gradient_norms"][
        TERMS[ours]
    ]
    assert norms == pytest.approx(expected, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("term", ["prediction_match", "feature_match"])
def test_hdmils_joint_weights_are_charged_for_their_scale_and_ours_for_what_is_dropped(
    term, monkeypatch
):
    """Why the smaller terms of per-class weights are not scaled up: with every patch kept there is nothing to distil."""
    dropped = {
        kind: float(trained_hdmil(monkeypatch, normalisation=kind)[1].losses[term].detach())
        for kind in hdmil.NORMALISATIONS
    }
    monkeypatch.setattr(hdmil, "gumbel_kept", lambda logits, gated: torch.ones_like(logits))
    kept = {
        kind: float(trained_hdmil(monkeypatch, normalisation=kind)[1].losses[term].detach())
        for kind in hdmil.NORMALISATIONS
    }
    assert kept["joint"] > 0.9 * dropped["joint"] > 10 * dropped["branch"]
    assert dropped["branch"] > 1e-4
    assert kept["branch"] == pytest.approx(0, abs=1e-6)
