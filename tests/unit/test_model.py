"""The wrapper on a small ABMIL: what each setting changes, and what it must not change."""

import pytest
import torch

from builders.wrappers import PATCH, make_bank, prepared_host, tensor_bag, wrapped
from gcemil.config import PAPER, EvidenceSettings
from gcemil.errors import BagError, UsageError
from gcemil.evidence.anchors import AnchorBank, PaperResponse
from gcemil.evidence.bridge import FreeBridge, IdentityBridge, ProximalBridge
from gcemil.evidence.coverage import WEIGHT_GAIN, anchor_coverage
from gcemil.evidence.selector import Neighbourhood
from gcemil.model import EvidenceOutput, GatedOutput, GceMil, bridge_kind


class Calls:
    """Counts how often a host embeds and pools from now on."""

    def __init__(self, host):
        self.embeddings = self.poolings = 0
        embed, pool = host.embed, host.pool

        def counted_embed(features):
            self.embeddings += 1
            return embed(features)

        def counted_pool(*args):
            self.poolings += 1
            return pool(*args)

        host.embed, host.pool = counted_embed, counted_pool


MORPHOLOGY_ALONE = {
    "morphology_term": True,
    "presence_term": False,
    "attention_term": False,
    "contribution_term": False,
}
"""The paper's score, which does without the host."""


@pytest.fixture
def bag():
    return tensor_bag(40)


@torch.no_grad()
def test_scores_are_the_selector_on_attention_contributions_and_presence(bag):
    features, coords = bag
    model = wrapped(prepared_host("abmil"))
    output, full = model(features, coords, patch_size=PATCH), model.host(features, coords)
    expected = model.selector.scores(
        [],
        coords,
        n_patches=len(features),
        attention_logits=full.scores,
        contributions=full.contributions,
        presence=model.presence(output.responses, full.logits),
        neighbourhood=Neighbourhood.of(coords, PATCH),
    )
    torch.testing.assert_close(output.scores, expected)


@torch.no_grad()
def test_presence_weighs_the_concepts_of_each_class_by_its_probability():
    model = wrapped(prepared_host("abmil"))
    # Class 0 looks for anchor 0 alone, class 1 for anchor 1, class 2 for both.
    wanted = torch.tensor(
        [[4.0, 1e-9, 1e-9, 1e-9], [1e-9, 2.0, 1e-9, 1e-9], [1.0, 1.0, 1e-9, 1e-9]]
    )
    model.utility.raw_weights.copy_(wanted.expm1().log() / WEIGHT_GAIN)
    responses = torch.eye(4)[:2] * 0.5
    certain, torn = torch.tensor([50.0, 0.0, 0.0]), torch.tensor([0.0, 0.0, -50.0])
    assert model.presence(responses, certain).tolist() == pytest.approx([0.5, 0.0], abs=1e-6)
    assert model.presence(responses, torn).tolist() == pytest.approx([0.5, 0.5], abs=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("term", ["attention_term", "contribution_term", "presence_term"])
def test_a_term_that_is_switched_off_has_no_say(bag, term):
    weight = term.replace("term", "weight")
    on, off = wrapped(prepared_host("abmil")), wrapped(prepared_host("abmil"), **{term: False})
    getattr(on.selector, weight).zero_()
    torch.testing.assert_close(on(*bag).scores, off(*bag).scores)
    getattr(on.selector, weight).fill_(2.0)
    assert not torch.allclose(on(*bag).scores, off(*bag).scores)


@torch.no_grad()
def test_prototypes_have_no_say_in_the_score_unless_they_are_asked(bag):
    bank = AnchorBank.prototypes(tensor_bag(60, seed=3)[0], 4)
    shown, asked = (
        wrapped(prepared_host("abmil"), bank=bank, ground_prototypes=ground)
        for ground in (False, True)
    )
    without = wrapped(
        prepared_host("abmil"), bank=bank, ground_prototypes=True, presence_term=False
    )
    torch.testing.assert_close(shown(*bag).scores, without(*bag).scores)
    assert not torch.allclose(asked(*bag).scores, without(*bag).scores)


@torch.no_grad()
@pytest.mark.parametrize(("n", "opened"), [(5, 5), (40, 8), (159, 8), (240, 12)])
def test_a_small_bag_opens_no_fewer_patches_than_the_floor(n, opened):
    model = wrapped(prepared_host("abmil"), min_patches=8)
    assert int(model(*tensor_bag(n)).opened.sum()) == opened


@torch.no_grad()
def test_a_patch_that_lowers_the_risk_counts_as_much_as_one_that_raises_it(bag):
    model = wrapped(
        prepared_host("abmil", n_outputs=1),
        presence_term=False,
        attention_term=False,
        smoothing=0.0,
    )
    contributions = model.host(*bag).contributions
    order = (contributions - contributions.mean()).abs().argsort()
    assert (model(*bag).scores[order].diff() >= -1e-5).all()


@torch.no_grad()
def test_responses_and_coverage_are_those_of_the_bridge_and_the_gates(bag):
    features, coords = bag
    model = wrapped(prepared_host("abmil"))
    output = model(features, coords)
    embedded = model.bridge(features)
    cosines = torch.nn.functional.cosine_similarity(
        embedded.unsqueeze(1), model.anchors.unsqueeze(0), dim=2
    )
    torch.testing.assert_close(output.responses, model.response(cosines), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(output.responses, model.responses(features), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(output.coverage, anchor_coverage(output.gates, output.responses))


@torch.no_grad()
def test_forward_embeds_once_and_pools_twice(bag):
    host = prepared_host("abmil")
    count = Calls(host)
    output = wrapped(host)(*bag)
    assert isinstance(output, EvidenceOutput)
    assert (count.embeddings, count.poolings) == (1, 2)


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "mode"), [("abmil", "paper"), ("transmil", "paper"), ("transmil", "deletion")]
)
def test_a_score_without_the_host_lets_the_host_see_the_bag_once(bag, name, mode):
    host = prepared_host(name, mode=mode)
    count = Calls(host)
    output = wrapped(host, **MORPHOLOGY_ALONE).gated(*bag)
    assert type(output) is GatedOutput
    assert (count.embeddings, count.poolings) == (1, 1)


@torch.no_grad()
def test_anchor_weights_are_those_of_the_predicted_class():
    model = wrapped(prepared_host("abmil"))
    model.utility.raw_weights.copy_(torch.arange(12.0).reshape(3, 4) / WEIGHT_GAIN)
    expected = torch.nn.functional.softplus(torch.tensor([4.0, 5.0, 6.0, 7.0]))
    torch.testing.assert_close(model.anchor_weights(torch.tensor([0.1, 0.7, 0.2])), expected)


def test_an_automatic_bridge_is_the_identity_for_prototypes_and_proximal_for_text():
    prototypes = AnchorBank(torch.randn(3, 16), ("a", "b", "c"), "50 patches, seed 0", "prototypes")
    settings = EvidenceSettings()
    assert bridge_kind(settings, prototypes, 16) == "identity"
    assert bridge_kind(settings, make_bank(), 16) == "proximal"
    assert bridge_kind(EvidenceSettings(bridge="frozen"), prototypes, 16) == "frozen"
    host = prepared_host("abmil")
    assert isinstance(GceMil(host, prototypes, in_dim=16).bridge, IdentityBridge)
    assert isinstance(GceMil(host, make_bank(), in_dim=16).bridge, ProximalBridge)


@torch.no_grad()
def test_the_paper_recipe_builds_the_papers_parts(bag):
    model = GceMil(prepared_host("abmil"), make_bank(), in_dim=16, settings=PAPER).eval()
    assert isinstance(model.bridge, FreeBridge)
    assert isinstance(model.response, PaperResponse)
    output = model(*bag)
    torch.testing.assert_close(output.gates, torch.sigmoid(output.scores))


def test_a_wrapper_of_another_width_than_its_host_is_refused():
    with pytest.raises(UsageError, match=r"features of width 16, the wrapper was given in_dim=8"):
        GceMil(prepared_host("abmil"), make_bank(), in_dim=8)


@pytest.mark.parametrize("door", ["forward", "gated"])
@pytest.mark.parametrize("reads_host", [True, False])
def test_bad_bags_are_refused_by_either_door(bag, door, reads_host):
    features, coords = bag
    model = wrapped(prepared_host("abmil"), attention_term=reads_host, contribution_term=reads_host)
    ask = getattr(model, door)
    with pytest.raises(BagError, match="features of width 16, got 8"):
        ask(features[:, :8], coords)
    with pytest.raises(BagError, match=r"need coords of shape \(40, 2\)"):
        ask(features, coords[:3])
    features = features.clone()
    features[7, 3] = torch.nan
    with pytest.raises(BagError, match="1 of 40 patches .* the first is patch 7"):
        ask(features, coords)


def test_a_selector_that_diverged_is_named(bag):
    model = wrapped(prepared_host("abmil"), **MORPHOLOGY_ALONE)
    torch.nn.init.constant_(model.selector.morphology.score_layer.bias, torch.nan)
    with pytest.raises(BagError, match="The selector returned NaN"):
        model.gated(*bag)
