"""Folders of labelled images as pools of features."""

import numpy as np
import pytest
from PIL import Image

from builders.encoders import colour_spec
from gcemil.errors import InputError, UsageError
from gcemil.features.encoders import prepare_encoder
from gcemil.features.image_pool import encode_pool, find_images, patients_of, read_square


def colour_encoder(**options):
    return prepare_encoder("colour", colour_spec(8, **options), device="cpu")


def write_image(path, colour, size=(10, 10)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)
    return path


@pytest.fixture
def folder(tmp_path):
    write_image(tmp_path / "patches" / "benign" / "SOB" / "x-14-1-001.png", (255, 0, 0))
    write_image(tmp_path / "patches" / "benign" / "y-14-2-001.tif", (255, 0, 0))
    write_image(tmp_path / "patches" / "malignant" / "x-14-3-001.jpg", (0, 0, 255))
    (tmp_path / "patches" / "malignant" / "notes.txt").write_text("no image")
    return tmp_path / "patches"


def test_the_folder_at_the_top_is_the_class(folder):
    assert [*find_images(folder).values()] == ["benign", "benign", "malignant"]


def test_images_become_features_with_labels_and_patients(folder):
    pool = encode_pool(folder, colour_encoder(), patient_pattern=r"-(\d+-\d+)-")
    assert pool.labels.tolist() == ["benign", "benign", "malignant"]
    assert pool.patients.tolist() == ["14-1", "14-2", "14-3"]
    assert pool.features.dtype == np.float16
    assert np.allclose(pool.features, [[1, 0, 0], [1, 0, 0], [0, 0, 1]], atol=0.02)
    assert pool.encoder == "colour"


def test_an_image_that_is_not_square_is_cut_to_its_middle(tmp_path):
    pixels = np.zeros((10, 30, 3), np.uint8)
    pixels[:, 10:20] = 255
    Image.fromarray(pixels).save(tmp_path / "wide.png")
    assert (read_square(tmp_path / "wide.png", 4) == 255).all()


@pytest.mark.parametrize(
    ("pattern", "error", "message"),
    [
        ("(", UsageError, "not a regular expression"),
        ("x", UsageError, "one group"),
        (r"x-(\d+)-\d+-", InputError, "does not match the pattern"),
    ],
)
def test_a_pattern_that_names_no_patient_is_refused(folder, pattern, error, message):
    with pytest.raises(error, match=message):
        patients_of([*find_images(folder)], folder, pattern)


def test_features_that_do_not_fit_sixteen_bits_are_refused(folder):
    with pytest.raises(InputError, match="do not fit 16 bits"):
        encode_pool(folder, colour_encoder(scale=1e6))
