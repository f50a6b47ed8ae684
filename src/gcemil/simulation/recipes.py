"""How each concept of the simulator looks: architecture, cells, matrix.

Lengths are pixels of 0.5 micrometres. Stain levels run from 0 (glass) to 255 (opaque) for hematoxylin and eosin.
Recipes differ in architecture and nuclei; their mean stain is levelled when a slide is drawn, so that a reader who sees
only colour learns little.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Architecture = Literal[
    "sheet", "nests", "papillae", "channels", "glands", "cribriform", "honeycomb", "strands"
]


@dataclass(frozen=True)
class Nuclei:
    """A population of nuclei."""

    spacing: float
    radius: float
    spread: float = 0.12
    """Standard deviation of the log-radius."""
    elongation: float = 1.2
    """Long axis over short axis."""
    level: float = 190
    vesicular: float = 0.3
    """How much paler the middle is than the rim."""


@dataclass(frozen=True)
class Recipe:
    """One texture. What `scale`, `fill` and `lumen` mean depends on the architecture."""

    architecture: Architecture = "sheet"
    scale: float = 90
    fill: float = 0.5
    """Share that is cellular, or the radius of a gland as a share of the scale."""
    lumen: float = 0.4
    """Radius of the empty middle, as a share of the gland's."""
    irregular: float = 0.15
    cytoplasm: tuple[float, float] = (46, 92)
    matrix: tuple[float, float] = (10, 84)
    fibre: float = 34
    wavelength: float = 18
    waviness: float = 1.0
    cells: Nuclei | None = None
    spindles: Nuclei | None = None
    mitoses: float = 0.0
    """Share of the cells that divide."""
    debris: float = 0.0
    """Fragments of nuclei per 1000 square pixels."""
    red_cells: float = 0.0
    """Share of the free places that hold a red cell."""
    pigment: float = 0.0
    """Dark grains per 1000 square pixels, in clumps."""
    pigment_rgb: tuple[int, int, int] = (30, 26, 28)
    grain: float = 8
    blur: bool = False
    fold: bool = False
    levelled: bool = True
    """False where the colour is the concept, as of blood and fat."""


SPINDLES = Nuclei(spacing=46, radius=5.5, elongation=3.4, level=180, vesicular=0.1)
SMALL_ROUND = Nuclei(spacing=15.5, radius=6.2, spread=0.08, elongation=1.08, level=215, vesicular=0.05)
REGULAR = Nuclei(spacing=19, radius=7.5, spread=0.08, elongation=1.35, level=185, vesicular=0.3)
TUMOR = Nuclei(spacing=25, radius=10.5, spread=0.2, elongation=1.25, level=180, vesicular=0.5)
BIZARRE = Nuclei(spacing=34, radius=13.5, spread=0.42, elongation=1.4, level=215, vesicular=0.45)
FLAT = Nuclei(spacing=40, radius=5, elongation=2.6, level=180)

STROMA = Recipe(matrix=(10, 88), spindles=SPINDLES, fill=0)
REACTIVE_STROMA = Recipe(
    matrix=(16, 76), spindles=replace(SPINDLES, spacing=27, radius=7, elongation=2.4), fill=0,
    waviness=2.4, fibre=46, wavelength=13,
)  # fmt: skip
MUSCLE = Recipe(
    matrix=(10, 108), fibre=22, wavelength=30, waviness=0.3, fill=0,
    spindles=replace(SPINDLES, spacing=42, radius=5.5, elongation=5.0),
)  # fmt: skip
FAT = Recipe(
    "honeycomb",
    scale=88,
    fill=0.045,
    cytoplasm=(8, 74),
    matrix=(0, 2),
    fibre=0,
    grain=4,
    cells=FLAT,
    levelled=False,
)
LYMPHOCYTES = Recipe(cytoplasm=(40, 48), cells=SMALL_ROUND, fill=1)
FOLLICLE = Recipe(
    "cribriform", scale=86, lumen=0.2, fill=1, cytoplasm=(40, 60),
    cells=replace(SMALL_ROUND, spacing=24, radius=9, spread=0.25, level=165, vesicular=0.55),
)  # fmt: skip
NESTS = Recipe("nests", scale=100, fill=0.58, cells=TUMOR, spindles=SPINDLES)
SOLID = Recipe(cells=replace(TUMOR, spacing=23), fill=1)
GLANDS = Recipe(
    "glands", scale=150, fill=0.44, lumen=0.42, cells=replace(REGULAR, spacing=13), spindles=SPINDLES
)
PAPILLAE = Recipe("papillae", scale=64, fill=0.42, cells=replace(REGULAR, spacing=15), spindles=SPINDLES)
NECROSIS = Recipe(
    cytoplasm=(34, 104), fill=1, debris=7, grain=34,
    cells=Nuclei(spacing=40, radius=8, spread=0.2, level=88, vesicular=0.1),
)  # fmt: skip
BLOOD = Recipe("sheet", matrix=(4, 60), fibre=8, fill=0, red_cells=0.95, levelled=False)

RECIPES: dict[str, Recipe] = {
    # Background
    "stroma": STROMA,
    "stromal background": STROMA,
    "desmoplastic stroma": REACTIVE_STROMA,
    "muscle": MUSCLE,
    "myometrium": MUSCLE,
    "fat": FAT,
    "artifact": replace(STROMA, blur=True, fold=True),
    "lymphocytic infiltration": LYMPHOCYTES,
    "stromal lymphocytes": replace(LYMPHOCYTES, architecture="nests", scale=80, fill=0.6, spindles=SPINDLES),
    "inflammation": replace(LYMPHOCYTES, architecture="nests", scale=60, fill=0.7, spindles=SPINDLES),
    "inflammatory infiltrate": replace(LYMPHOCYTES, architecture="nests", scale=70, fill=0.65),
    "benign ducts": replace(GLANDS, scale=190, fill=0.4, lumen=0.5),
    "benign glands": replace(GLANDS, scale=210, fill=0.46, lumen=0.55, irregular=0.35),
    "normal mucosa": replace(GLANDS, scale=120, fill=0.46, lumen=0.3),
    "normal endometrium": replace(GLANDS, scale=170, fill=0.38, lumen=0.45),
    "renal tubules": replace(GLANDS, scale=84, fill=0.5, lumen=0.3, cytoplasm=(24, 110)),
    "alveoli": Recipe(
        "honeycomb", scale=170, fill=0.07, cytoplasm=(20, 100), matrix=(0, 2), fibre=0, cells=FLAT, levelled=False,
    ),
    "tumor bulk": replace(NESTS, scale=150, fill=0.75, cells=replace(TUMOR, radius=9.5, spread=0.14)),
    "clear-cell cytoplasm": Recipe(
        "honeycomb", scale=38, fill=0.08, cytoplasm=(26, 90), matrix=(6, 26), fibre=0,
        spindles=replace(REGULAR, spacing=36, radius=7.5),
    ),
    # Causes
    "invasive epithelial nests": NESTS,
    "malignant epithelial nests": replace(NESTS, scale=130, fill=0.62, cytoplasm=(30, 116)),
    "solid growth": SOLID,
    "solid sheets": replace(SOLID, cells=replace(TUMOR, spacing=21, radius=9.5)),
    "nuclear pleomorphism": Recipe(cells=BIZARRE, fill=1),
    "nuclear atypia": Recipe(cells=replace(BIZARRE, spacing=31, spread=0.36), fill=1),
    "nuclear grade": Recipe(cells=replace(BIZARRE, spacing=37, vesicular=0.7), fill=1, cytoplasm=(20, 70)),
    "mitotic activity": replace(SOLID, mitoses=0.22),
    "eosinophilic cytoplasm": Recipe(cells=replace(TUMOR, spacing=40), fill=1, cytoplasm=(14, 130), grain=16),
    "gland formation": replace(GLANDS, scale=130, fill=0.47, irregular=0.25),
    "glandular architecture": replace(GLANDS, scale=140, fill=0.47),
    "tubular glands": replace(GLANDS, scale=110, fill=0.42, lumen=0.5),
    "acinar growth": replace(GLANDS, scale=105, fill=0.47, irregular=0.3, cells=replace(TUMOR, spacing=17, radius=8.5)),
    "small discrete glands": replace(GLANDS, scale=92, fill=0.36, lumen=0.4),
    "gland fusion": replace(GLANDS, scale=88, fill=0.6, lumen=0.42, irregular=0.4),
    "poorly formed glands": replace(GLANDS, scale=70, fill=0.5, lumen=0.16, irregular=0.5),
    "cribriform architecture": Recipe("cribriform", scale=62, lumen=0.3, fill=0.82, cells=replace(REGULAR, spacing=17)),
    "papillary growth": PAPILLAE,
    "papillary cores": replace(PAPILLAE, scale=78, fill=0.5, cytoplasm=(30, 90)),
    "lepidic-like regions": Recipe(
        "honeycomb", scale=140, fill=0.13, cytoplasm=(40, 90), matrix=(0, 2), fibre=0, levelled=False,
        cells=replace(REGULAR, spacing=16),
    ),
    "mucinous regions": Recipe("nests", scale=110, fill=0.22, matrix=(34, 10), fibre=14, wavelength=40, cells=REGULAR),
    "single-file cells": Recipe("strands", scale=44, fill=0.36, cells=replace(REGULAR, spacing=17), spindles=SPINDLES),
    "poorly cohesive cells": Recipe("nests", scale=30, fill=0.4, cells=replace(TUMOR, spacing=27, radius=9)),
    "signet-ring morphology": Recipe(
        "cribriform", scale=36, lumen=0.34, fill=0.8, cells=replace(FLAT, spacing=24, radius=6, level=210), spindles=SPINDLES,
    ),
    "stromal reaction": REACTIVE_STROMA,
    "necrosis": NECROSIS,
    "necrotic tumor cells": replace(NECROSIS, architecture="nests", scale=120, fill=0.6, debris=10),
    "vascular network": Recipe(
        "channels", scale=70, fill=0.3, cells=replace(REGULAR, spacing=26), red_cells=0.8, cytoplasm=(22, 64),
    ),
    # Distractors
    "germinal centre": FOLLICLE,
    "hemorrhage": BLOOD,
    "blood clot": replace(BLOOD, red_cells=0.7, fibre=30, wavelength=10),
    "hemosiderin": replace(STROMA, pigment=6, pigment_rgb=(122, 74, 30)),
    "carbon pigment": replace(STROMA, pigment=9),
    "calcification": replace(STROMA, debris=9),
    "ink": replace(STROMA, pigment=5, pigment_rgb=(28, 52, 104)),
    "pen mark": replace(STROMA, pigment=4, pigment_rgb=(24, 92, 70)),
    "tissue fold": replace(STROMA, fold=True),
    "cyst": replace(GLANDS, scale=260, fill=0.5, lumen=0.9, cells=FLAT, levelled=False),
}  # fmt: skip

BY_KIND: dict[str, Recipe] = {
    "tumor": NESTS,
    "benign": GLANDS,
    "stroma": STROMA,
    "inflammation": LYMPHOCYTES,
    "necrosis": NECROSIS,
    "vessel": RECIPES["vascular network"],
    "adipose": FAT,
    "muscle": MUSCLE,
    "artifact": RECIPES["artifact"],
}


def find_recipe(name: str, kind: str) -> Recipe:
    """The texture of a concept; one without a recipe of its own looks like its kind."""
    return RECIPES.get(name, BY_KIND.get(kind, STROMA))


def calm_recipe(recipe: Recipe, similarity: float) -> Recipe:
    """The benign double: the same architecture, calmer the less similar it is; at similarity 1 the recipe itself."""
    calm = 1 - similarity

    def calm_nuclei(nuclei: Nuclei | None) -> Nuclei | None:
        if nuclei is None:
            return None
        return replace(
            nuclei,
            spacing=nuclei.spacing * (1 + 0.5 * calm),
            radius=nuclei.radius * (1 - 0.55 * calm),
            spread=nuclei.spread * similarity,
            vesicular=nuclei.vesicular * similarity,
        )

    return replace(
        recipe,
        cells=calm_nuclei(recipe.cells),
        spindles=calm_nuclei(recipe.spindles),
        irregular=recipe.irregular * similarity,
        scale=recipe.scale * (1 + 0.8 * calm),
        mitoses=0.0,
        debris=recipe.debris * similarity,
        waviness=recipe.waviness * similarity,
    )
