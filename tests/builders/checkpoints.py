"""Tiny checkpoints with random weights, laid out as the pages of gated models are."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from gcemil.features.loaders import _resolve_layers, import_timm

TINY = {"embed_dim": 16, "depth": 1, "num_heads": 2, "img_size": 28, "patch_size": 14}

LAYOUTS = {
    "vit_s": ("vit_small_patch16_224", {}),
    "vit_s_lunit": ("vit_small_patch16_224", {}),
    "uni": ("vit_large_patch16_224", {"init_values": 1e-5, "dynamic_img_size": True}),
    "uni2_h": (
        "vit_giant_patch14_224",
        {
            "init_values": 1e-5, "no_embed_class": True, "mlp_layer": "SwiGLUPacked", "act_layer": "SiLU", "reg_tokens": 8,
            "mlp_ratio": 4.0, "dynamic_img_size": True,
        },
    ),
    "virchow2": (
        "vit_huge_patch14_224",
        {"init_values": 1e-5, "reg_tokens": 4, "mlp_layer": "SwiGLUPacked", "act_layer": "SiLU", "mlp_ratio": 4.0, "global_pool": ""},
    ),
    "virchow": (
        "vit_huge_patch14_224",
        {"init_values": 1e-5, "mlp_layer": "SwiGLUPacked", "act_layer": "SiLU", "mlp_ratio": 4.0, "global_pool": ""},
    ),
    "gigapath": ("vit_giant_patch14_dinov2", {"init_values": 1e-5, "mlp_ratio": 4.0, "global_pool": "token"}),
    "lunit_vits8": ("vit_small_patch8_224", {}),
    "kaiko_vits16": ("vit_small_patch16_224", {"dynamic_img_size": True, "global_pool": "token"}),
    "kaiko_vitl14": ("vit_large_patch14_reg4_dinov2", {"init_values": 1e-5, "dynamic_img_size": True, "global_pool": "token"}),
    "h_optimus_0": ("vit_giant_patch14_reg4_dinov2", {"init_values": 1e-5, "reg_tokens": 4, "mlp_ratio": 4.0, "global_pool": "token"}),
}  # fmt: skip


def write_timm_folder(folder: Path, name: str) -> torch.nn.Module:
    """config.json and model.safetensors of a tiny model in the layout of this encoder's page, and the model."""
    timm = import_timm()
    architecture, options = LAYOUTS[name]
    arguments = {**TINY, **options}
    torch.manual_seed(0)
    network = timm.create_model(architecture, num_classes=0, **_resolve_layers(arguments)).eval()
    folder.mkdir(parents=True, exist_ok=True)
    save_file(network.state_dict(), folder / "model.safetensors")
    card = {
        "architecture": architecture,
        "num_classes": 0,
        "num_features": 16,
        "model_args": arguments,
    }
    card["pretrained_cfg"] = {"num_classes": 0, "input_size": [3, 28, 28], "fixed_input_size": True}
    (folder / "config.json").write_text(json.dumps(card))
    return network


TITAN_CODE = """
import torch
from transformers import PretrainedConfig, PreTrainedModel


class TinyConfig(PretrainedConfig):
    model_type = "tiny_titan"


class Words(torch.nn.Module):
    @staticmethod
    def tokenizer(texts):
        return torch.tensor([[len(text), text.count("a"), 1] for text in texts])


class Colours(torch.nn.Module):
    def forward(self, images):
        return images.mean(dim=(2, 3))


class TinyTitan(PreTrainedModel):
    config_class = TinyConfig

    def __init__(self, config):
        super().__init__(config)
        self.text_encoder = Words()
        self.mix = torch.nn.Linear(3, 3, bias=False)
        self.post_init()

    def return_conch(self):
        return Colours(), None

    def encode_text(self, tokens, normalize=True):
        return self.mix(tokens.float())
"""


def write_titan_folder(folder: Path) -> Path:
    """A page that brings its own code, with TITAN's doors: return_conch, encode_text, text_encoder.tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "modeling_tiny.py").write_text(TITAN_CODE)
    auto_map = {"AutoConfig": "modeling_tiny.TinyConfig", "AutoModel": "modeling_tiny.TinyTitan"}
    card = {"model_type": "tiny_titan", "auto_map": auto_map, "architectures": ["TinyTitan"]}
    (folder / "config.json").write_text(json.dumps(card))
    save_file(
        {"mix.weight": torch.diag(torch.tensor([1.0, 2.0, 2.0]))},
        folder / "model.safetensors",
        {"format": "pt"},
    )
    return folder
