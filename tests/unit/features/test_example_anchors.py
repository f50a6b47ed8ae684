"""Examples kept in a cohort, and which of them a fold may use."""

import numpy as np
import pytest

from builders import PATCH, make_cohort, write_slide
from builders.pools import make_pool
from gcemil.bags import store
from gcemil.bags.cohort import Cohort
from gcemil.bags.examples import EXAMPLES_FILE, choose_for_fold, read_examples
from gcemil.bags.folds import make_folds, read_fold, write_folds
from gcemil.errors import InputError, StoreError
from gcemil.features.example_anchors import ExampleRequest, write_example_anchors

TABLE = "slide,x,y,concept\n"


@pytest.fixture
def cohort(tmp_path):
    made = make_cohort(tmp_path / "cohort", n_cases=15, n_patches=20)
    write_folds(made, make_folds(made, n_folds=3))
    return made


def table_of(cohort, *, slides, concepts=("tumour", "stroma"), per_slide=2):
    """A table that names patches of these slides: the first ones tumour, the next ones stroma."""
    lines = [
        f"{slide},{PATCH * (index + per_slide * number) + 9},9,{concept}"
        for slide in slides
        for number, concept in enumerate(concepts)
        for index in range(per_slide)
    ]
    path = cohort.folder.parent / "examples.csv"
    path.write_text(TABLE + "\n".join(lines) + "\n")
    return path


def all_slides(cohort):
    return [row.slide_id for row in cohort.slides]


def files_of(cohort):
    return {path: path.read_bytes() for path in cohort.folder.rglob("*") if path.is_file()}


def test_examples_are_the_features_of_the_patches_they_name(cohort):
    report = write_example_anchors(
        cohort, ExampleRequest(table_of(cohort, slides=all_slides(cohort)), k=4)
    )
    found = read_examples(cohort.folder / EXAMPLES_FILE, 8)
    assert found.names == ("stroma", "tumour")
    assert found.k == 4
    first = found.slides == all_slides(cohort)[0]
    features = store.read(cohort.feature_file(all_slides(cohort)[0]), "features")
    assert np.allclose(found.features[first], features[:4])
    assert found.concepts[first].tolist() == ["tumour", "tumour", "stroma", "stroma"]
    assert report.per_fold == {index: {"stroma": 4, "tumour": 4} for index in range(3)}
    assert Cohort.load(cohort.folder).card.anchors == "examples"


def test_a_fold_never_takes_an_example_of_a_slide_it_validates_or_tests_on(cohort):
    write_example_anchors(cohort, ExampleRequest(table_of(cohort, slides=all_slides(cohort)), k=50))
    found = read_examples(cohort.folder / EXAMPLES_FILE, 8)
    for index in range(3):
        fold = read_fold(cohort, index)
        held_out = {*fold.slides("val"), *fold.slides("test")}
        chosen, n_held_out = choose_for_fold(found, held_out)
        for rows in chosen.values():
            assert len(rows) == 2 * len(fold.slides("train"))
            assert not held_out & set(found.slides[rows])
        assert n_held_out == 4 * len(held_out)


def test_examples_are_taken_from_as_many_slides_as_there_are(cohort):
    write_example_anchors(cohort, ExampleRequest(table_of(cohort, slides=all_slides(cohort)), k=5))
    found = read_examples(cohort.folder / EXAMPLES_FILE, 8)
    for rows in choose_for_fold(found, ())[0].values():
        assert len(set(found.slides[rows])) == 5


def test_a_fold_without_an_example_of_a_concept_is_refused_and_nothing_written(cohort):
    tested = read_fold(cohort, 1).slides("test")
    path = table_of(cohort, slides=tested)
    before = files_of(cohort)
    with pytest.raises(
        InputError, match="Fold 1: The fold has no example of 'stroma'.*which would leak"
    ):
        write_example_anchors(cohort, ExampleRequest(path))
    assert files_of(cohort) == before


def test_slides_outside_the_cohort_serve_every_fold(cohort, tmp_path):
    features = np.random.default_rng(1).normal(size=(20, 8)).astype(np.float32)
    coords = store.read(cohort.feature_file(all_slides(cohort)[0]), "coords")
    write_slide(tmp_path / "others", "atlas", features, coords)
    path = table_of(cohort, slides=["atlas"])
    with pytest.raises(
        InputError, match="neither in the cohort nor in a folder given with --features"
    ):
        write_example_anchors(cohort, ExampleRequest(path))
    report = write_example_anchors(cohort, ExampleRequest(path, tmp_path / "others"))
    assert report.per_fold == {index: {"stroma": 2, "tumour": 2} for index in range(3)}


def test_a_file_of_labelled_patches_serves_every_fold(cohort, tmp_path):
    make_pool(6, dim=8, classes=("a", "b")).write(tmp_path / "pool.h5")
    report = write_example_anchors(cohort, ExampleRequest(tmp_path / "pool.h5", k=3))
    assert report.per_fold == {index: {"a": 3, "b": 3} for index in range(3)}


def test_masks_in_a_folder_per_concept_are_examples(cohort, tmp_path):
    from PIL import Image

    pixels = np.zeros((3, 8), np.uint8)
    pixels[0, :3] = 255
    (tmp_path / "masks" / "tumour").mkdir(parents=True)
    for slide in all_slides(cohort):
        Image.fromarray(pixels).save(tmp_path / "masks" / "tumour" / f"{slide}_mask.png")
    request = ExampleRequest(tmp_path / "masks", downsample=PATCH, k=3)
    report = write_example_anchors(cohort, request)
    assert report.examples.names == ("tumour",)
    assert len(report.examples.concepts) == 3 * len(all_slides(cohort))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("examples.csv", TABLE, "names no patch"),
        ("examples.csv", TABLE + "s000_0,1e6,1e6,tumour\n", "no patch shows tumour as annotated"),
        ("examples.geojson", "{", "not valid JSON"),
        ("examples.xml", "<a/>", "not an ASAP file"),
        ("examples.txt", "tumour", "holds no examples"),
        ("examples.h5", "tumour", "cannot be read as HDF5"),
    ],
)
def test_a_source_that_names_nothing_is_refused_and_nothing_written(
    cohort, tmp_path, name, content, message
):
    (tmp_path / name).write_text(content)
    before = files_of(cohort)
    with pytest.raises(InputError, match=message):
        write_example_anchors(cohort, ExampleRequest(tmp_path / name))
    assert files_of(cohort) == before


@pytest.mark.parametrize(
    ("changes", "attributes", "message"),
    [
        ({"features": np.ones((2, 3), np.float32)}, {"k": 1, "seed": 0}, "the cohort has width 8"),
        ({"features": np.full((2, 8), np.nan, np.float32)}, {"k": 1, "seed": 0}, "NaN or infinite"),
        ({"features": np.ones((2, 8), np.int32)}, {"k": 1, "seed": 0}, "'features' is int32"),
        (
            {"concepts": np.array([b"a"])},
            {"k": 1, "seed": 0},
            "1 concepts and 2 slides for 2 patches",
        ),
        ({"concepts": np.array([b"a", b" "])}, {"k": 1, "seed": 0}, "or one without a name"),
        ({}, {"k": 0, "seed": 0}, "does not say how many examples"),
        ({}, {}, "does not say how many examples"),
    ],
)
def test_a_damaged_file_of_examples_is_refused(tmp_path, changes, attributes, message):
    whole = {
        "features": np.ones((2, 8), np.float32),
        "concepts": np.array([b"a", b"b"]),
        "slides": np.array([b"s", b"s"]),
    }
    store.write(tmp_path / "e.h5", {**whole, **changes}, attributes)
    with pytest.raises(StoreError, match=message):
        read_examples(tmp_path / "e.h5", 8)
