"""Anchors from examples: means of a few patches in whitened feature space."""

import numpy as np
import pytest
import torch

from gcemil.config import EvidenceSettings
from gcemil.errors import InputError
from gcemil.evidence.alignment import bank_from_examples, whitening_fit
from gcemil.hosts.table import create_host
from gcemil.model import GceMil, bridge_kind


def patches_with_a_loud_axis(n=400, dim=6, seed=0):
    """Far from the origin; axis 0 is loud and says nothing, axis 1 is quiet and tells the concept."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(n, dim, generator=generator)
    rows[:, 0] *= 30
    is_concept = torch.arange(n) % 10 == 0
    rows[is_concept, 1] += 5
    return rows + 40, is_concept


def applied(fit, rows):
    return rows @ fit.right.T @ fit.left.T + fit.bias


def test_reference_patches_lie_around_the_origin_with_equal_spread_where_there_is_no_ridge():
    rows, _ = patches_with_a_loud_axis()
    mapped = applied(whitening_fit(rows, rank=6, ridge=0.0), rows)
    assert torch.allclose(mapped.mean(dim=0), torch.zeros(6), atol=1e-3)
    assert torch.allclose(mapped.T @ mapped / len(rows), torch.eye(6), atol=1e-2)


def test_the_rank_bounds_the_space_and_never_exceeds_what_the_patches_span():
    rows, _ = patches_with_a_loud_axis()
    assert whitening_fit(rows, rank=4).right.shape == (4, 6)
    assert whitening_fit(rows[:3], rank=6).right.shape[0] == 2


def test_patches_that_are_all_alike_are_refused():
    with pytest.raises(InputError, match="all alike"):
        whitening_fit(torch.ones(5, 3), rank=3)


def separation(rows, is_concept, mapped, anchor):
    cosines = torch.nn.functional.cosine_similarity(mapped, anchor.unsqueeze(0))
    order = cosines.argsort(descending=True)[: int(is_concept.sum())]
    return float(is_concept[order].float().mean())


def test_an_anchor_of_few_examples_finds_its_concept_where_raw_cosines_do_not():
    rows, is_concept = patches_with_a_loud_axis()
    examples = rows[is_concept][:10]
    fit = whitening_fit(rows, rank=6, ridge=0.01)
    bank = bank_from_examples({"concept": examples}, fit, source="test", note="")
    assert separation(rows, is_concept, applied(fit, rows), bank.embeddings[0]) > 0.7
    assert separation(rows, is_concept, rows, examples.mean(dim=0)) < 0.4


def test_the_bank_says_what_it_is_and_grounds_the_evidence():
    rows, is_concept = patches_with_a_loud_axis()
    fit = whitening_fit(rows, rank=6)
    concepts = {"a": rows[is_concept][:4], "b": rows[~is_concept][:2]}
    bank = bank_from_examples(concepts, fit, source="outlines", note=", 3 on held-out slides left out")
    assert bank.prompts == ("a", "b")
    assert bank.provenance == "examples: 2 to 4 patches per concept, outlines, 3 on held-out slides left out"
    assert bank.is_examples
    assert not bank.is_prototypes
    assert bridge_kind(EvidenceSettings(), bank, 6) == "frozen"
    model = GceMil(create_host("abmil", in_dim=6, n_outputs=2), bank, in_dim=6)
    assert model.is_grounded
    model.bridge.set_fit(fit)
    cosines = model.bridge.cosines(rows, model.anchors)
    expected = torch.nn.functional.cosine_similarity(
        applied(fit, rows).unsqueeze(1), bank.embeddings.unsqueeze(0), dim=2
    )
    assert np.allclose(cosines.detach(), expected, atol=1e-4)
