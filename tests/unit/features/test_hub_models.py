"""Encoders beyond timm: loaders on tiny random models of the same class, TRIDENT's names, and
several encoders joined.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from builders.encoders import PLAIN
from builders.slides import tissue_image, write_slide
from gcemil.errors import InputError, UsageError
from gcemil.features import networks
from gcemil.features.encoders import (
    ALIASES,
    ENCODERS,
    IMAGENET,
    EncoderSpec,
    PatchEncoder,
    find_encoder_spec,
    load_encoder,
    prepare_encoder,
    resolve_name,
)
from gcemil.features.extract import EncodeSettings, encode_patches
from gcemil.features.loaders import WeightSource, import_transformers
from gcemil.features.networks import create_ctranspath, load_ctranspath, read_centre
from gcemil.features.patching import patch_slides, patches_path, read_patch_file
from gcemil.slides.grid import PatchSettings
from gcemil.slides.reader import open_slide

TINY_VIT = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "image_size": 28,
    "patch_size": 14, "mlp_ratio": 2,
}  # fmt: skip
TINY_SWIN = {
    "img_size": 32,
    "embed_dim": 16,
    "depths": (1, 1),
    "num_heads": (2, 2),
    "window_size": 4,
}
TRIDENT = (
    "conch_v1", "conch_v15", "uni_v1", "uni_v2", "ctranspath", "phikon", "phikon_v2", "resnet50", "gigapath", "virchow",
    "virchow2", "hoptimus0", "hoptimus1", "musk", "hibou_l", "kaiko-vitb8", "kaiko-vitb16", "kaiko-vits8", "kaiko-vits16",
    "kaiko-vitl14", "lunit-vits8", "midnight12k",
)  # fmt: skip


def pixels_of(n, side):
    return np.random.default_rng(1).integers(0, 256, (n, side, side, 3)).astype(np.uint8)


def images_of(pixels):
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255


@pytest.mark.parametrize("name", TRIDENT)
def test_tridents_names_are_understood(name):
    assert find_encoder_spec(name) is ENCODERS[resolve_name(name)]


def test_an_alias_never_hides_an_encoder_of_the_table():
    assert not set(ALIASES) & set(ENCODERS)
    assert set(ALIASES.values()) <= set(ENCODERS)


@pytest.mark.parametrize(
    ("name", "kind"), [("phikon", "ViT"), ("phikon_v2", "Dinov2"), ("midnight12k", "Dinov2")]
)
@torch.inference_mode()
def test_a_transformer_gives_its_raw_class_token(tmp_path, name, kind):
    transformers = import_transformers()
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**TINY_VIT)
    network = getattr(transformers, f"{kind}Model")(config).eval()
    network.save_pretrained(tmp_path)
    spec = replace(ENCODERS[name], dim=16, input_px=28, colours=PLAIN)
    encoder = prepare_encoder(name, spec, source=WeightSource(tmp_path), device="cpu")
    pixels = pixels_of(2, 28)
    expected = network(pixel_values=images_of(pixels)).last_hidden_state[:, 0]
    np.testing.assert_allclose(encoder(pixels), expected.numpy(), atol=1e-5)
    again = prepare_encoder(name, spec, source=WeightSource(tmp_path), device="cpu")
    # No part of it is drawn at random.
    assert encoder.fingerprint == again.fingerprint


HIBOU_CODE = """
import torch
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPooling


class TinyConfig(PretrainedConfig):
    model_type = "tiny_hibou"


class TinyHibou(PreTrainedModel):
    config_class = TinyConfig

    def __init__(self, config):
        super().__init__(config)
        self.mix = torch.nn.Linear(3, 3, bias=False)
        self.post_init()

    def forward(self, pixel_values):
        pooled = self.mix(pixel_values.mean(dim=(2, 3)))
        return BaseModelOutputWithPooling(last_hidden_state=0 * pooled.unsqueeze(1), pooler_output=pooled)
"""


def test_hibou_runs_its_pages_code_only_when_asked_and_answers_with_its_own_pooling(
    tmp_path, monkeypatch
):
    from safetensors.torch import save_file

    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "modeling_hibou.py").write_text(HIBOU_CODE)
    (tmp_path / "page" / "config.json").write_text(
        '{"model_type": "tiny_hibou", "architectures": ["TinyHibou"], "auto_map": '
        '{"AutoConfig": "modeling_hibou.TinyConfig", "AutoModel": "modeling_hibou.TinyHibou"}}'
    )
    weights = {"mix.weight": torch.diag(torch.tensor([1.0, 2.0, 3.0]))}
    save_file(weights, tmp_path / "page" / "model.safetensors", {"format": "pt"})
    spec = replace(ENCODERS["hibou_l"], dim=3, input_px=28, colours=PLAIN)
    with pytest.raises(UsageError, match="histai/hibou-L runs Python code.*--trust-remote-code"):
        prepare_encoder("hibou_l", spec, source=WeightSource(tmp_path / "page"), device="cpu")
    monkeypatch.setattr(
        "transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules")
    )
    source = WeightSource(tmp_path / "page", trust_remote_code=True)
    encoder = prepare_encoder("hibou_l", spec, source=source, device="cpu")
    found = encoder(np.full((1, 28, 28, 3), 51, np.uint8))
    np.testing.assert_allclose(found, [[0.2, 0.4, 0.6]], atol=1e-6)


def test_gigapath_sees_the_centre_of_its_patch():
    images = torch.arange(3 * 256.0 * 256).reshape(1, 3, 256, 256)
    found = read_centre(nn.Flatten(), images)
    assert torch.equal(found, images[:, :, 16:240, 16:240].flatten(1))
    assert ENCODERS["gigapath"].input_px == 256


@torch.inference_mode()
def test_resnet50_ends_after_its_third_stage():
    encoder = load_encoder("random:resnet50", device="cpu")
    assert encoder.spec.dim == 1024
    images = torch.rand(1, 3, 64, 64)
    network = encoder.network.network
    third = network(images)[0]
    assert third.shape == (1, 1024, 4, 4)
    torch.testing.assert_close(encoder.network(images), third.mean(dim=(2, 3)))


def as_timm_0_5(network):
    """The names of CTransPath's file, and buffers that timm computes itself."""
    theirs = {}
    for key, tensor in network.state_dict().items():
        stage = key.split(".")[1] if ".downsample." in key else None
        theirs[
            key if stage is None else key.replace(f"layers.{stage}", f"layers.{int(stage) - 1}")
        ] = tensor
    theirs["layers.0.blocks.0.attn.relative_position_index"] = torch.zeros(16, 16)
    theirs["layers.1.blocks.0.attn_mask"] = torch.zeros(4, 4)
    theirs["head.weight"] = torch.zeros(2, 32)
    return theirs


@torch.inference_mode()
def test_ctranspath_reads_the_names_of_its_file(tmp_path, monkeypatch):
    torch.manual_seed(0)
    network = create_ctranspath(**TINY_SWIN).eval()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
    torch.save({"model": as_timm_0_5(network)}, tmp_path / "ctranspath.pth")
    monkeypatch.setattr(networks, "create_ctranspath", lambda: create_ctranspath(**TINY_SWIN))
    spec = replace(ENCODERS["ctranspath"], dim=32, input_px=32, colours=PLAIN)
    encoder = prepare_encoder("ctranspath", spec, source=WeightSource(tmp_path), device="cpu")
    pixels = pixels_of(2, 32)
    np.testing.assert_allclose(encoder(pixels), network(images_of(pixels)).numpy(), atol=1e-5)
    theirs = as_timm_0_5(network)
    del theirs["norm.weight"]
    with pytest.raises(
        InputError, match="1 tensors are missing and 0 left over, the first is norm.weight"
    ):
        load_ctranspath(create_ctranspath(**TINY_SWIN), theirs, tmp_path / "ctranspath.pth")


def test_ctranspath_has_its_published_size():
    network = create_ctranspath()
    assert network.num_features == 768
    # Swin-T without classifier, its 4 x 4 patch layer of 4,704 numbers replaced by the stem.
    stem = 3 * 12 * 9 + 2 * 12 + 12 * 24 * 9 + 2 * 24 + 24 * 96 + 96
    assert sum(p.numel() for p in network.parameters()) == 27_519_354 - 4_704 + stem


def colour_encoder(name, scale, px, monkeypatch):
    spec = EncoderSpec(3, px, PLAIN, "none", f"https://{name}", lambda source: Colour(scale, px))
    monkeypatch.setitem(ENCODERS, name, spec)


class Colour(nn.Module):
    def __init__(self, scale, px):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(float(scale)))
        self.px = px

    def forward(self, images):
        assert images.shape[-1] == self.px
        return self.scale * images.mean(dim=(2, 3))


def test_joined_encoders_see_the_same_patches_each_in_its_own_pixels(tmp_path, monkeypatch):
    colour_encoder("small", 1.0, 8, monkeypatch)
    colour_encoder("large", 10.0, 16, monkeypatch)
    joined = load_encoder("small+large", device="cpu")
    assert (joined.name, joined.spec.dim) == ("small+large", 6)
    write_slide(tmp_path / "slides" / "a.tif", tissue_image(seed=0))
    patch_slides([tmp_path / "slides"], tmp_path)
    grid = read_patch_file(patches_path(tmp_path, PatchSettings(), "a"))
    alone = [load_encoder(name, device="cpu") for name in ("small", "large")]
    settings = EncodeSettings(dtype="float32")
    with open_slide(tmp_path / "slides" / "a.tif") as slide:
        found = encode_patches(slide, grid, joined, settings)
        expected = [encode_patches(slide, grid, one, settings) for one in alone]
    np.testing.assert_array_equal(found, np.concatenate(expected, axis=1))
    assert found.shape == (len(grid), 6)
    assert joined.fingerprint not in {one.fingerprint for one in alone}
    assert load_encoder("large+small", device="cpu").fingerprint != joined.fingerprint


def test_what_cannot_be_joined_is_refused(tmp_path):
    with pytest.raises(UsageError, match="usual sides in pixels.*differ .uni 256, conch_v1_5 512"):
        find_encoder_spec("uni_v1+conch_v15")
    with pytest.raises(UsageError, match="'uni[+]uni' names an encoder twice"):
        find_encoder_spec("uni+uni_v1")
    with pytest.raises(UsageError, match="There is no encoder 'unu'"):
        find_encoder_spec("uni+unu")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UsageError, match="--weights names the folder of one encoder"):
        load_encoder("uni+phikon", source=WeightSource(tmp_path))


def test_each_encoder_computes_on_a_gpu_as_its_page_says():
    cuda = torch.device("cuda")
    says = {
        name: PatchEncoder(name, ENCODERS[name], nn.Identity(), cuda, "").precision
        for name in ("uni", "uni2_h", "phikon", "virchow", "ctranspath")
    }
    assert says == {
        "uni": "float16 mixed", "uni2_h": "bfloat16 mixed", "phikon": "float32", "virchow": "float16 mixed",
        "ctranspath": "float32",
    }  # fmt: skip
    assert (
        PatchEncoder("cpu", ENCODERS["uni"], nn.Identity(), torch.device("cpu"), "").precision
        == "float32"
    )
    assert ENCODERS["virchow"].colours == IMAGENET
