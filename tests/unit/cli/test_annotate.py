"""gcemil annotate: what a user types to make annotations the truth of a cohort."""

import json

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from builders import PATCH, make_cohort
from gcemil.bags import store
from gcemil.bags.validate import select_errors, validate
from gcemil.cli.main import app
from gcemil.errors import CohortError, InputError, UsageError


@pytest.fixture
def cohort(tmp_path):
    """Slides s000 and s002 normal, s001 and s003 tumor; 16 patches each, 8 in a row."""
    return make_cohort(tmp_path / "cohort", n_cases=4, n_patches=16, classes=("normal", "tumor"))


@pytest.fixture
def annotations(tmp_path):
    """Both tumour slides are outlined: all of their first patch."""
    folder = tmp_path / "annotations"
    folder.mkdir()
    for name in ("s001_0", "s003_0"):
        (folder / f"{name}.xml").write_text(outline(PATCH))
    return folder


def outline(side, group="Tumor"):
    corners = enumerate([(0, 0), (side, 0), (side, side), (0, side)])
    vertices = "".join(
        f'<Coordinate Order="{order}" X="{x}" Y="{y}"/>' for order, (x, y) in corners
    )
    return (
        f'<ASAP_Annotations><Annotations><Annotation Name="one" Type="Polygon" PartOfGroup="{group}">'
        f"<Coordinates>{vertices}</Coordinates></Annotation></Annotations></ASAP_Annotations>"
    )


def run(*arguments):
    return CliRunner().invoke(app, ["annotate", *map(str, arguments)])


def evidence_of(cohort, slide_id):
    return np.flatnonzero(store.read(cohort.truth_file(slide_id), "evidence")).tolist()


def test_outlines_become_truth_and_the_negative_class_needs_no_file(cohort, annotations):
    result = run(cohort.folder, annotations, "--negative-class", "normal")
    assert result.exit_code == 0, result.output
    assert "2 slides annotated, 2 without a lesion, 0 without truth" in result.output
    assert [evidence_of(cohort, f"s00{k}_0") for k in range(4)] == [[], [0], [], [0]]
    assert not select_errors(validate(cohort.folder))


def test_slides_of_which_nothing_is_known_are_listed_and_the_command_exits_with_1(
    cohort, annotations
):
    result = run(cohort.folder, annotations, "--json")
    assert result.exit_code == 1
    found = json.loads(result.output)
    assert (found["annotated"], found["missing"]) == (["s001_0", "s003_0"], ["s000_0", "s002_0"])


def test_a_group_of_another_name_is_given_its_meaning(cohort, annotations):
    (annotations / "s001_0.xml").write_text(outline(PATCH, group="carcinoma"))
    refused = run(cohort.folder, annotations, "--negative-class", "normal")
    assert isinstance(refused.exception, InputError)
    assert "group 'carcinoma' is neither tumour nor exclusion" in str(refused.exception)
    named = run(
        cohort.folder,
        annotations,
        "--negative-class",
        "normal",
        "--group",
        "carcinoma=tumour",
        "--force",
    )
    assert named.exit_code == 0, named.output
    assert evidence_of(cohort, "s001_0") == [0]


def test_masks_take_their_scale_and_their_values_from_the_options(cohort, annotations):
    values = np.zeros((2, 8), dtype=np.uint8)
    values[1, 3] = 2
    Image.fromarray(values).save(annotations / "s001_0_mask.png")
    (annotations / "s001_0.xml").unlink()
    common = (cohort.folder, annotations, "--negative-class", "normal", "--force")
    assert "Give downsample" in str(run(*common).exception)
    assert "not only 0 and 255" in str(run(*common, "--downsample", PATCH).exception)
    assert run(*common, "--downsample", PATCH, "--tumour-values", "2").exit_code == 0
    assert evidence_of(cohort, "s001_0") == [11]


def test_the_feature_file_tells_patch_size_and_pixel_size_where_scanners_differ(
    cohort, annotations
):
    path = cohort.feature_file("s001_0")
    datasets = {name: store.read(path, name) for name in ("features", "coords")}
    half = {"patch_size_level0": PATCH // 2, "level0_mpp": 0.25}
    store.write(path, datasets, dataset_attributes={"coords": half})
    card = cohort.folder / "cohort.yaml"
    lines = [line for line in card.read_text().splitlines() if "patch_size_level0" not in line]
    card.write_text("\n".join(lines))
    # An outline beyond the patch's own half of its cell is not in the patch.
    (annotations / "s001_0.xml").write_text(outline(PATCH // 4))
    assert run(cohort.folder, annotations, "--negative-class", "normal").exit_code == 0
    truth = cohort.truth_file("s001_0")
    assert store.read(truth, "overlap")[0] == pytest.approx(0.25)
    assert store.attributes(truth)["microns_per_pixel"] == 0.25
    assert "microns_per_pixel" not in store.attributes(cohort.truth_file("s003_0"))
    assert (
        run(
            cohort.folder, annotations, "--negative-class", "normal", "--mpp", 0.5, "--force"
        ).exit_code
        == 0
    )
    assert store.attributes(truth)["microns_per_pixel"] == 0.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--group", "carcinoma"),
            "A group is written name=tumour or name=exclusion, got 'carcinoma'",
        ),
        (("--group", "=tumour"), "got '=tumour'"),
        (("--group", "a=benign"), "got 'a=benign'"),
        (("--tumour-values", "1,x"), "whole numbers such as 2 or 1,2; got '1,x'"),
        (("--negative-class", "benign"), "'benign' is not a class"),
        (("--min-overlap", "0"), "lies in"),
    ],
)
def test_bad_options_are_refused_before_anything_is_written(cohort, annotations, options, message):
    result = run(cohort.folder, annotations, *options)
    assert isinstance(result.exception, UsageError)
    assert message in str(result.exception)
    assert not (cohort.folder / "truth").exists()


def test_a_damaged_file_is_named_and_existing_truth_stays(cohort, annotations):
    common = (cohort.folder, annotations, "--negative-class", "normal")
    assert run(*common).exit_code == 0
    existing = run(*common, "--min-overlap", 0.5).exception
    assert isinstance(existing, CohortError)
    assert "Add --force to replace them" in str(existing)
    (annotations / "s003_0.xml").write_text("<ASAP_Annotations>")
    assert "s003_0.xml is not valid XML" in str(run(*common, "--force").exception)
    assert evidence_of(cohort, "s003_0") == [0]


def qupath_object(name, *rings, kind="Polygon"):
    coordinates = [[[x, y] for x, y in [*ring, ring[0]]] for ring in rings]
    classification = None if name is None else {"name": name, "color": [200, 0, 0]}
    return {
        "type": "Feature",
        "geometry": {"type": kind, "coordinates": coordinates},
        "properties": {"objectType": "annotation", "classification": classification},
    }


def cells(column, row, columns=1, rows=1):
    """The outline of so many patches from this cell on."""
    left, top, right, bottom = (
        PATCH * value for value in (column, row, column + columns, row + rows)
    )
    return [(left, top), (right, top), (right, bottom), (left, bottom)]


def draw(folder, *objects):
    for path in folder.glob("s001_0*"):
        path.unlink()
    (folder / "s001_0.geojson").write_text(
        json.dumps({"type": "FeatureCollection", "features": objects})
    )


def point(name, x, y):
    found = qupath_object(name)
    return {**found, "geometry": {"type": "Point", "coordinates": [x, y]}}


def test_classes_of_qupath_are_evidence_and_what_was_left_out_is_counted(cohort, annotations):
    line = {
        **qupath_object("Tumor"),
        "geometry": {"type": "LineString", "coordinates": [[0, 0], [9, 9]]},
    }
    draw(
        annotations,
        qupath_object("Tumor", cells(0, 0)),
        qupath_object("Necrosis", cells(2, 0)),
        qupath_object("Ignore*", cells(4, 0)),
        qupath_object(None, cells(5, 0)),
        point("Mitosis", 6.5 * PATCH, 10),
        line,
    )
    result = run(cohort.folder, annotations, "--negative-class", "normal")
    assert result.exit_code == 0, result.output
    assert evidence_of(cohort, "s001_0") == [0, 2, 6]
    assert "s001_0: evidence: 'Tumor' (2), 'Necrosis' (1), 'Mitosis' (1)." in result.output
    assert "s001_0: left out: 'Ignore*' (1)." in result.output
    assert "s001_0: 1 objects without a classification left out." in result.output
    assert "s001_0: 1 objects of kind 'LineString' left out." in result.output


@pytest.mark.parametrize(
    ("groups", "evidence"),
    [
        (("Tumor=tumour",), [0, 1, 2]),
        (("Necrosis=exclusion",), [0, 2, 5]),
        (("Tumor=tumour", "Necrosis=exclusion"), [0, 2]),
        (("unclassified=tumour",), [7]),
        (("Ignore*=tumour",), [5]),
    ],
)
def test_which_classes_count_is_an_option(cohort, annotations, groups, evidence):
    draw(
        annotations,
        qupath_object("Tumor", cells(0, 0, columns=3)),
        qupath_object("Necrosis", cells(1, 0)),
        qupath_object("Other" if "Ignore*=tumour" not in groups else "Ignore*", cells(5, 0)),
        qupath_object(None, cells(7, 0)),
    )
    options = [word for group in groups for word in ("--group", group)]
    result = run(cohort.folder, annotations, "--negative-class", "normal", *options)
    assert result.exit_code == 0, result.output
    assert evidence_of(cohort, "s001_0") == evidence


def test_geojson_counts_from_the_part_of_the_slide_that_qupath_shows(cohort, annotations):
    path = cohort.feature_file("s001_0")
    values = {name: store.read(path, name) for name in ("features", "coords")}
    store.write(path, values, {"bounds_x": 2 * PATCH, "bounds_y": PATCH})
    draw(annotations, qupath_object("Tumor", cells(0, 0)))
    assert run(cohort.folder, annotations, "--negative-class", "normal").exit_code == 0
    assert evidence_of(cohort, "s001_0") == [10]


def test_damaged_geojson_is_one_sentence_and_leaves_no_truth(cohort, annotations):
    draw(annotations, qupath_object("Tumor", [(0, 0)]))
    refused = run(cohort.folder, annotations, "--negative-class", "normal")
    assert isinstance(refused.exception, InputError)
    assert "s001_0.geojson: object 0 has a geometry that cannot be read" in str(refused.exception)
    assert not list((cohort.folder / "truth").glob("*.h5"))
