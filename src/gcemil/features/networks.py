"""Networks of patch encoders that timm alone does not build, and the text towers that share a space
with them.

  transformers        a vision transformer from its page: the class token, raw or as its page pools
                      it
  cut or pooled       ResNet-50 of three stages, Virchow, GigaPath
  CTransPath          below
  plip, quiltnet      CLIP as transformers stores it: config.json, weights, tokenizer; anyone may
                      load them
  conch, musk         gated, through the package of their authors

An image tower makes the features (or the pairs), its text tower the anchors; both end in the shared
space, before any scaling to unit length.

CTransPath (Wang et al., 2022) is a Swin transformer, tiny, whose patches come from a convolutional
stem: two 3 x 3 convolutions of stride 2 with batch norm and ReLU (12 and 24 channels), then 1 x 1
to 96. Its file was written by timm 0.5, which kept the downsampling of a stage at the end of the
stage before.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
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
    from_timm,
    import_timm,
    import_transformers,
    repair_torchvision,
    require_consent,
    untrained,
)

CTRANSPATH_FILE = "CHIEF_CTransPath.pth"
Embed = Callable[[list[str]], Float[Tensor, "m a"]]
TextLoader = Callable[[WeightSource], tuple[nn.Module, Embed]]

CONCH = "hf_hub:MahmoodLab/conch"
MUSK = "hf_hub:xiangjx/musk"
MUSK_TOKENS = 100
"""Tokens of a text, first and last included, as MUSK was trained."""


def from_transformers(
    page: str,
    *,
    pooled: bool = False,
    runs_code: bool = False,
    options: Mapping[str, Any] | None = None,
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

        def read(own: Any, images: Images) -> Tensor:
            """The class token, raw or as its page pools it."""
            output = own(pixel_values=images)
            return output.pooler_output if pooled else output.last_hidden_state[:, 0]

        return Adapted(network, read)

    return load


def _join_class_and_patch_mean(prefix_tokens: int) -> Callable[[Any, Images], Tensor]:
    """The class token beside the mean of the patch tokens; register tokens are left out."""

    def read(network: Any, images: Images) -> Tensor:
        tokens = network(images)
        return torch.cat([tokens[:, 0], tokens[:, prefix_tokens:].mean(dim=1)], dim=1)

    return read


def read_centre(network: Any, images: Images, side: int = 224) -> Tensor:
    """The centre of the pixels, for a network that was trained on crops of larger patches."""
    start = (images.shape[-1] - side) // 2
    centre: Tensor = network(images[..., start : start + side, start : start + side].contiguous())
    return centre


def _pool_map(network: Any, images: Images) -> Tensor:
    """The mean of the only map of a convolutional network."""
    (last,) = network(images)
    return last.mean(dim=(2, 3))


_TOKENS: dict[str, Any] = {"mlp_layer": "SwiGLUPacked", "act_layer": "SiLU", "global_pool": ""}
# The pages' own pooling: one class token, for Virchow2 four registers, then the patches.
virchow = adapted(from_timm("hf-hub:paige-ai/Virchow", **_TOKENS), _join_class_and_patch_mean(1))
virchow2 = adapted(from_timm("hf-hub:paige-ai/Virchow2", **_TOKENS), _join_class_and_patch_mean(5))
# The page resizes a patch to 256 and takes the 224 pixels in its middle.
gigapath = adapted(from_timm("hf_hub:prov-gigapath/prov-gigapath"), read_centre)
# ResNet-50 of ImageNet up to its third stage, as CLAM and TRIDENT cut it.
_THREE_STAGES: dict[str, Any] = {"features_only": True, "out_indices": (3,)}
resnet50_truncated = adapted(
    from_timm("resnet50.tv_in1k", num_classes=None, **_THREE_STAGES), _pool_map
)
untrained_resnet50 = adapted(untrained("resnet50", **_THREE_STAGES), _pool_map)


# CTransPath


class ConvolutionalStem(nn.Module):
    """Patches of 4 x 4 pixels as tokens (b, h, w, c), by convolutions instead of one cut."""

    def __init__(self, embed_dim: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in ((3, embed_dim // 8), (embed_dim // 8, embed_dim // 4)):
            layers += [
                nn.Conv2d(before, after, 3, 2, 1, bias=False),
                nn.BatchNorm2d(after),
                nn.ReLU(),
            ]
        self.proj = nn.Sequential(*layers, nn.Conv2d(embed_dim // 4, embed_dim, 1))
        self.norm = nn.LayerNorm(embed_dim)

    def forward(self, images: Images) -> Float[Tensor, "b h w c"]:
        return self.norm(self.proj(images).permute(0, 2, 3, 1))


def create_ctranspath(**sizes: Any) -> nn.Module:
    """CTransPath with random weights."""
    name = "swin_tiny_patch4_window7_224"
    network = import_timm().create_model(name, pretrained=False, num_classes=0, **sizes)
    network.patch_embed = ConvolutionalStem(network.patch_embed.proj.out_channels)
    return network


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
        where = {"subfolder": "fm_v1/ctranspath", "repo_type": "dataset"}
        return Path(hub.hf_hub_download("MahmoodLab/hest-bench", CTRANSPATH_FILE, **where))
    for name in (CTRANSPATH_FILE, "ctranspath.pth"):
        if (source.folder / name).is_file():
            return source.folder / name
    raise InputError(
        f"{source.folder} holds neither {CTRANSPATH_FILE} nor ctranspath.pth. Copy it there."
    )


def load_ctranspath(network: nn.Module, theirs: Mapping[str, Tensor], path: Path) -> None:
    """Load the tensors of timm 0.5 under today's names, without computed ones and classifier."""
    ours = {}
    for key, tensor in theirs.items():
        if key.endswith(("attn_mask", "relative_position_index")) or key.startswith("head."):
            continue
        stage = re.match(r"layers\.(\d)\.downsample\.", key)
        name = key if stage is None else f"layers.{int(stage[1]) + 1}.{key[len('layers.0.') :]}"
        ours[name] = tensor
    result = network.load_state_dict(ours, strict=False)
    if result.missing_keys or result.unexpected_keys:
        wrong = [*result.missing_keys, *result.unexpected_keys]
        raise InputError(
            f"{path} is not CTransPath: {len(result.missing_keys)} tensors are missing and "
            f"{len(result.unexpected_keys)} left over, the first is {wrong[0]}. "
            "Give the published file."
        )


# Models of images and texts


def clip_images(page: str) -> Loader:
    """The image tower of a CLIP in transformers' layout."""

    def load(source: WeightSource) -> nn.Module:
        return Adapted(
            _from_page("CLIPModel", page, source),
            lambda own, images: _read_projection(own.get_image_features(pixel_values=images)),
        )

    return load


def clip_texts(page: str) -> TextLoader:
    """The text tower of a CLIP in transformers' layout."""

    def load(source: WeightSource) -> tuple[nn.Module, Embed]:
        network = _from_page("CLIPModel", page, source)
        tokenizer = _from_page("AutoTokenizer", page, source)
        longest = network.config.text_config.max_position_embeddings

        def embed(texts: list[str]) -> Float[Tensor, "m a"]:
            tokens = tokenizer(
                texts, padding=True, truncation=True, max_length=longest, return_tensors="pt"
            )
            ids, mask = tokens["input_ids"], tokens["attention_mask"]
            return _read_projection(network.get_text_features(input_ids=ids, attention_mask=mask))

        return network, embed

    return load


def _from_page(kind: str, page: str, source: WeightSource) -> Any:
    """A model or tokenizer of transformers, from a local folder or from its page."""
    return getattr(import_transformers(), kind).from_pretrained(
        str(source.folder or page), local_files_only=source.folder is not None
    )


def _read_projection(output: Any) -> Tensor:
    """The vectors in the shared space; transformers 5 and later return them inside an output."""
    return output if isinstance(output, Tensor) else output.pooler_output


def conch_images(*, projected: bool = True) -> Loader:
    """The image tower of CONCH; TRIDENT's features come before the projection."""
    return lambda source: Adapted(
        load_conch(source)[0],
        lambda own, images: own.encode_image(images, proj_contrast=projected, normalize=False),
    )


def conch_texts(source: WeightSource) -> tuple[nn.Module, Embed]:
    """The text tower of CONCH."""
    network, package = load_conch(source)
    tokenizer = package.get_tokenizer()
    return network, lambda texts: network.encode_text(
        package.tokenize(texts=texts, tokenizer=tokenizer)
    )


def load_conch(source: WeightSource) -> tuple[Any, Any]:
    """CONCH and its authors' package."""
    package = _authors_package(
        "conch.open_clip_custom", "CONCH", "git+https://github.com/mahmoodlab/CONCH.git"
    )
    weights = CONCH if source.folder is None else str(source.folder / "pytorch_model.bin")
    network, _ = package.create_model_from_pretrained("conch_ViT-B-16", weights)
    return network, package


def musk_images(source: WeightSource) -> nn.Module:
    """The image tower of MUSK, with its head into the shared space."""
    return Adapted(
        load_musk(source), lambda own, images: own(image=images, with_head=True, out_norm=False)[0]
    )


def musk_texts(source: WeightSource) -> tuple[nn.Module, Embed]:
    """The text tower of MUSK; its tokenizer comes with the package or lies beside the weights."""
    network = load_musk(source)
    tokenizer = import_transformers().XLMRobertaTokenizer(str(_musk_vocabulary(source)))

    def embed(texts: list[str]) -> Float[Tensor, "m a"]:
        tokens = tokenizer(
            texts,
            padding="max_length",
            truncation=True,
            max_length=MUSK_TOKENS,
            return_tensors="pt",
        )
        # MUSK marks what is padding, transformers what is text.
        return network(
            text_description=tokens["input_ids"],
            padding_mask=1 - tokens["attention_mask"],
            with_head=True,
            out_norm=False,
        )[1]

    return network, embed


def load_musk(source: WeightSource) -> Any:
    """MUSK through timm, where its authors' package registers it."""
    repair_torchvision()
    _authors_package("musk", "MUSK", "git+https://github.com/lilab-stanford/MUSK.git")
    utils = importlib.import_module("musk.utils")
    importlib.import_module("musk.modeling")
    network = importlib.import_module("timm").create_model("musk_large_patch16_384")
    weights = MUSK if source.folder is None else str(source.folder / "model.safetensors")
    utils.load_model_and_may_interpolate(weights, network, "model|module", "")
    return network.to(torch.float32)


def _musk_vocabulary(source: WeightSource) -> Path:
    if source.folder is not None and (source.folder / "tokenizer.spm").is_file():
        return source.folder / "tokenizer.spm"
    package = importlib.import_module("musk")
    path = Path(str(package.__file__)).parent / "models" / "tokenizer.spm"
    if not path.is_file():
        raise InputError(
            f"MUSK's tokenizer is missing: {path} does not exist. Install the authors' package "
            "again."
        )
    return path


def _authors_package(module: str, name: str, where: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InputError(
            f"{name} needs its authors' package. Read its licence, then: pip install {where}; "
            "without it use --encoder minilm for prompts and --encoder efficientnet_lite0 for "
            "patches, or name examples with 'gcemil anchors from-examples'."
        ) from error
