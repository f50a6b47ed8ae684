import h5py
import numpy as np
import pytest

from gcemil.bags import store
from gcemil.errors import StoreError

ROWS = np.array([0, 3, 4, 9, 63, 64, 99])


def make_features(dtype=np.float32):
    return np.random.default_rng(0).normal(size=(100, 6)).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"chunks": (1, 6)},
        {"chunks": (16, 6)},
        {"chunks": (16, 4)},
        {"chunks": (64, 6), "compression": "gzip"},
        {"chunks": (1, 6), "compression": "gzip", "shuffle": True},
        {"chunks": (1, 6), "fletcher32": True},
    ],
)
def test_every_layout_reads_the_same_rows(tmp_path, dtype, options):
    features = make_features(dtype)
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("features", data=features, **options)
    np.testing.assert_array_equal(store.read(path, "features"), features)
    np.testing.assert_array_equal(store.read(path, "features", ROWS), features[ROWS])
    assert store.read(path, "features", ROWS).dtype == dtype


def test_equal_content_gives_equal_bytes(tmp_path):
    for name in ("a.h5", "b.h5"):
        store.write(tmp_path / name, {"features": make_features()}, {"encoder": "uni"})
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()


@pytest.mark.parametrize("rows", [[2, 1], [1, 1], [-1, 2], [5, 100]])
def test_rows_must_be_sorted_distinct_and_inside(tmp_path, rows):
    store.write(tmp_path / "a.h5", {"features": make_features()})
    with pytest.raises(StoreError, match="sorted, distinct and below 100"):
        store.read(tmp_path / "a.h5", "features", np.array(rows))


def test_repack_keeps_values_and_attributes_and_is_done_once(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.attrs["job"] = "x"
        file.create_dataset("features", data=make_features(), chunks=(1, 6)).attrs["encoder"] = (
            "uni"
        )
        file.create_dataset("coords", data=np.zeros((100, 2), int), chunks=(1, 2))
    assert store.describe(path)["features"].is_slow
    assert store.repack(path)
    assert not store.describe(path)["features"].is_slow
    np.testing.assert_array_equal(store.read(path, "features"), make_features())
    assert store.attributes(path) == {"job": "x"}
    assert store.attributes(path, "features") == {"encoder": "uni"}
    assert not store.repack(path)


PROMPTS = ["gland", "necrosis", "größe"]
FEW_ROWS = np.array([0, 3, 4, 9, 11])


def make_few_features(dtype="<f4"):
    return np.random.default_rng(0).normal(size=(12, 6)).astype(dtype)


# Texts


@pytest.mark.parametrize("libver", ["earliest", "latest"])
@pytest.mark.parametrize(
    "stored",
    [
        np.array(PROMPTS, dtype=h5py.string_dtype()),
        np.array(PROMPTS, dtype=object),
        np.array([text.encode() for text in PROMPTS]),
        np.array([text.encode() for text in PROMPTS], dtype=h5py.string_dtype("utf-8", 12)),
    ],
    ids=["variable", "objects", "fixed", "fixed utf-8"],
)
def test_prompts_are_read_however_they_were_stored(tmp_path, stored, libver):
    with h5py.File(tmp_path / "anchors.h5", "w", libver=libver) as file:
        file["embeddings"], file["prompts"] = np.eye(3, dtype=np.float32), stored
    embeddings, prompts = store.read_anchors(tmp_path / "anchors.h5")
    np.testing.assert_array_equal(embeddings, np.eye(3))
    assert prompts == PROMPTS


@pytest.mark.parametrize("rows", [None, FEW_ROWS])
@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (h5py.string_dtype(), ["a"] * 12),
        (h5py.vlen_dtype(np.float32), [np.ones(2, np.float32)] * 12),
        (h5py.ref_dtype, [h5py.Reference()] * 12),
        (np.dtype([("x", "f4"), ("y", "f4")]), np.zeros(12, [("x", "f4"), ("y", "f4")])),
        (np.dtype("c8"), np.ones(12, "c8")),
        (np.dtype("S4"), np.array([b"abc"] * 12)),
    ],
    ids=["texts", "lists", "references", "records", "complex", "bytes"],
)
def test_what_is_not_numbers_is_refused_and_crashes_nothing(tmp_path, kind, values, rows):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        dataset = file.create_dataset("features", (12,), kind)
        for index, value in enumerate(values):
            dataset[index] = value
    with pytest.raises(StoreError, match=r"a\.h5: 'features' holds .*, not real numbers"):
        store.read(tmp_path / "a.h5", "features", rows)


# Layouts


@pytest.mark.parametrize("dtype", [">f4", ">f2", ">f8", "<f8"])
@pytest.mark.parametrize(
    "options", [{}, {"chunks": (5, 6)}, {"chunks": (5, 6), "compression": "gzip"}]
)
def test_any_byte_order_is_read_as_this_machine_s(tmp_path, dtype, options):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("features", data=make_few_features(dtype), **options)
    found = store.read(tmp_path / "a.h5", "features")
    assert found.dtype.isnative
    np.testing.assert_array_equal(found, make_few_features(dtype))
    np.testing.assert_array_equal(
        store.read(tmp_path / "a.h5", "features", FEW_ROWS), make_few_features(dtype)[FEW_ROWS]
    )


def test_values_never_written_are_the_fill_value(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("whole", (12, 6), "f4", fillvalue=2)
        file.create_dataset("chunked", (12, 6), "f4", chunks=(4, 6), fillvalue=2)[:4] = 1
    np.testing.assert_array_equal(store.read(tmp_path / "a.h5", "whole"), np.full((12, 6), 2))
    found = store.read(tmp_path / "a.h5", "chunked", np.array([3, 4]))
    np.testing.assert_array_equal(found, [[1] * 6, [2] * 6])


def test_a_file_cut_anywhere_is_refused(tmp_path):
    path = tmp_path / "a.h5"
    store.write(path, {"features": make_few_features(), "coords": np.ones((12, 2), np.int64)})
    content = path.read_bytes()
    for length in range(0, len(content), 37):
        path.write_bytes(content[:length])
        with pytest.raises(StoreError, match=r"a\.h5 cannot be read as HDF5"):
            store.read(path, "features")


# Other places

READERS = {
    "read": lambda path: store.read(path, "features"),
    "describe": store.describe,
    "attributes": lambda path: store.attributes(path, "features"),
    "has": lambda path: store.has(path, "features"),
}


def soft_link(file, other):
    file["elsewhere"] = make_few_features()
    file["features"] = h5py.SoftLink("/elsewhere")


def external_link(file, other):
    with h5py.File(other, "w") as secret:
        secret["features"] = make_few_features()
    file["features"] = h5py.ExternalLink(str(other), "/features")


def external_data(file, other):
    other.write_bytes(bytes(288))
    file.create_dataset("features", (12, 6), "f4", external=[(str(other), 0, 288)])


def virtual_data(file, other):
    with h5py.File(other, "w") as secret:
        secret["features"] = make_few_features()
    layout = h5py.VirtualLayout((12, 6), "f4")
    layout[:] = h5py.VirtualSource(str(other), "features", (12, 6))
    file.create_virtual_dataset("features", layout)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("plant", [soft_link, external_link, external_data, virtual_data])
def test_no_reader_follows_a_file_to_another_place(tmp_path, plant, reader):
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        plant(file, tmp_path / "other")
    with pytest.raises(StoreError, match=r"a\.h5: 'features' .* never followed. Copy"):
        READERS[reader](tmp_path / "a.h5")
