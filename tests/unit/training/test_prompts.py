"""Prompts that are read through the training patches that answer to them most, on a cohort where these are known."""

import numpy as np
import pytest
import torch

from builders import PATCH, make_cohort, write_slide
from gcemil.bags import store
from gcemil.bags.store import write_anchors
from gcemil.config import JOINT, PAPER, EvidenceSettings, HostSettings, TrainSettings
from gcemil.evidence.bridge import CentredBridge, ProximalBridge
from gcemil.training.directions import PROMPT_PATCHES_PER_SLIDE
from gcemil.training.fold import PAIRS_FILE, create_bank, create_network

DIM, N_PATCHES = 8, 40
CONCEPT = np.eye(DIM, dtype=np.float32)[3] * 6


@pytest.fixture
def cohort(tmp_path):
    """Six slides with a region of the concept, the last of them full of it; the prompt lies beside the concept."""
    made = make_cohort(tmp_path, n_cases=6, n_patches=N_PATCHES, dim=DIM)
    generator = np.random.default_rng(1)
    for number, row in enumerate(made.slides):
        features = generator.normal(size=(N_PATCHES, DIM)).astype(np.float32)
        size = N_PATCHES if number == 5 else 4
        # What fills the last slide answers still more, and is something else as well.
        features[:size] = CONCEPT + 0.1 * generator.normal(size=(size, DIM))
        if number == 5:
            features = features * 3 + 10 * np.eye(DIM, dtype=np.float32)[5]
        index = np.arange(N_PATCHES)
        write_slide(tmp_path, row.slide_id, features, np.stack([index % 2, index // 2], 1) * PATCH)
    text = np.random.default_rng(2).normal(size=(DIM, 6)).astype(np.float32)
    patches = generator.normal(size=(300, DIM)).astype(np.float32)
    store.write(tmp_path / PAIRS_FILE, {"features": patches, "anchor_space": patches @ text})
    blurred = CONCEPT + 4 * np.eye(DIM, dtype=np.float32)[0]
    other = np.eye(DIM, dtype=np.float32)[6]
    write_anchors(
        tmp_path / "anchors.h5", np.stack([blurred, other]) @ text, ["tumour nests", "other"]
    )
    return made


def model_of(cohort, bags, **evidence):
    settings = TrainSettings(host=HostSettings(name="abmil"), evidence=EvidenceSettings(**evidence))
    return create_network(cohort, bags, settings, torch.device("cpu")).model


@torch.no_grad()
def concept_cosine(model):
    """How near the first anchor lies to the concept, in the space where cosines are taken."""
    return float(model.bridge.cosines(torch.from_numpy(CONCEPT).unsqueeze(0), model.anchors)[0, 0])


def test_a_prompt_becomes_the_patches_that_answer_to_it(cohort):
    bags = cohort.bags[:5]
    met, read = model_of(cohort, bags, prompt_examples=6), model_of(cohort, bags, prompt_examples=0)
    assert met.bank.prompts == read.bank.prompts == ("tumour nests", "other")
    assert met.bank.provenance == "file anchors.h5, each prompt represented by 6 training patches"
    assert isinstance(met.bridge, CentredBridge)
    assert isinstance(read.bridge, ProximalBridge)
    assert met.is_grounded
    assert concept_cosine(met) > 0.95 > concept_cosine(read)


def test_no_slide_speaks_alone(cohort):
    alone, together = model_of(cohort, cohort.bags[5:]), model_of(cohort, cohort.bags)
    assert alone.bank.provenance.endswith(f" {PROMPT_PATCHES_PER_SLIDE} training patches")
    assert together.bank.provenance.endswith(f" {6 * PROMPT_PATCHES_PER_SLIDE} training patches")
    assert concept_cosine(together) > concept_cosine(alone)


def test_a_named_bridge_and_the_taught_recipe_read_the_prompts_themselves(cohort):
    for settings in ({"bridge": "proximal"}, {"bridge": "frozen"}, JOINT.model_dump()):
        assert model_of(cohort, cohort.bags, **settings).bank.kind == "text"
    assert model_of(cohort, cohort.bags, anchors="prototypes").bank.kind == "prototypes"


def test_a_text_bank_without_pairs_is_kept_under_a_free_bridge(tmp_path):
    cohort = make_cohort(tmp_path)
    write_anchors(tmp_path / "anchors.h5", np.eye(3, 6, dtype=np.float32), ["a", "b", "c"])
    patches = torch.randn(30, 8)
    kept = create_bank(cohort, PAPER, patches, seed=0)
    assert (kept.kind, kept.n_anchors, kept.prompts) == ("text", 3, ("a", "b", "c"))
    assert create_bank(cohort, EvidenceSettings(), patches, seed=0).kind == "prototypes"
