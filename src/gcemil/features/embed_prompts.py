"""Prompts become frozen anchors: a_m = unit(mean over templates t of unit(encoder(t(prompt_m)))).

One wording is a noisy name for a concept; the mean over templates keeps what they share.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float32

from gcemil import __version__
from gcemil.bags import arrays
from gcemil.errors import InputError, UsageError
from gcemil.families import AnchorFamily
from gcemil.features.text_encoders import TextEncoder
from gcemil.files import read_text

TEMPLATES = (
    "{}.",
    "an H&E stained section with {}.",
    "a histology image that shows {}.",
    "a microscopic field with {}.",
    "{} is present in this tissue.",
)


@dataclass(frozen=True, eq=False)
class EmbeddedPrompts:
    """Anchors and all that made them."""

    embeddings: Float32[np.ndarray, "m a"]
    family: AnchorFamily
    templates: tuple[str, ...]
    encoder: str
    encoder_fingerprint: str
    encoder_sees_images: bool

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
            f"The text encoder '{encoder.name}' gives no direction for a prompt of '{family.family}'. Check its weights."
        )
    return EmbeddedPrompts(
        (mean / lengths).astype(np.float32),
        family,
        tuple(templates),
        encoder.name,
        encoder.fingerprint,
        encoder.sees_images,
    )


def write_anchor_file(path: Path, embedded: EmbeddedPrompts) -> Path:
    """anchors.h5 with its provenance as attributes."""
    arrays.write_anchors(
        path,
        embedded.embeddings,
        embedded.family.wordings,
        {
            "family": embedded.family.family,
            "source": embedded.family.source,
            "concepts": json.dumps(embedded.family.concepts),
            "templates": json.dumps(embedded.templates),
            "text_encoder": embedded.encoder,
            "text_encoder_fingerprint": embedded.encoder_fingerprint,
            "text_encoder_sees_images": embedded.encoder_sees_images,
            "hash": embedded.hash,
            "gcemil": __version__,
        },
    )
    return path


def read_templates(path: Path) -> tuple[str, ...]:
    """One template per line, each with {} where the prompt goes."""
    lines = [line.strip() for line in read_text(path).splitlines()]
    found = tuple(line for line in lines if line)
    _check_templates(found)
    return found


def _check_templates(templates: Sequence[str]) -> None:
    if not templates:
        raise UsageError("Prompts need at least one template, such as '{}.'.")
    for template in templates:
        if template.count("{}") != 1 or template.replace("{}", "").count("{") or template.count("}") != 1:
            raise UsageError(f"A template has {{}} once, where the prompt goes, got '{template}'.")
