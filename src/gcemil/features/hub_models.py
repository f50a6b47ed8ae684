"""Patch encoders whose networks timm alone does not build: models of transformers, cut networks, and CTransPath.

Every loader returns a network from normalised pixels (b, 3, p, p) to features (b, d), as in loaders.py.

CTransPath (Wang et al., 2022) is a Swin transformer, tiny, whose patches come from a convolutional stem: two 3 x 3
convolutions of stride 2 with batch norm and ReLU (12 and 24 channels), then 1 x 1 to 96. Its file was written by timm
0.5, which kept the downsampling of a stage at the end of the stage before.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gcemil.errors import InputError
from gcemil.features.loaders import (
    Adapted,
    Images,
    Loader,
    WeightSource,
    adapted,
    class_and_patch_mean,
    from_timm,
    import_timm,
    import_transformers,
    pool_map,
    read_centre,
    require_consent,
    untrained,
)

CTRANSPATH_FILE = "CHIEF_CTransPath.pth"
CTRANSPATH_PAGE = "MahmoodLab/hest-bench"


def from_transformers(
    page: str, *, pooled: bool = False, runs_code: bool = False, options: Mapping[str, Any] | None = None
) -> Loader:
    """A vision transformer from its page, or from a local copy of it."""

    def load(source: WeightSource) -> nn.Module:
        if runs_code:
            require_consent(page, source)
        network = import_transformers().AutoModel.from_pretrained(
            str(source.folder or page),
            local_files_only=source.folder is not None,
            trust_remote_code=runs_code and source.trust_remote_code,
            **(options or {}),
        )
        # The class token, raw or as its page pools it.
        if pooled:
            return Adapted(network, lambda own, images: own(pixel_values=images).pooler_output)
        return Adapted(network, lambda own, images: own(pixel_values=images).last_hidden_state[:, 0])

    return load


_TOKENS: dict[str, Any] = {"mlp_layer": "SwiGLUPacked", "act_layer": "SiLU", "global_pool": ""}
# The pages' own pooling: one class token, for Virchow2 four registers, then the patches.
virchow = adapted(from_timm("hf-hub:paige-ai/Virchow", **_TOKENS), class_and_patch_mean(1))
virchow2 = adapted(from_timm("hf-hub:paige-ai/Virchow2", **_TOKENS), class_and_patch_mean(5))
# The page resizes a patch to 256 and takes the 224 pixels in its middle.
gigapath = adapted(from_timm("hf_hub:prov-gigapath/prov-gigapath"), read_centre(224))
# ResNet-50 of ImageNet up to its third stage, as CLAM and TRIDENT cut it.
_THREE_STAGES: dict[str, Any] = {"features_only": True, "out_indices": (3,)}
resnet50_truncated = adapted(from_timm("resnet50.tv_in1k", num_classes=None, **_THREE_STAGES), pool_map)
untrained_resnet50 = adapted(untrained("resnet50", **_THREE_STAGES), pool_map)


# CTransPath


class ConvolutionalStem(nn.Module):
    """Patches of 4 x 4 pixels as tokens (b, h, w, c), by convolutions instead of one cut."""

    def __init__(self, embed_dim: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in ((3, embed_dim // 8), (embed_dim // 8, embed_dim // 4)):
            layers += [nn.Conv2d(before, after, 3, 2, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
        self.proj = nn.Sequential(*layers, nn.Conv2d(embed_dim // 4, embed_dim, 1))
        self.norm = nn.LayerNorm(embed_dim)

    def forward(self, images: Images) -> Float[Tensor, "b h w c"]:
        found: Tensor = self.norm(self.proj(images).permute(0, 2, 3, 1))
        return found


def create_ctranspath(**sizes: Any) -> nn.Module:
    """CTransPath with random weights."""
    network: Any = import_timm().create_model(
        "swin_tiny_patch4_window7_224", pretrained=False, num_classes=0, **sizes
    )
    network.patch_embed = ConvolutionalStem(network.patch_embed.proj.out_channels)
    swin: nn.Module = network
    return swin


def ctranspath(source: WeightSource) -> nn.Module:
    """CTransPath with its published weights."""
    path = _ctranspath_file(source)
    content = torch.load(path, map_location="cpu", weights_only=True)
    network = create_ctranspath()
    load_ctranspath(network, content.get("model", content), path)
    return network


def _ctranspath_file(source: WeightSource) -> Path:
    if source.folder is None:
        hub = importlib.import_module("huggingface_hub")
        return Path(
            hub.hf_hub_download(
                CTRANSPATH_PAGE, CTRANSPATH_FILE, subfolder="fm_v1/ctranspath", repo_type="dataset"
            )
        )
    for name in (CTRANSPATH_FILE, "ctranspath.pth"):
        if (source.folder / name).is_file():
            return source.folder / name
    raise InputError(f"{source.folder} holds neither {CTRANSPATH_FILE} nor ctranspath.pth. Copy it there.")


def load_ctranspath(network: nn.Module, theirs: Mapping[str, Tensor], path: Path) -> None:
    """The tensors of timm 0.5 under today's names; what timm computes itself is left out, as is the classifier."""
    ours = {}
    for key, tensor in theirs.items():
        if key.endswith(("attn_mask", "relative_position_index")) or key.startswith("head."):
            continue
        stage = re.match(r"layers\.(\d)\.downsample\.", key)
        name = key if stage is None else f"layers.{int(stage[1]) + 1}.{key[len('layers.0.') :]}"
        ours[name] = tensor
    found = network.load_state_dict(ours, strict=False)
    if found.missing_keys or found.unexpected_keys:
        wrong = [*found.missing_keys, *found.unexpected_keys]
        raise InputError(
            f"{path} is not CTransPath: {len(found.missing_keys)} tensors are missing and {len(found.unexpected_keys)} "
            f"left over, the first is {wrong[0]}. Give the published file."
        )
