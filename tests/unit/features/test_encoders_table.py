"""The table of patch encoders, and their loaders on tiny local checkpoints of the same layout."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from builders.checkpoints import LAYOUTS, write_timm_folder, write_titan_folder
from builders.encoders import PLAIN, colour_encoder, colour_spec
from gcemil.errors import InputError, UsageError
from gcemil.features import loaders
from gcemil.features.encoders import (
    ENCODERS,
    IMAGENET,
    find_encoder_spec,
    load_encoder,
    prepare_encoder,
)
from gcemil.features.loaders import WeightSource, import_timm


@pytest.fixture(scope="module")
def offline_encoder():
    return load_encoder("efficientnet_lite0", device="cpu")


def test_pixels_are_scaled_and_normalised_per_channel():
    encoder = colour_encoder(spec=colour_spec(8, IMAGENET))
    pixels = np.zeros((2, 8, 8, 3), np.uint8)
    pixels[1] = 255
    # (0 - mean) / std and (1 - mean) / std of ImageNet's channels.
    expected = [[-2.117904, -2.035714, -1.804444], [2.248908, 2.428571, 2.64]]
    np.testing.assert_allclose(encoder(pixels), expected, atol=1e-5)


def test_the_offline_encoder_has_weights_that_see(offline_encoder):
    pixels = np.random.default_rng(0).integers(0, 256, (2, 224, 224, 3)).astype(np.uint8)
    pixels[1] = pixels[1].mean(axis=(0, 1)).astype(np.uint8)
    features = offline_encoder(pixels)
    assert features.shape == (2, 1280)
    # ReLU6 closes the network, and noise is not the same as a flat colour.
    assert features.min() >= 0
    assert features.max() <= 6
    assert np.abs(features[0] - features[1]).max() > 0.5
    # A batch is no more than its patches.
    np.testing.assert_allclose(offline_encoder(pixels[1:]), features[1:], atol=1e-4)


def test_an_untrained_encoder_is_its_architecture_with_the_same_numbers_every_time(
    monkeypatch, tmp_path
):
    spec = find_encoder_spec("random:vit_s")
    assert (spec.dim, spec.input_px, spec.licence) == (384, 224, "none: untrained")
    timm = import_timm()
    tiny = {"embed_dim": 16, "depth": 1, "num_heads": 2, "img_size": 28, "patch_size": 14}
    build = timm.create_model
    monkeypatch.setattr(
        timm, "create_model", lambda name, **options: build(name, **{**tiny, **options})
    )
    state = torch.get_rng_state()
    first, second = (
        prepare_encoder("random:vit_s", replace(spec, dim=16, input_px=28), device="cpu")
        for _ in range(2)
    )
    assert first.fingerprint == second.fingerprint
    assert torch.equal(torch.get_rng_state(), state)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UsageError, match="takes no weights"):
        spec.load(WeightSource(tmp_path))


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_local_copy_of_the_page_gives_the_features_of_its_own_model(tmp_path, monkeypatch, name):
    network = write_timm_folder(tmp_path, name)
    width = 32 if name.startswith("virchow") else 16
    spec = replace(ENCODERS[name], dim=width, input_px=28, colours=PLAIN)
    if name == "gigapath":
        # Its own crop has 224 pixels; the tiny network takes 28.
        monkeypatch.setattr(loaders.Adapted, "forward", lambda self, images: self.network(images))
    encoder = prepare_encoder(name, spec, source=WeightSource(tmp_path), device="cpu")
    pixels = np.random.default_rng(1).integers(0, 256, (2, 28, 28, 3)).astype(np.uint8)
    with torch.inference_mode():
        answers = network(torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255)
    if name == "virchow2":
        # 1 class token, 4 registers, 2 x 2 patches.
        assert answers.shape == (2, 9, 16)
        answers = torch.cat([answers[:, 0], answers[:, 5:].mean(dim=1)], dim=1)
    if name == "virchow":
        assert answers.shape == (2, 5, 16)
        answers = torch.cat([answers[:, 0], answers[:, 1:].mean(dim=1)], dim=1)
    np.testing.assert_allclose(encoder(pixels), answers.numpy(), atol=1e-5)


def test_missing_weights_name_licence_page_and_the_way_out(tmp_path, monkeypatch):
    import_timm()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(InputError, match="'uni' cannot be loaded") as caught:
        load_encoder("uni")
    for part in (
        "CC-BY-NC-ND",
        "https://huggingface.co/MahmoodLab/UNI",
        "--encoder efficientnet_lite0",
        "--weights",
    ):
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_code_from_a_page_runs_only_when_asked(tmp_path, monkeypatch):
    folder = write_titan_folder(tmp_path / "titan")
    spec = replace(ENCODERS["conch_v1_5"], dim=3, input_px=28, colours=PLAIN)
    with pytest.raises(UsageError, match="runs Python code from its page.*--trust-remote-code"):
        prepare_encoder("conch_v1_5", spec, source=WeightSource(folder), device="cpu")
    monkeypatch.setattr(
        "transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules")
    )
    source = WeightSource(folder, trust_remote_code=True)
    encoder = prepare_encoder("conch_v1_5", spec, source=source, device="cpu")
    np.testing.assert_allclose(
        encoder(np.full((1, 28, 28, 3), 51, np.uint8)), [[0.2, 0.2, 0.2]], atol=1e-6
    )
