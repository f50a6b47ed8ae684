"""Labelled images of patches as a pool: one folder per class, every image encoded once.

  PATCHES/<class>/**/*.png    also .jpg, .jpeg, .tif, .tiff; folders below a class have no meaning

NCT-CRC-HE (a folder per tissue), PatchCamelyon exported as pictures (0 and 1) and BreaKHis (benign
and malignant above its many folders) are read as they are. Patients come from the names of the
files: a pattern with one group, matched against the path below PATCHES, such as `_(\\d+-\\d+)-` for
BreaKHis.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from gcemil.errors import InputError, UsageError
from gcemil.features.encoders import PatchEncoder
from gcemil.files import read_picture
from gcemil.simulation.patch_pool import Names, PatchPool

ENDINGS = (".png", ".jpg", ".jpeg", ".tif", ".tiff")
BATCH = 32


def find_images(folder: Path) -> dict[Path, str]:
    """Every image below the folder with its class, in the order of their paths."""
    classes = {
        image: top.name
        for top in sorted(folder.iterdir())
        if top.is_dir() and not top.name.startswith(".")
        for image in sorted(top.rglob("*"))
        if image.suffix.lower() in ENDINGS and image.is_file()
    }
    if not classes:
        raise InputError(
            f"{folder} holds no images in folders. Patches lie in one folder per class: "
            f"{folder.name}/<class>/*.png."
        )
    return classes


def patients_of(images: Sequence[Path], folder: Path, pattern: str) -> Names:
    """Whose tissue each image shows, by the first group of the pattern."""
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise UsageError(f"'{pattern}' is not a regular expression ({error}).") from error
    if compiled.groups != 1:
        raise UsageError(f"A pattern of patients has one group in brackets, got '{pattern}'.")
    names = []
    for image in images:
        match = compiled.search(image.relative_to(folder).as_posix())
        if match is None or not match.group(1):
            raise InputError(
                f"{image} does not match the pattern of patients '{pattern}'. Correct the pattern."
            )
        names.append(match.group(1))
    return np.array(names, dtype=np.str_)


def encode_pool(
    folder: Path,
    encoder: PatchEncoder,
    *,
    patient_pattern: str | None = None,
    on_image: Callable[[int, int], None] | None = None,
) -> PatchPool:
    """The images of a folder as features with labels."""
    classes = find_images(folder)
    images = list(classes)
    patients = None if patient_pattern is None else patients_of(images, folder, patient_pattern)
    parts = []
    for start in range(0, len(images), BATCH):
        shown = images[start : start + BATCH]
        features = [
            part(np.stack([read_square(path, part.spec.input_px) for path in shown]))
            for part in encoder.parts
        ]
        with np.errstate(over="ignore"):
            parts.append(np.concatenate(features, axis=1).astype(np.float16))
        if not np.isfinite(parts[-1]).all():
            raise InputError(
                f"Features of the images from {shown[0]} on do not fit 16 bits. Use another "
                "encoder."
            )
        if on_image is not None:
            on_image(min(start + BATCH, len(images)), len(images))
    labels = np.array([*classes.values()], dtype=np.str_)
    return PatchPool(np.concatenate(parts), labels, patients, encoder.name, str(folder))


def read_square(path: Path, side: int) -> UInt8[np.ndarray, "s s 3"]:
    """An image in the encoder's pixels; one that is not square is cut to its middle."""
    pixels = read_picture(path, "RGB")
    short = min(pixels.shape[:2])
    top, left = (pixels.shape[0] - short) // 2, (pixels.shape[1] - short) // 2
    square = Image.fromarray(pixels[top : top + short, left : left + short])
    return np.asarray(square.resize((side, side), Image.Resampling.BICUBIC))
