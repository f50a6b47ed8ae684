"""The evidence head and its vote, on bags and labels whose answer is known."""

import numpy as np
import pytest
import torch

from gcemil.evidence.head import (
    ClassLikelihood,
    CoxLikelihood,
    EvidenceHead,
    GaussianLikelihood,
    Slides,
    fit_vote,
)


def make_head(n_anchors=3, dim=8, n_outputs=2):
    generator = torch.Generator().manual_seed(0)
    head = EvidenceHead(dim, n_anchors, n_outputs)
    head.set_anchors(
        torch.randn(n_anchors, dim, generator=generator),
        5 + torch.randn(500, dim, generator=generator),
    )
    return head


def test_a_response_is_the_centred_cosine_beyond_the_quantile_in_deviations():
    head = make_head()
    rows = 5 + torch.randn(40, 8, generator=torch.Generator().manual_seed(1))
    cosines = torch.nn.functional.cosine_similarity(
        (rows - head.centre).unsqueeze(1), head.directions.unsqueeze(0), dim=2
    )
    expected = ((cosines - head.offset) / head.scale).clamp_min(0)
    torch.testing.assert_close(head.responses(rows), expected, atol=1e-4, rtol=1e-4)


def test_coverage_is_the_mean_of_the_first_responses_and_that_of_a_part_counts_the_whole_slide():
    head = make_head(n_anchors=1)
    responses = torch.tensor([[8.0], [4.0], [2.0], [2.0], [1.0], [0.0]])
    assert head.coverage(responses, 6).tolist() == [4.0]
    assert head.coverage(responses[:1], 6).tolist() == [2.0]
    gates = torch.tensor([0.0, 1.0, 1.0, 0.5, 1.0, 1.0])
    assert head.coverage(responses, 6, gates).tolist() == [2.0]
    head.absent.fill_(3.0)
    assert head.coverage(responses[2:], 6).tolist() == [3.0]


def test_removing_patches_never_raises_coverage():
    head, generator = make_head(), torch.Generator().manual_seed(3)
    responses = torch.rand(60, 3, generator=generator)
    whole = head.coverage(responses, 60)
    for share in (0.1, 0.5, 0.9):
        kept = torch.rand(60, generator=generator) < share
        assert bool((head.coverage(responses[kept], 60) <= whole).all())


def test_a_marginal_is_what_the_utility_loses_without_the_patch():
    head = make_head()
    responses = torch.rand(30, 3, generator=torch.Generator().manual_seed(4))
    row = torch.tensor([1.0, 0.0, 2.0])
    found = head.marginals(responses, 30, row)
    whole = head.coverage(responses, 30) @ row
    for patch in range(30):
        others = torch.arange(30) != patch
        without = head.coverage(responses[others], 30) @ row
        assert float(found[patch]) == pytest.approx(float(whole - without), abs=1e-6)


def test_without_a_vote_the_mixture_is_the_host_to_the_bit():
    head, host = make_head(), torch.tensor([0.3, -1.2])
    assert head.mix(host, torch.tensor([5.0, 0.0])) is host


def test_the_mixture_is_geometric_in_calibrated_probabilities():
    head = make_head()
    head.weight.fill_(0.25)
    head.host_scale.copy_(torch.tensor([0.0, 0.5]))
    head.head_scale.copy_(torch.tensor([0.0, 2.0]))
    head._known = None
    host, utility = torch.tensor([2.0, 0.0]), torch.tensor([0.0, 1.0])
    found = torch.softmax(head.mix(host, utility), dim=0)
    product = torch.softmax(host * 0.5, 0) ** 0.75 * torch.softmax(utility * 2, 0) ** 0.25
    torch.testing.assert_close(found, product / product.sum())


def test_a_class_that_the_host_neglects_is_put_right_by_its_bias():
    generator = np.random.default_rng(0)
    labels = np.arange(300) % 3
    logits = np.eye(3)[labels] + generator.normal(size=(300, 3)) - np.array([2.0, 0.0, 0.0])
    scale, bias = ClassLikelihood.calibrate(logits, logits, labels)
    before, after = (
        (one.argmax(axis=1) == labels).mean() for one in (logits, (logits + bias) * scale[1])
    )
    assert after > before + 0.05
    assert bias[0] > 1.0 > bias[1:].max()
    # A few slides move a bias little.
    scale, bias = ClassLikelihood.calibrate(logits, logits[:6], labels[:6])
    assert abs(bias * scale[1]).max() < 0.6


def test_the_mixture_reads_the_host_with_its_biases():
    head = make_head()
    head.weight.fill_(0.5)
    head.host_bias.copy_(torch.tensor([0.0, 1.5]))
    head._known = None
    host, utility = torch.tensor([1.0, 0.0]), torch.zeros(2)
    assert int(head.mix(host, utility).argmax()) == 1


def planted(n=60, seed=0, noise=0.2):
    """Three classes, each shown by one of four anchors; the fourth says nothing."""
    generator = np.random.default_rng(seed)
    labels = np.arange(n) % 3
    coverage = generator.uniform(0, noise, (n, 4))
    coverage[np.arange(n), labels] += 1.0
    return coverage, labels


def test_weights_find_which_anchor_speaks_for_which_class_and_are_never_negative():
    coverage, labels = planted()
    weights, bias = ClassLikelihood.fit_weights(coverage, labels, 3)
    assert (weights >= 0).all()
    assert weights[:, :3].argmax(axis=1).tolist() == [0, 1, 2]
    assert ((coverage @ weights.T + bias).argmax(axis=1) == labels).all()


def test_the_head_votes_where_the_host_does_not_know_and_has_no_vote_where_it_knows_nothing():
    train, labels = planted()
    val, val_labels = planted(30, seed=1)
    generator = np.random.default_rng(2)
    host = generator.normal(size=(90, 3))

    def weight(train, val, val_host):
        slides = Slides(train, labels, host[:60]), Slides(val, val_labels, val_host)
        return fit_vote("classification", *slides).weight

    assert weight(train, val, host[60:]) > 0.5
    noise = generator.uniform(size=(60, 4)), generator.uniform(size=(30, 4))
    assert weight(*noise, 6 * np.eye(3)[val_labels]) == 0.0


def survival(n=120, seed=0):
    generator = np.random.default_rng(seed)
    coverage = generator.uniform(size=(n, 3))
    risk = 3 * coverage[:, 0] - 3 * coverage[:, 1]
    times = generator.exponential(size=n) * np.exp(-risk)
    return coverage, risk, np.stack([times, generator.uniform(size=n) < 0.8], axis=1)


def test_effects_are_signed_and_lead_the_risk():
    coverage, risk, labels = survival()
    ((effects,), _) = CoxLikelihood.fit_weights(coverage, labels, 1)
    assert effects[0] > 0 > effects[1]
    assert abs(effects[2]) < min(effects[0], -effects[1])
    assert np.corrcoef(coverage @ effects, risk)[0, 1] > 0.9


def test_pathways_vote_on_a_risk_that_the_host_does_not_see():
    generator = np.random.default_rng(5)
    train, val = (
        Slides(coverage, labels, generator.normal(size=(len(labels), 1)))
        for coverage, _, labels in (survival(), survival(60, seed=1))
    )
    assert fit_vote("survival", train, val).weight > 0.5


# Values


def test_effects_of_a_value_are_those_of_least_squares_up_to_the_ridge():
    coverage = np.random.default_rng(0).uniform(size=(400, 2))
    labels = 3 * coverage[:, 0] - 2 * coverage[:, 1] + 1
    ((effects,), bias) = GaussianLikelihood.fit_weights(coverage, labels, 1)
    assert effects == pytest.approx([3, -2], rel=0.05)
    assert bias == pytest.approx(1, abs=0.1)


def test_a_value_is_calibrated_by_a_slope_and_an_offset():
    values = np.linspace(-2, 2, 400)[:, None]
    (_, slope), offset = GaussianLikelihood.calibrate(values, values, 0.5 * values[:, 0] + 1)
    assert slope * (values + offset) == pytest.approx(0.5 * values + 1, abs=0.1)
    (_, slope), offset = GaussianLikelihood.calibrate(values, values, values[:, 0])
    assert (slope, *offset) == pytest.approx((1.0, 0.0))


def test_the_head_votes_on_a_value_that_the_host_does_not_see():
    draws = np.random.default_rng(1)
    coverage, labels = draws.uniform(size=(90, 3)), draws.normal(size=90)
    coverage[:, 0] = labels + 0.2 * draws.normal(size=90)
    noise = 0.1 * draws.normal(size=30)
    train = Slides(coverage[:60], labels[:60], np.zeros((60, 1)))
    blind = fit_vote("regression", train, Slides(coverage[60:], labels[60:], noise[:, None]))
    assert blind.weight > 0.8
    knowing = Slides(coverage[60:], labels[60:], labels[60:, None])
    assert fit_vote("regression", train, knowing).weight == 0
    head = EvidenceHead(4, 3, 1, "regression")
    head.set_fit(blind)
    # The weights must stand beside anchors, which say that the head was fitted.
    head.directions.fill_(1.0)
    mixed = head.mix(
        torch.from_numpy(noise[:, None]), head.utility(torch.from_numpy(coverage[60:]).float())
    )
    assert np.corrcoef(mixed[:, 0].numpy(), labels[60:])[0, 1] > 0.9
    assert np.abs(mixed[:, 0].numpy() - labels[60:]).mean() < 0.4
