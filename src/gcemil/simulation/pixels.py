"""The same cohorts as drawn slides: `gcemil simulate PROFILE --pixels`.

Plans, labels, outcomes, sites and layouts come from the functions that make simulated features, so
a label is caused by what is drawn. Only the last step differs: a layout is painted instead of
encoded.

slides/<id>.tif                    pyramidal TIFF, 0.5 micrometres per pixel
masks/{concept,evidence}/<id>.png  truth at 2 micrometres per pixel: concept + 1, evidence region
annotations/<id>.xml               the evidence as ASAP polygons, holes in the group `Exclusion`, as
                                   in CAMELYON16
slides.csv                         what is recorded
targets.csv                        what would be recorded without noise
pixels.yaml                        all it takes to draw the slides again

Tissue is painted in two stains, with nuclei whose density and size depend on the concept:

  rgb = white * exp(-(hematoxylin * H + eosin * E)), H and E the absorption in red, green and blue

A site has dyes and a lamp of its own; a slide differs a little from its site. Borders between
squares of the plan are shifted by less than an eighth of a square, so a planned square shows its
own concept over more than half of its area.

Patches come from `gcemil encode`, which does not read the plan; their truth is read off the masks.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from zlib import crc32

import numpy as np
import yaml
from jaxtyping import Bool, Float, Float32, Int, UInt8
from numpy.random import Generator
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from gcemil.bags import store
from gcemil.bags.cohort import SlideRow, write_slide_table
from gcemil.bags.tables import read_table
from gcemil.errors import CohortError, MissingExtraError
from gcemil.files import atomic_write, read_picture, read_yaml, write_bytes, write_table, write_text
from gcemil.simulation.layout import draw_layout
from gcemil.simulation.plan import PlannedSlide
from gcemil.simulation.profile import Profile, find_size, load_profile
from gcemil.simulation.simulate import PLAN, open_world, plan_cohort, record_origin, writing_slides
from gcemil.simulation.world import World
from gcemil.slides.geojson import trace_outlines
from gcemil.slides.grid import PatchGrid, covered_share
from gcemil.slides.reader import Pixels

GENERATION = 2
"""Raised whenever equal arguments would draw other slides than before."""
_PIXEL_SIZES = {"tiny": (8, (64, 64)), "default": (120, (64, 160)), "wide": (120, (64, 160))}
"""Slides, and fewest and most patches of a slide; `full` has those of the profile."""
PIXEL_DIALS: dict[str, object] = {"evidence_min": 0.05, "evidence_max": 0.15}
"""Drawn slides are small: 0.4 % of 64 patches is less than one."""
PIXEL_CARD = "pixels.yaml"
MPP = 0.5
SQUARE, FINE = 64, 4
"""Pixels of the masks per planned square, and level-0 pixels per pixel of the masks."""
_SITE_STAIN, _SLIDE_STAIN = 0.7, 0.25
"""How far stains move per unit of the dials `site_shift` and `slide_shift`."""
_EVIDENT = 0.5
"""A patch is evidence when more than this share of it lies inside the annotation."""
_LARGEST_SHIFT = 0.12
"""How far a border is shifted at most, in squares."""
_TILE, _STEP = 256, 4
_GROUP_COLORS = {"Tumor": "#F4FA58", "Exclusion": "#64FE2E"}

Coords = Int[np.ndarray, "n 2"]
Mask = UInt8[np.ndarray, "h w"]
Style = Float[np.ndarray, "4"]
"""Distance and radius of nuclei in level-0 pixels; levels of both stains of the ground."""
Dyes = Float[np.ndarray, "3 3"]
"""Absorption of hematoxylin and of eosin at full level, and the colour of empty glass."""
STYLES: dict[str, tuple[float, ...]] = {
    "tumor": (28, 10, 45, 70),
    "benign": (38, 6, 35, 75),
    "stroma": (64, 5, 15, 95),
    "inflammation": (18, 6, 40, 50),
    "necrosis": (22, 3, 30, 105),
    "vessel": (48, 7, 20, 115),
    "adipose": (120, 4, 8, 45),
    "muscle": (90, 5, 12, 115),
    "artifact": (150, 14, 70, 40),
}
"""The usual style of each kind of tissue."""
_STANDARD_DYES = np.array(
    [2.1 * np.array([0.58, 0.76, 0.30]), 2.1 * np.array([0.13, 0.87, 0.44]), [244.0, 242.0, 245.0]]
)


def simulate_pixels(
    profile: str,
    out: Path,
    *,
    size: str = "default",
    seed: int = 0,
    slides: int | None = None,
    patches: tuple[int, int] | None = None,
    dials: Mapping[str, object] | None = None,
    replace_files: bool = True,
    on_slide: Callable[[int, int], None] | None = None,
) -> tuple[SlideRow, ...]:
    """Draw a cohort and return its slides; `patches` are the fewest and most per slide."""
    chosen, rung = load_profile(profile), find_size(size)
    own_dials = {**PIXEL_DIALS, **(dials or {})}
    world = open_world(chosen, rung, seed=seed, slides=slides, dim=None, dials=own_dials)
    count, bounds = _PIXEL_SIZES.get(size, (chosen.slides, chosen.patches))
    planned = plan_cohort(world, chosen.name, slides or count, patches or bounds)
    rows, card = tuple(slide.row for slide in planned), _make_card(world, size, patches or bounds)
    if not replace_files and _is_drawn_whole(out, card, rows):
        return rows
    with writing_slides(
        out,
        card,
        planned,
        partial(_write_slide, world, out),
        last_file=partial(slide_path, out),
        replace_files=replace_files,
        on_slide=on_slide,
    ):
        write_slide_table(out, chosen.task, rows)
        truth = [{"slide_id": slide.row.slide_id, **slide.truth} for slide in planned]
        write_table(out / "targets.csv", list(truth[0]), truth)
        write_text(out / PIXEL_CARD, yaml.safe_dump(card, sort_keys=False))
    return rows


def _is_drawn_whole(folder: Path, card: Mapping[str, Any], rows: Sequence[SlideRow]) -> bool:
    """Whether these slides are drawn; encoding rewrites slides.csv, but not the names in it."""
    path = folder / PIXEL_CARD
    if (folder / PLAN).exists() or not path.is_file() or read_yaml(path) != card:
        return False
    names = [row["slide_id"] for row in read_table(folder / "slides.csv", ("slide_id",))]
    return names == [row.slide_id for row in rows]


def _make_card(world: World, size: str, patches: tuple[int, int]) -> dict[str, Any]:
    """All it takes to draw the slides again."""
    profile, generation = world.profile, {"pixel_generation": GENERATION}
    return {
        "name": f"drawn-{profile.name}",
        "task": profile.task,
        "classes": list(profile.class_names),
        "anchors": profile.family,
        "provenance": record_origin(
            world, size, patches, generation, mpp=MPP, mask_downsample=FINE
        ),
    }


def _write_slide(world: World, out: Path, slide: PlannedSlide) -> None:
    """Masks, annotations and, last, the slide itself, from random streams of their own."""
    name, dials = slide.row.slide_id, world.dials
    layout = draw_layout(
        world.profile, dials, slide.n_patches, slide.regions, world.draws("layout", name)
    )
    draws = world.draws("pixels", name)
    concept, evidence = draw_masks(layout.cells, layout.concept, layout.region, draws)
    for what, mask in (("concept", concept), ("evidence", evidence)):
        buffer = io.BytesIO()
        Image.fromarray(mask).save(buffer, "PNG")
        write_bytes(mask_path(out, what, name), buffer.getvalue())
    concepts = [own.name for own in world.profile.concepts]
    regions = {
        int(number): concepts[layout.concept[layout.region == number][0]]
        for number in np.unique(layout.region[layout.evidence])
    }
    write_bytes(out / "annotations" / f"{name}.xml", _build_asap_xml(evidence, regions))
    # The stain of the slide's site, and what is its own.
    site = _vary_dyes(
        _STANDARD_DYES, _SITE_STAIN * dials.site_shift, world.draws("stain of site", slide.site)
    )
    dyes = _vary_dyes(site, _SLIDE_STAIN * dials.slide_shift, world.draws("stain of slide", name))
    image = _paint_tissue(
        concept, _choose_styles(world.profile, dials.mimic_similarity), dyes, draws
    )
    write_pyramid_tiff(slide_path(out, name), image, MPP)


def slide_path(folder: Path, slide_id: str) -> Path:
    """Where a drawn slide lies."""
    return folder / "slides" / f"{slide_id}.tif"


def mask_path(folder: Path, what: str, slide_id: str) -> Path:
    """Mask of `concept` (index + 1, 0 where there is no tissue) or `evidence` (region number)."""
    return folder / "masks" / what / f"{slide_id}.png"


def _build_asap_xml(regions: Mask, names: Mapping[int, str]) -> bytes:
    """The regions of a mask (numbers from 1, named) as an ASAP file."""
    root = ElementTree.Element("ASAP_Annotations")
    annotations = ElementTree.SubElement(root, "Annotations")
    groups = ElementTree.SubElement(root, "AnnotationGroups")
    for name, color in _GROUP_COLORS.items():
        group = ElementTree.SubElement(groups, "Group", Name=name, PartOfGroup="None", Color=color)
        ElementTree.SubElement(group, "Attributes")
    pieces = [
        (f"{names[number]} {number}", rings)
        for number in names
        for rings in trace_outlines(regions == number)
    ]
    # Readers paint in the order of the file, so holes come last.
    outlines = [("Tumor", name, rings[0]) for name, rings in pieces]
    outlines += [
        ("Exclusion", f"{name} hole", hole) for name, rings in pieces for hole in rings[1:]
    ]
    for group_name, name, ring in outlines:
        annotation = ElementTree.SubElement(
            annotations,
            "Annotation",
            Name=name,
            Type="Polygon",
            PartOfGroup=group_name,
            Color=_GROUP_COLORS[group_name],
        )
        coordinates = ElementTree.SubElement(annotation, "Coordinates")
        for order, (x, y) in enumerate((ring * FINE).tolist()):
            ElementTree.SubElement(
                coordinates, "Coordinate", Order=str(order), X=f"{x:.1f}", Y=f"{y:.1f}"
            )
    ElementTree.indent(root)
    return bytes(ElementTree.tostring(root, encoding="utf-8", xml_declaration=True))


def write_pyramid_tiff(path: Path, image: Pixels, mpp: float) -> None:
    """Write levels of 1, 4, 16, … into one file; equal images give equal bytes."""
    try:
        import tifffile
    except ImportError as error:
        raise MissingExtraError("tifffile", "wsi") from error
    levels = [image]
    while max(levels[-1].shape[:2]) // _STEP >= _TILE:
        levels.append(np.asarray(Image.fromarray(levels[-1]).reduce(_STEP)))
    with atomic_write(path) as temporary, tifffile.TiffWriter(temporary) as writer:
        for level, pixels in enumerate(levels):
            writer.write(
                pixels,
                tile=(_TILE, _TILE),
                photometric="rgb",
                compression="zlib",
                # Higher levels save a few percent of space and take twice the time.
                compressionargs={"level": 1},
                subfiletype=int(level > 0),
                resolution=(1e4 / (mpp * _STEP**level),) * 2,
                resolutionunit="CENTIMETER",
                metadata=None,
                software=False,
            )


# Painting


def _choose_styles(profile: Profile, mimic_similarity: float) -> list[Style]:
    """A style per concept; a mimic lies between the concept it imitates and benign tissue."""
    styles: dict[str, Style] = {}
    for concept in profile.concepts:
        if concept.imitates is None:
            # The style of the kind, changed by the name of the concept.
            generator = np.random.default_rng(crc32(concept.name.encode()))
            spacing, radius, stain = np.exp(generator.uniform(-0.25, 0.25, 3))
            style = np.array(STYLES[concept.kind]) * (spacing, radius, 1.0, stain)
        else:
            benign = (1 - mimic_similarity) * np.array(STYLES["benign"])
            style = mimic_similarity * styles[concept.imitates] + benign
        styles[concept.name] = style
    return list(styles.values())


def _vary_dyes(dyes: Dyes, spread: float, generator: Generator) -> Dyes:
    """Dyes of another batch: hue, strength and lamp move by about `spread`."""
    hue = generator.normal(0, 0.25 * spread, size=(2, 3))
    strength = np.exp(generator.normal(0, 0.6 * spread, size=2))
    stains = np.clip(dyes[:2] * strength[:, None] * (1 + hue), 0.02, None)
    return np.vstack(
        [stains, np.clip(dyes[2] + generator.normal(0, 12 * spread, size=3), 225, 252)]
    )


def draw_masks(
    cells: Coords, concept: Int[np.ndarray, "n"], region: Int[np.ndarray, "n"], generator: Generator
) -> UInt8[np.ndarray, "2 h w"]:
    """Squares at (row, column) cells as two masks with irregular borders: concept + 1, region."""
    cells = cells - cells.min(axis=0) + 1
    rows, columns = (cells.max(axis=0) + 2).tolist()
    grid = np.zeros((2, rows, columns), np.uint8)
    grid[:, cells[:, 0], cells[:, 1]] = concept + 1, region
    shape = (rows * SQUARE, columns * SQUARE)
    shifts = [0.06 * _smooth_plane(*shape, 20, generator) for _ in range(2)]
    places = np.meshgrid(*((np.arange(side) + 0.5) / SQUARE for side in shape), indexing="ij")
    row, column = (
        (place + np.clip(shift, -_LARGEST_SHIFT, _LARGEST_SHIFT)).astype(np.int64).clip(0, side - 1)
        for place, shift, side in zip(places, shifts, (rows, columns), strict=True)
    )
    return grid[:, row, column]


def _paint_tissue(
    concept: Mask, styles: Sequence[Style], dyes: Dyes, generator: Generator
) -> Pixels:
    """The image of a mask of concepts at full resolution."""
    height, width = concept.shape
    mottle = np.exp(
        0.2 * _smooth_plane(height, width, 6, generator)
        + 0.15 * _smooth_plane(height, width, 2, generator)
    )
    stains = []
    for stain in (2, 3):
        ground = np.array([0, *(style[stain] for style in styles)], np.float32)[concept]
        level = Image.fromarray((ground * mottle).clip(0, 255).astype(np.uint8))
        stains.append(level.resize((width * FINE, height * FINE), Image.Resampling.BILINEAR))
    pen = ImageDraw.Draw(stains[0])
    for index in np.unique(concept[concept > 0]).tolist():
        _draw_nuclei(pen, concept == index, styles[index - 1], generator)
    # The colour of every pair of levels of the two stains.
    share = np.arange(256)[:, None] / 255
    density = (share * dyes[0])[:, None] + (share * dyes[1])[None]
    colors = np.rint(dyes[2] * np.exp(-density)).astype(np.uint8)
    return colors[np.asarray(stains[0]), np.asarray(stains[1])]


def _draw_nuclei(
    pen: Any, own: Bool[np.ndarray, "h w"], style: Style, generator: Generator
) -> None:
    """One nucleus at a random place of every square whose side is the spacing of the style."""
    spacing, radius = style[:2].tolist()
    counts = [int(side * FINE / spacing) for side in own.shape]
    corners = np.stack(np.meshgrid(*map(np.arange, counts), indexing="ij"), axis=-1).reshape(-1, 2)
    centres = (corners + generator.random(corners.shape)) * spacing
    centres = centres[own[tuple((centres / FINE).astype(np.int64).T)]]
    radii = radius * np.exp(generator.normal(0, 0.25, centres.shape))
    boxes = np.hstack([(centres - radii)[:, ::-1], (centres + radii)[:, ::-1]])
    shades = generator.integers(150, 230, len(centres))
    for box, shade in zip(boxes.tolist(), shades.tolist(), strict=True):
        pen.ellipse(box, fill=shade)


def _smooth_plane(
    height: int, width: int, scale: float, generator: Generator
) -> Float32[np.ndarray, "h w"]:
    """Values of about unit variance that vary over `scale` pixels."""
    coarse = generator.standard_normal(
        (int(height / scale) + 4, int(width / scale) + 4), dtype=np.float32
    )
    smooth = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    return np.float32(1.3) * np.asarray(smooth)


# Once the slides are encoded


def write_pixel_truth(folder: Path, slide_id: str, grid: PatchGrid) -> Path:
    """truth/<slide>.h5 for these patches of a drawn slide, in the layout of simulated features."""
    path = folder / "truth" / f"{slide_id}.h5"
    targets = {row["slide_id"]: row for row in read_table(folder / "targets.csv", ("slide_id",))}
    if slide_id not in targets:
        raise CohortError(f"{folder / 'targets.csv'} does not name slide '{slide_id}'.")
    target = {
        name: text if name == "label" else float(text)
        for name, text in targets[slide_id].items()
        if name in ("label", "value", "log_risk")
    }
    store.write(path, read_pixel_truth(folder, slide_id, grid.coords, grid.level0_side), target)
    return path


def read_pixel_truth(
    folder: Path, slide_id: str, coords: Coords, side: float
) -> dict[str, NDArray[Any]]:
    """Evidence, concept, region and overlap of square patches of this level-0 side."""
    values, shares = {}, {}
    for what in ("evidence", "concept"):
        mask = read_picture(mask_path(folder, what, slide_id), "L")
        values[what] = np.append(np.unique(mask[mask > 0]).astype(np.int64), 0)
        corner, sides = coords / FINE, (side / FINE, side / FINE)
        # The 0 at the end stands for a mask of nothing and covers no patch.
        columns = [covered_share(mask == value, corner, sides) for value in values[what][:-1]]
        shares[what] = np.stack([*columns, np.zeros(len(coords))], axis=1)
    overlap = np.clip(shares["evidence"].sum(axis=1), 0, 1)
    evidence = overlap > _EVIDENT
    region, concept = (
        values[what][shares[what].argmax(axis=1)] for what in ("evidence", "concept")
    )
    return {
        "evidence": evidence.astype(np.uint8),
        "concept": (concept - 1).astype(np.uint8),
        "region": np.where(evidence, region, 0).astype(np.uint16),
        "overlap": overlap.astype(np.float32),
    }
