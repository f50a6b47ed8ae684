"""Models of images and texts: their loaders on tiny models of the same class and layout."""

import json
import string
import sys
import types
from dataclasses import replace

import numpy as np
import pytest
import torch

from builders.encoders import PLAIN
from gcemil.errors import InputError
from gcemil.features import networks
from gcemil.features.encoders import ENCODERS, prepare_encoder
from gcemil.features.loaders import WeightSource
from gcemil.features.text_encoders import load_text_encoder

SIDE = 32


@pytest.fixture(scope="module")
def clip_folder(tmp_path_factory):
    """A page as PLIP's and QuiltNet's: a CLIP of random weights with its tokenizer."""
    transformers = networks.import_transformers()
    folder = tmp_path_factory.mktemp("clip")
    letters = string.ascii_lowercase
    words = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(
        json.dumps({word: index for index, word in enumerate(words)})
    )
    (folder / "merges.txt").write_text("#version: 0.2\n")
    transformers.CLIPTokenizer.from_pretrained(str(folder)).save_pretrained(str(folder))
    sizes = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    end = {
        "bos_token_id": len(words) - 2,
        "eos_token_id": len(words) - 1,
        "pad_token_id": len(words) - 1,
    }
    config = transformers.CLIPConfig(
        text_config={**sizes, **end, "vocab_size": len(words), "max_position_embeddings": 12},
        vision_config={**sizes, "image_size": SIDE, "patch_size": 16},
        projection_dim=8,
    )
    torch.manual_seed(0)
    transformers.CLIPModel(config).save_pretrained(str(folder))
    return folder


def test_the_text_tower_answers_as_the_model_itself(clip_folder):
    transformers = networks.import_transformers()
    network = transformers.CLIPModel.from_pretrained(str(clip_folder)).eval()
    tokens = transformers.CLIPTokenizer.from_pretrained(str(clip_folder))(
        ["tumour"], return_tensors="pt"
    )
    with torch.no_grad():
        states = network.text_model(**tokens).pooler_output
        expected = torch.nn.functional.normalize(network.text_projection(states), dim=1)
    found = load_text_encoder("plip", source=WeightSource(clip_folder))(["tumour"])
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-5)


def test_the_image_tower_answers_as_the_model_itself(clip_folder):
    spec = replace(ENCODERS["plip"], dim=8, input_px=SIDE)
    encoder = prepare_encoder("plip", spec, source=WeightSource(clip_folder), device="cpu")
    pixels = np.random.default_rng(0).integers(0, 256, (2, SIDE, SIDE, 3)).astype(np.uint8)
    network = networks.import_transformers().CLIPModel.from_pretrained(str(clip_folder)).eval()
    mean, deviation = (torch.tensor(values)[:, None, None] for values in spec.colours)
    images = (torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255 - mean) / deviation
    with torch.no_grad():
        states = network.vision_model(pixel_values=images).pooler_output
        expected = network.visual_projection(states)
    np.testing.assert_allclose(encoder(pixels), expected.numpy(), atol=1e-5)


class TinyMusk(torch.nn.Module):
    """MUSK's calls: (image vectors, text vectors)."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, image=None, text_description=None, padding_mask=None, *, with_head, out_norm):
        if not with_head or out_norm:
            raise AssertionError("the shared space lies behind the head, before scaling")
        if image is not None:
            return self.scale * image.mean(dim=(2, 3)), None
        present = (1 - padding_mask).to(torch.float32)
        totals = (text_description * present).sum(dim=1)
        return None, torch.stack([totals, present.sum(dim=1)], dim=1)


class TinyTokenizer:
    """Tokens are lengths of words between 1 and 2; the padding is 9."""

    def __init__(self, vocabulary):
        self.vocabulary = vocabulary

    def __call__(self, texts, padding, truncation, max_length, return_tensors):
        rows = [[1, *(len(word) for word in text.split()), 2][:max_length] for text in texts]
        ids = torch.tensor([row + [9] * (max_length - len(row)) for row in rows])
        mask = torch.tensor([[1] * len(row) + [0] * (max_length - len(row)) for row in rows])
        return {"input_ids": ids, "attention_mask": mask}


@pytest.fixture
def musk_package(tmp_path, monkeypatch):
    """Stands in for the authors' package."""
    package, utils = types.ModuleType("musk"), types.ModuleType("musk.utils")
    package.__file__ = str(tmp_path / "musk" / "__init__.py")
    (tmp_path / "musk" / "models").mkdir(parents=True)
    (tmp_path / "musk" / "models" / "tokenizer.spm").write_text("")
    loaded = []

    def load(weights, network, keys, prefix):
        loaded.append(weights)
        network.scale.data.fill_(2.0)

    utils.load_model_and_may_interpolate = load
    monkeypatch.setitem(sys.modules, "musk", package)
    monkeypatch.setitem(sys.modules, "musk.utils", utils)
    monkeypatch.setitem(sys.modules, "musk.modeling", types.ModuleType("musk.modeling"))
    networks.repair_torchvision()
    import timm

    monkeypatch.setattr(timm, "create_model", lambda name: TinyMusk())
    monkeypatch.setattr(networks.import_transformers(), "XLMRobertaTokenizer", TinyTokenizer)
    return loaded


def test_musk_embeds_texts_without_their_padding(musk_package):
    rows = load_text_encoder("musk")(["three four", "three"])
    assert musk_package == ["hf_hub:xiangjx/musk"]
    # Tokens 1, 5, 4, 2 sum to 12 over four; 1, 5, 2 to 8 over three.
    expected = np.array([[12, 4], [8, 3]]) / np.linalg.norm(
        [[12, 4], [8, 3]], axis=1, keepdims=True
    )
    np.testing.assert_allclose(rows, expected, atol=1e-6)


def test_musk_embeds_images_with_the_weights_it_was_given(musk_package, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    spec = replace(ENCODERS["musk"], dim=3, input_px=4, colours=PLAIN)
    encoder = prepare_encoder("musk", spec, source=WeightSource(tmp_path), device="cpu")
    assert musk_package == [str(tmp_path / "model.safetensors")]
    np.testing.assert_allclose(
        encoder(np.full((1, 4, 4, 3), 255, np.uint8)), [[2, 2, 2]], atol=1e-6
    )


def test_conch_sees_images_through_its_own_package(monkeypatch):
    class Network(torch.nn.Module):
        def encode_image(self, images, *, proj_contrast, normalize):
            return images.mean(dim=(2, 3)) * (2 if proj_contrast and not normalize else 0)

    package = types.ModuleType("conch.open_clip_custom")
    package.create_model_from_pretrained = lambda name, weights: (Network(), None)
    monkeypatch.setitem(sys.modules, "conch", types.ModuleType("conch"))
    monkeypatch.setitem(sys.modules, "conch.open_clip_custom", package)
    spec = replace(ENCODERS["conch"], dim=3, input_px=4, colours=PLAIN)
    encoder = prepare_encoder("conch", spec, device="cpu")
    np.testing.assert_allclose(
        encoder(np.full((1, 4, 4, 3), 255, np.uint8)), [[2, 2, 2]], atol=1e-6
    )


@pytest.mark.parametrize(("name", "package"), [("conch", "CONCH"), ("musk", "MUSK")])
def test_a_missing_package_says_how_to_get_it_and_how_to_do_without(name, package):
    with pytest.raises(
        InputError, match=f"pip install git.*{package}.git; without it use --encoder minilm"
    ):
        load_text_encoder(name)
    with pytest.raises(InputError, match="efficientnet_lite0 for patches, or name examples"):
        prepare_encoder(name, ENCODERS[name], device="cpu")
