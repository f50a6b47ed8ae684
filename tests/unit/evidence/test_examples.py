"""Anchors from examples: what sets the mean of a few patches apart."""

import numpy as np
import pytest
import torch

from gcemil.config import EvidenceSettings
from gcemil.errors import InputError
from gcemil.evidence.anchors import AnchorBank, directions_of_means
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


def test_a_direction_is_the_precision_times_the_offset_of_the_mean():
    rows, is_concept = patches_with_a_loud_axis()
    mean = rows[is_concept].mean(dim=0, keepdim=True)
    covariance = torch.cov(rows.double().T, correction=0)
    loaded = covariance + 3 * covariance.diagonal().mean() * torch.eye(6)
    expected = torch.linalg.inv(loaded) @ (mean[0].double() - rows.double().mean(dim=0))
    torch.testing.assert_close(
        directions_of_means(mean, rows)[0], expected.float(), rtol=1e-3, atol=1e-6
    )


def test_patches_that_are_all_alike_are_refused():
    with pytest.raises(InputError, match="all alike"):
        directions_of_means(torch.zeros(1, 3), torch.ones(5, 3))


def separation(rows, is_concept, mapped, anchor):
    cosines = torch.nn.functional.cosine_similarity(mapped, anchor.unsqueeze(0))
    order = cosines.argsort(descending=True)[: int(is_concept.sum())]
    return float(is_concept[order].float().mean())


def test_an_anchor_of_few_examples_finds_its_concept_where_raw_cosines_do_not():
    rows, is_concept = patches_with_a_loud_axis()
    examples = rows[is_concept][:10]
    direction = directions_of_means(examples.mean(dim=0, keepdim=True), rows, ridge=0.01)[0]
    centred = rows - rows.mean(dim=0)
    assert separation(rows, is_concept, centred, direction) > 0.4
    assert separation(rows, is_concept, rows, examples.mean(dim=0)) < 0.4


def test_the_bank_says_what_it_is_and_grounds_the_evidence():
    rows, is_concept = patches_with_a_loud_axis()
    concepts = {"a": rows[is_concept][:4], "b": rows[~is_concept][:2]}
    bank = AnchorBank.from_examples(concepts, rows, source="outlines")
    assert bank.prompts == ("a", "b")
    assert bank.provenance == "examples: 2 to 4 patches per concept, outlines"
    assert bank.kind == "examples"
    assert bridge_kind(EvidenceSettings(), bank, 6) == "centred"
    model = GceMil(create_host("abmil", in_dim=6, n_outputs=2), bank, in_dim=6)
    assert model.is_grounded
    model.bridge.set_centre(rows.mean(dim=0))
    cosines = model.bridge.cosines(rows, model.anchors)
    expected = torch.nn.functional.cosine_similarity(
        (rows - rows.mean(dim=0)).unsqueeze(1), bank.embeddings.unsqueeze(0), dim=2
    )
    assert np.allclose(cosines.detach(), expected, atol=1e-3)
