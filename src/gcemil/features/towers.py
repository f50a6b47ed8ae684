"""Models trained on tissue and text together: both of their towers, so that prompts and patches share a space.

  plip, quiltnet   CLIP as transformers stores it: config.json, weights, tokenizer; anyone may load them
  conch, musk      gated, through the package of their authors

The image tower makes the features (or the pairs), the text tower the anchors; both end in the shared space, before any scaling to unit
length.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gcemil.errors import InputError
from gcemil.features.loaders import Adapted, Loader, WeightSource, import_transformers, repair_torchvision

Embed = Callable[[list[str]], Float[Tensor, "m a"]]
TextLoader = Callable[[WeightSource], tuple[nn.Module, Embed]]

CONCH = "hf_hub:MahmoodLab/conch"
MUSK = "hf_hub:xiangjx/musk"
MUSK_TOKENS = 100
"""Tokens of a text, first and last included, as MUSK was trained."""


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
            tokens = tokenizer(texts, padding=True, truncation=True, max_length=longest, return_tensors="pt")
            ids, mask = tokens["input_ids"], tokens["attention_mask"]
            return _read_projection(network.get_text_features(input_ids=ids, attention_mask=mask))

        return network, embed

    return load


def _from_page(kind: str, page: str, source: WeightSource) -> Any:
    """A model or tokenizer of transformers, from a local folder or from its page."""
    return getattr(import_transformers(), kind).from_pretrained(
        str(source.folder or page), local_files_only=source.folder is not None
    )


def _read_projection(answer: Any) -> Tensor:
    """The vectors in the shared space; from its fifth version on transformers hands them over inside an output."""
    found: Tensor = answer if isinstance(answer, Tensor) else answer.pooler_output
    return found


def conch_images(*, projected: bool = True) -> Loader:
    """The image tower of CONCH; TRIDENT stores its features in front of the projection into the shared space."""
    return lambda source: Adapted(
        load_conch(source)[0],
        lambda own, images: own.encode_image(images, proj_contrast=projected, normalize=False),
    )


def conch_texts(source: WeightSource) -> tuple[nn.Module, Embed]:
    """The text tower of CONCH."""
    network, package = load_conch(source)
    tokenizer = package.get_tokenizer()
    return network, lambda texts: network.encode_text(package.tokenize(texts=texts, tokenizer=tokenizer))


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
            texts, padding="max_length", truncation=True, max_length=MUSK_TOKENS, return_tensors="pt"
        )
        # MUSK marks what is padding, transformers what is text.
        padding = 1 - tokens["attention_mask"]
        found: Tensor = network(
            text_description=tokens["input_ids"], padding_mask=padding, with_head=True, out_norm=False
        )[1]
        return found

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
    package = importlib.import_module("musk")
    beside = [] if source.folder is None else [source.folder / "tokenizer.spm"]
    places = [*beside, Path(str(package.__file__)).parent / "models" / "tokenizer.spm"]
    for path in places:
        if path.is_file():
            return path
    raise InputError(
        f"MUSK's tokenizer is missing: {places[-1]} does not exist. Install the authors' package again."
    )


def _authors_package(module: str, name: str, where: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InputError(
            f"{name} needs its authors' package. Read its licence, then: pip install {where}; without it use --encoder minilm "
            "for prompts and --encoder efficientnet_lite0 for patches, or name examples with 'gcemil anchors from-examples'."
        ) from error
