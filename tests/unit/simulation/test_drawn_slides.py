"""Drawn slides: truth to the pixel, texture that carries the concept, and files that other tools open."""

from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
import yaml
from scipy import ndimage

from gcemil.bags import store
from gcemil.bags.cohort import Cohort
from gcemil.bags.patching import PatchingRules, patch_slides, patches_path, read_patch_file
from gcemil.bags.tables import read_table
from gcemil.errors import CohortError
from gcemil.resources import shipped_names
from gcemil.simulation.draw import STANDARD, colour_table, draw_tissue, vary_dyes
from gcemil.simulation.drawn_slide import add_pen_mark, build_asap_xml, mask_path, read_drawn_mask, slide_path
from gcemil.simulation.label_map import (
    CORE,
    FINE,
    PATCH,
    SQUARE,
    LabelMap,
    SquarePlan,
    find_nearest_two,
    grow_label_map,
    scatter,
    smooth_field,
    smooth_plane,
)
from gcemil.simulation.layout import draw_layout
from gcemil.simulation.pixels import (
    PIXEL_DIALS,
    choose_recipes,
    draw_pixels,
    read_encoded_card,
    read_pixel_truth,
    simulate_pixels,
    write_pixel_truth,
)
from gcemil.simulation.profile import load_profile, resolve_dials
from gcemil.simulation.recipes import RECIPES, STROMA, calm_recipe, find_recipe
from gcemil.simulation.simulate import plan_slides
from gcemil.simulation.world import draw_world
from gcemil.slides.grid import PatchSettings, patch_grid
from gcemil.slides.mask_files import rasterise_polygons, read_mask
from gcemil.slides.reader import Bounds, open_slide

SETTINGS = PatchSettings()


@pytest.fixture(scope="module")
def cohort(tmp_path_factory):
    """Three small slides of a profile whose two-class labels are caused by drawn nests; patched by their tissue masks."""
    folder = tmp_path_factory.mktemp("pixels")
    drawn = simulate_pixels(
        "camelyon16", folder, size="tiny", slides=3, patches=(20, 24), dials={"decoy_rate": 0.0}
    )
    report = patch_slides([folder / "slides"], folder, PatchingRules(masks=folder / "masks" / "tissue"))
    assert not report.problems
    return drawn


def world_of(profile, seed=0, **dials):
    chosen = load_profile(profile)
    resolved = resolve_dials(chosen.dials, {**PIXEL_DIALS, **dials})
    return draw_world(chosen, resolved, feature_dim=48, anchor_dim=32, seed=seed)


def squares(rows=4, columns=5, lesion=((1, 1), (1, 2))):
    """A block of background with one evidence region."""
    cells = np.stack(np.divmod(np.arange(rows * columns), columns), axis=1)
    is_region = np.array([tuple(cell) in lesion for cell in cells.tolist()])
    return SquarePlan(cells, is_region.astype(np.int64), is_region, is_region.astype(np.int64))


def plain_map(height=SQUARE, width=SQUARE):
    return LabelMap(np.ones((height, width), np.uint8), np.zeros((height, width), np.uint8))


# Truth


@pytest.mark.parametrize("seed", range(6))
def test_a_planned_square_is_its_concept_for_the_better_part_and_no_other_square_is(seed):
    plan = squares()
    labels = grow_label_map(plan, np.random.default_rng(seed))
    blocks = labels.evidence.reshape(6, SQUARE, 7, SQUARE).astype(bool).mean(axis=(1, 3))
    planned = np.zeros((6, 7), bool)
    planned[2, 2:4] = True
    assert blocks[planned].min() > 0.6
    assert blocks[~planned].max() < 0.45
    assert (labels.texture[labels.evidence > 0] == 2).all()
    assert 0.5 < (2 * CORE) ** 2 * 0.883 < 0.7


def test_a_region_alone_on_the_glass_is_tissue():
    labels = grow_label_map(squares(1, 1, lesion=((0, 0),)), np.random.default_rng(0))
    assert labels.tissue[labels.evidence > 0].all()
    assert (labels.evidence > 0).sum() > 0.6 * SQUARE**2


def test_tissue_has_a_margin_of_glass_and_is_not_square():
    labels = grow_label_map(squares(lesion=()), np.random.default_rng(0))
    assert labels.texture.shape == (6 * SQUARE, 7 * SQUARE)
    assert not labels.tissue[:8].any()
    assert not labels.tissue[:, -8:].any()
    rows = labels.tissue[2 * SQUARE : 4 * SQUARE]
    left_edge = rows.argmax(axis=1)
    assert np.ptp(left_edge) > 4
    assert not labels.evidence.any()


def test_labels_follow_from_what_is_drawn(cohort):
    for row in cohort.slides:
        evidence = read_drawn_mask(mask_path(cohort.folder, "evidence", row.slide_id))
        concept = read_drawn_mask(mask_path(cohort.folder, "concept", row.slide_id))
        names = cohort.card["provenance"]["concepts"]
        shown = {names[code - 1] for code in np.unique(concept[evidence > 0])}
        assert shown == ({"invasive epithelial nests"} if row.label == "tumor" else set())
    assert {row.label for row in cohort.slides} == {"normal", "tumor"}


def test_truth_of_patches_is_the_plan_where_patches_are_its_squares():
    world = world_of("bracs", seed=2)
    for slide in plan_slides(world, "bracs", 8, (24, 24))[:3]:
        layout, drawn = draw_pixels(world, slide)
        squares = (layout.cells - layout.cells.min(axis=0) + 1) * SQUARE
        share = np.array(
            [(drawn.labels.evidence[y : y + SQUARE, x : x + SQUARE] > 0).mean() for y, x in squares]
        )
        np.testing.assert_array_equal(share > 0.5, layout.evidence)
        for region in np.unique(layout.region[layout.evidence]):
            assert (drawn.labels.evidence == region).any()


def test_patch_truth_is_written_as_that_of_simulated_features(cohort):
    tumor = next(row for row in cohort.slides if row.label == "tumor")
    grid = read_patch_file(patches_path(cohort.folder, SETTINGS, tumor.slide_id))
    path = write_pixel_truth(cohort.folder, tumor.slide_id, grid)
    truth = {name: store.read(path, name) for name in ("evidence", "concept", "region", "overlap")}
    assert {name: values.dtype.name for name, values in truth.items()} == {
        "evidence": "uint8", "concept": "uint8", "region": "uint16", "overlap": "float32",
    }  # fmt: skip
    assert len(truth["evidence"]) == len(grid)
    assert truth["evidence"].sum() >= 1
    np.testing.assert_array_equal(truth["evidence"] == 1, truth["overlap"] > 0.5)
    np.testing.assert_array_equal(truth["region"] > 0, truth["evidence"] == 1)
    assert (truth["concept"][truth["overlap"] > 0.6] == 5).all()
    assert store.attributes(path)["label"] == "tumor"
    path.unlink()


def test_truth_follows_a_patch_wherever_it_lies(cohort):
    tumor = next(row for row in cohort.slides if row.label == "tumor")
    evidence = read_drawn_mask(mask_path(cohort.folder, "evidence", tumor.slide_id)) > 0
    y, x = (axis[len(axis) // 2] for axis in np.nonzero(evidence))
    inside = np.array([[x * FINE, y * FINE]])
    assert read_pixel_truth(cohort.folder, tumor.slide_id, inside, FINE)["overlap"].tolist() == pytest.approx(
        [1.0]
    )
    away = read_pixel_truth(cohort.folder, tumor.slide_id, np.array([[0, 0]]), PATCH / 4)
    assert away["evidence"].tolist() == [0]
    assert away["overlap"].tolist() == pytest.approx([0.0])


def test_a_slide_without_evidence_has_none(cohort):
    normal = next(row for row in cohort.slides if row.label == "normal")
    truth = read_pixel_truth(cohort.folder, normal.slide_id, np.array([[256, 256], [512, 256]]), 256.0)
    assert truth["evidence"].tolist() == [0, 0]
    assert truth["region"].tolist() == [0, 0]


def test_asap_polygons_are_the_evidence_mask(cohort):
    for row in cohort.slides:
        root = ElementTree.parse(cohort.folder / "annotations" / f"{row.slide_id}.xml").getroot()
        mask = read_drawn_mask(mask_path(cohort.folder, "evidence", row.slide_id)) > 0
        painted = np.zeros_like(mask)
        for annotation in root.iter("Annotation"):
            points = annotation.iter("Coordinate")
            ring = np.array([(float(point.get("X")), float(point.get("Y"))) for point in points])
            bounds = Bounds(0, 0, mask.shape[1] * FINE, mask.shape[0] * FINE)
            inside = rasterise_polygons([[ring]], bounds, downsample=FINE)
            painted = painted | inside if annotation.get("PartOfGroup") == "Tumor" else painted & ~inside
        np.testing.assert_array_equal(painted, mask)


def test_asap_holes_come_last():
    mask = np.array([[1, 1, 1, 0, 2], [1, 0, 1, 0, 2], [1, 1, 1, 0, 0]], np.uint8)
    root = ElementTree.fromstring(build_asap_xml(mask, {1: "nests", 2: "glands"}, scale=4))
    found = [(a.get("Name"), a.get("PartOfGroup")) for a in root.iter("Annotation")]
    assert found == [("nests 1", "Tumor"), ("glands 2", "Tumor"), ("nests 1 hole", "Exclusion")]
    assert [point.get("X") for point in next(root.iter("Annotation")).iter("Coordinate")] == [
        "0.0",
        "12.0",
        "12.0",
        "0.0",
    ]


@pytest.mark.parametrize("profile", shipped_names("simulator"))
def test_small_slides_have_room_for_the_plans_of_every_profile(profile):
    world = world_of(profile)
    for slide in plan_slides(world, profile, 12, (64, 64)):
        layout = draw_layout(
            world.profile, world.dials, 64, slide.regions, world.draws("layout", slide.row.slide_id)
        )
        planned = sum(region.n_patches for region in slide.regions if region.role == "evidence")
        assert layout.evidence.sum() == planned


# Files


def test_openslide_opens_a_drawn_slide_with_its_pixel_size(cohort):
    for row in cohort.slides:
        with open_slide(slide_path(cohort.folder, row.slide_id)) as slide:
            assert slide.mpp == pytest.approx(0.5)
            assert len(slide.downsamples) >= 2
            width, height = slide.dimensions
        mask = read_drawn_mask(mask_path(cohort.folder, "tissue", row.slide_id))
        assert (width, height) == (mask.shape[1] * FINE, mask.shape[0] * FINE)


def test_equal_arguments_give_equal_bytes(cohort, tmp_path):
    again = simulate_pixels(
        "camelyon16", tmp_path, size="tiny", slides=3, patches=(20, 24), dials={"decoy_rate": 0.0}
    )
    assert again.slides == cohort.slides
    made = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file())
    assert len(made) == 3 * 5 + 3
    for name in made:
        assert (tmp_path / name).read_bytes() == (cohort.folder / name).read_bytes(), name


def test_another_seed_draws_other_slides(cohort):
    slides = plan_slides(world_of("camelyon16", seed=1), "camelyon16", 3, (20, 24))
    first = draw_pixels(world_of("camelyon16", seed=1), slides[0])[1].image
    with open_slide(slide_path(cohort.folder, cohort.slides[0].slide_id)) as slide:
        assert (
            first.shape[:2] != slide.dimensions[::-1]
            or (first[:64] != slide.region(0, 0, 0, first.shape[1], 64)).any()
        )


def test_tables_carry_the_recorded_and_the_true_target(cohort):
    assert [row["slide_id"] for row in read_table(cohort.folder / "slides.csv", ("label", "site"))] == [
        row.slide_id for row in cohort.slides
    ]
    assert {row["label"] for row in read_table(cohort.folder / "targets.csv")} == {"normal", "tumor"}
    card = yaml.safe_load((cohort.folder / "pixels.yaml").read_text())
    assert card["provenance"]["mpp"] == 0.5
    assert card["provenance"]["dials"]["evidence_max"] == 0.15


def test_the_card_of_the_encoded_cohort_is_a_cohort_card(cohort, tmp_path):
    card = read_encoded_card(cohort.folder, feature_dim=8, encoder="test", patch_size_level0=256)
    Cohort(tmp_path, card, cohort.slides).save()
    loaded = Cohort.load(tmp_path)
    assert loaded.card.classes == ("normal", "tumor")
    assert loaded.card.feature_dim == 8
    with pytest.raises(CohortError, match=r"holds no drawn slides: it has no pixels.yaml"):
        read_encoded_card(tmp_path / "gone", feature_dim=8, encoder="test", patch_size_level0=256)


def test_survival_slides_carry_time_and_event(tmp_path):
    drawn = simulate_pixels("kirc", tmp_path, size="tiny", slides=2, patches=(20, 20))
    rows = read_table(tmp_path / "slides.csv", ("time", "event"))
    assert all(float(row["time"]) > 0 for row in rows)
    assert {"slide_id", "log_risk"} == set(read_table(tmp_path / "targets.csv")[0])
    assert drawn.card["task"] == "survival"


def test_the_tissue_mask_is_a_mask_for_patching(cohort):
    row = cohort.slides[0]
    with open_slide(slide_path(cohort.folder, row.slide_id)) as slide:
        tissue = read_mask(mask_path(cohort.folder, "tissue", row.slide_id), slide)
        grid = patch_grid(slide, tissue)
    assert 16 <= len(grid) <= 34


def test_the_segmenter_keeps_every_drawn_lesion_and_leaves_pen_marks_out(tmp_path):
    for profile, slides in (("camelyon16", 2), ("luad", 1)):
        folder = tmp_path / profile
        drawn = simulate_pixels(profile, folder, size="tiny", slides=slides, patches=(20, 20), seed=1)
        report = patch_slides([folder / "slides"], folder)
        assert not report.problems
        for row in drawn.slides:
            grid = read_patch_file(patches_path(folder, SETTINGS, row.slide_id))
            height, width = read_drawn_mask(mask_path(folder, "tissue", row.slide_id)).shape
            every = (
                np.stack(
                    np.meshgrid(np.arange(width // SQUARE), np.arange(height // SQUARE)), axis=-1
                ).reshape(-1, 2)
                * PATCH
            )
            wanted = every[read_pixel_truth(folder, row.slide_id, every, float(PATCH))["evidence"] == 1]
            kept = {tuple(place) for place in grid.coords.tolist()}
            assert {tuple(place) for place in wanted.tolist()} <= kept


# Looks


def test_every_concept_of_every_profile_has_a_recipe_of_its_own():
    for name in shipped_names("simulator"):
        profile = load_profile(name)
        known = {concept.name for concept in profile.concepts if concept.imitates is None}
        assert known <= set(RECIPES), known - set(RECIPES)
        assert len(choose_recipes(profile, 0.6)) == len(profile.concepts)
    assert find_recipe("something new", "stroma") == STROMA


def test_a_mimic_at_similarity_1_is_the_concept_without_its_mitoses():
    recipe = RECIPES["mitotic activity"]
    assert calm_recipe(recipe, 1.0) == replace(recipe, mitoses=0.0)
    calm = calm_recipe(recipe, 0.5)
    assert calm.cells.radius < recipe.cells.radius
    assert calm.cells.spread < recipe.cells.spread


def test_every_recipe_can_be_drawn():
    for name, recipe in RECIPES.items():
        image = draw_tissue(plain_map(), [recipe], STANDARD, np.random.default_rng(0))
        assert image.shape == (PATCH, PATCH, 3)
        assert image.std() > 4, name


def sample(name, seed):
    """Four patches of a recipe under the stain of one site."""
    generator = np.random.default_rng([seed, len(name)])
    dyes = vary_dyes(STANDARD, 0.2, np.random.default_rng(seed))
    image = draw_tissue(plain_map(2 * SQUARE, 2 * SQUARE), [RECIPES[name]], dyes, generator)
    return image.reshape(2, PATCH, 2, PATCH, 3).swapaxes(1, 2).reshape(4, PATCH, PATCH, 3).astype(np.float32)


def texture_statistic(patch):
    """How the contrast is shared out over five scales: blind to colour and to brightness."""
    grey, found = patch.mean(axis=2), []
    finer = grey
    for reach in (1, 2, 4, 8, 16):
        coarser = ndimage.uniform_filter(grey, 2 * reach + 1)
        found.append(np.log(np.std(finer - coarser) + 0.1))
        finer = coarser
    return np.array(found) - np.mean(found)


def balanced_accuracy(features, concept, site):
    """Nearest centroid in whitened features, each site predicted from the others."""
    right = []
    for held in np.unique(site):
        rest = site != held
        centres = np.stack([features[rest & (concept == k)].mean(axis=0) for k in np.unique(concept)])
        residual = features[rest] - centres[concept[rest]]
        root = np.linalg.cholesky(np.linalg.pinv(np.cov(residual.T) + 1e-6 * np.eye(features.shape[1])))
        distance = np.linalg.norm((features[~rest][:, None] - centres[None]) @ root, axis=2)
        right.append(np.mean(distance.argmin(axis=1) == concept[~rest]))
    return float(np.mean(right))


def test_texture_and_not_colour_carries_the_concept():
    names = (
        "invasive epithelial nests",
        "lymphocytic infiltration",
        "benign glands",
        "stromal reaction",
        "necrosis",
        "nuclear pleomorphism",
    )
    patches, concept, site = [], [], []
    for index, name in enumerate(names):
        for seed in range(5):
            patches += list(sample(name, seed))
            concept += [index] * 4
            site += [seed] * 4
    concept, site = np.array(concept), np.array(site)
    colour = np.stack([patch.mean(axis=(0, 1)) for patch in patches])
    texture = np.stack([texture_statistic(patch) for patch in patches])
    by_colour = balanced_accuracy(colour, concept, site)
    by_texture = balanced_accuracy(texture, concept, site)
    assert by_texture > 0.9, by_texture
    assert by_colour < 0.6, by_colour


def test_sites_differ_in_stain_and_glass_stays_pale():
    tables = [colour_table(vary_dyes(STANDARD, 0.2, np.random.default_rng(seed))) for seed in range(4)]
    tissue = np.array([table[256 * 80 + 80] for table in tables], float)
    assert np.ptp(tissue, axis=0).max() > 15
    assert min(table[0].min() for table in tables) >= 225
    np.testing.assert_array_equal(vary_dyes(STANDARD, 0.0, np.random.default_rng(0)).eosin, STANDARD.eosin)


def test_more_stain_is_darker():
    table = colour_table(STANDARD).reshape(256, 256, 3).astype(int)
    assert (np.diff(table, axis=0) <= 0).all()
    assert (np.diff(table, axis=1) <= 0).all()


def test_a_pen_mark_keeps_off_the_tissue():
    tissue = np.zeros((4 * SQUARE, 4 * SQUARE), bool)
    tissue[SQUARE : 3 * SQUARE, SQUARE : 3 * SQUARE] = True
    image = np.full((4 * PATCH, 4 * PATCH, 3), 244, np.uint8)
    before = image.copy()
    add_pen_mark(image, tissue, np.random.default_rng(0))
    marked = (image != before).any(axis=2)
    assert marked.sum() > 5000
    large = tissue.repeat(FINE, axis=0).repeat(FINE, axis=1)
    assert (marked & large).sum() < 0.1 * marked.sum()


def test_fields_are_about_standard_normal():
    generator = np.random.default_rng(0)
    plane = smooth_plane(400, 500, 8, generator)
    assert plane.shape == (400, 500)
    assert abs(plane.mean()) < 0.1
    assert 0.75 < plane.std() < 1.25
    y, x = (generator.uniform(0, 900, 20_000).astype(np.float32) for _ in range(2))
    field = smooth_field(y, x, 7, generator)
    assert abs(field.mean()) < 0.1
    assert 0.75 < field.std() < 1.25
    assert smooth_field(y[:0], x[:0], 7, generator).tolist() == []


def test_the_nearest_two_points_are_those_of_a_search_through_all():
    generator = np.random.default_rng(0)
    points = scatter(200, 300, 40, 0.6, generator)
    y, x = generator.uniform(0, 200, 50).astype(np.float32), generator.uniform(0, 300, 50).astype(np.float32)
    first, second, nearest = find_nearest_two(points, y, x)
    every = np.hypot(points.y.ravel()[None] - y[:, None], points.x.ravel()[None] - x[:, None])
    np.testing.assert_allclose(first, np.sort(every, axis=1)[:, 0], rtol=1e-4)
    np.testing.assert_array_equal(nearest, every.argmin(axis=1))
    # A second neighbour two squares away is possible and rare; it only moves a membrane.
    assert np.mean(np.isclose(second, np.sort(every, axis=1)[:, 1], rtol=1e-4)) > 0.9
