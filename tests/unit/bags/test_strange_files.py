"""HDF5 files that others wrote, or made to do harm: read alike whatever their layout, or refused with a sentence."""

import os
import tracemalloc

import h5py
import numpy as np
import pytest

from gcemil.bags import arrays, hdf5, store
from gcemil.errors import StoreError

PROMPTS = ["gland", "necrosis", "größe"]
ROWS = np.array([0, 3, 4, 9, 11])
FREE = hdf5.FREE_BYTES // 4
"""So many float32 are read whatever a file claims."""


def make_features(dtype="<f4"):
    return np.random.default_rng(0).normal(size=(12, 6)).astype(dtype)


def write_plain(path, **datasets):
    with h5py.File(path, "w") as file:
        for name, values in datasets.items():
            file[name] = values
    return path


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
    embeddings, prompts = arrays.read_anchors(tmp_path / "anchors.h5")
    np.testing.assert_array_equal(embeddings, np.eye(3))
    assert prompts == PROMPTS


@pytest.mark.parametrize("kind", [h5py.string_dtype("ascii"), h5py.string_dtype("ascii", 8), "S8"])
def test_ascii_prompts_are_read(tmp_path, kind):
    path = write_plain(tmp_path / "a.h5", prompts=np.array([b"gland", b"necrosis"], dtype=kind))
    assert store.read_texts(path, "prompts") == ["gland", "necrosis"]


def test_prompts_in_compressed_chunks_are_read(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        kind = h5py.string_dtype()
        file.create_dataset("prompts", data=PROMPTS, dtype=kind, chunks=(2,), compression="gzip")
    assert store.read_texts(tmp_path / "a.h5", "prompts") == PROMPTS


def test_texts_that_are_not_utf_8_are_refused(tmp_path):
    path = write_plain(tmp_path / "a.h5", prompts=np.array([b"\xff\xfe"], dtype="S2"))
    with pytest.raises(StoreError, match=r"a\.h5 cannot be read as HDF5 .*decode"):
        store.read_texts(path, "prompts")


def test_numbers_are_no_texts(tmp_path):
    path = write_plain(tmp_path / "a.h5", prompts=np.arange(3))
    with pytest.raises(StoreError, match=r"'prompts' is int64 of shape \(3,\), not a list of texts"):
        store.read_texts(path, "prompts")


@pytest.mark.parametrize("rows", [None, ROWS])
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


def test_a_dataset_of_nothing_is_refused(tmp_path):
    path = write_plain(tmp_path / "a.h5", features=h5py.Empty("f4"))
    with pytest.raises(StoreError, match="'features' holds nothing, not real numbers"):
        store.read(path, "features")


# Layouts


@pytest.mark.parametrize("dtype", [">f4", ">f2", ">f8", "<f8"])
@pytest.mark.parametrize("options", [{}, {"chunks": (5, 6)}, {"chunks": (5, 6), "compression": "gzip"}])
def test_any_byte_order_is_read_as_this_machine_s(tmp_path, dtype, options):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("features", data=make_features(dtype), **options)
    found = store.read(tmp_path / "a.h5", "features")
    assert found.dtype.isnative
    np.testing.assert_array_equal(found, make_features(dtype))
    np.testing.assert_array_equal(store.read(tmp_path / "a.h5", "features", ROWS), make_features(dtype)[ROWS])


def test_big_endian_whole_numbers_are_read(tmp_path):
    path = write_plain(tmp_path / "a.h5", coords=np.array([[1, 2], [513, 70_000]], ">i4"))
    np.testing.assert_array_equal(arrays.read_coords(path), [[1, 2], [513, 70_000]])


@pytest.mark.parametrize("shape", [(0, 6), (6, 0), (0, 0), (0,)])
@pytest.mark.parametrize("is_chunked", [False, True])
def test_datasets_without_values_keep_their_shape(tmp_path, shape, is_chunked):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        options = {"chunks": (4,) * len(shape), "maxshape": (None,) * len(shape)} if is_chunked else {}
        file.create_dataset("features", shape, "f4", **options)
    assert store.read(tmp_path / "a.h5", "features").shape == shape
    assert sum(len(block) for block in store.read_blocks(tmp_path / "a.h5", "features")) == shape[0]


def test_values_never_written_are_the_fill_value(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("whole", (12, 6), "f4", fillvalue=2)
        file.create_dataset("chunked", (12, 6), "f4", chunks=(4, 6), fillvalue=2)[:4] = 1
    np.testing.assert_array_equal(store.read(tmp_path / "a.h5", "whole"), np.full((12, 6), 2))
    found = store.read(tmp_path / "a.h5", "chunked", np.array([3, 4]))
    np.testing.assert_array_equal(found, [[1] * 6, [2] * 6])


def test_a_file_cut_anywhere_is_refused(tmp_path):
    path = tmp_path / "a.h5"
    store.write(path, {"features": make_features(), "coords": np.ones((12, 2), np.int64)})
    content = path.read_bytes()
    for length in range(0, len(content), 37):
        path.write_bytes(content[:length])
        with pytest.raises(StoreError, match=r"a\.h5 (cannot be read as HDF5|is truncated)"):
            store.read(path, "features")


def test_a_dataset_that_ends_beyond_the_file_is_refused(tmp_path):
    path = write_plain(tmp_path / "a.h5", features=np.ones((1000, 6), np.float32))
    content = bytearray(path.read_bytes())
    kept = len(content) - 6000
    # The old format says without a checksum where the file ends, so the library can be made to believe it.
    content[40:48] = kept.to_bytes(8, "little")
    path.write_bytes(content[:kept])
    for rows in (None, np.array([0, 999])):
        with pytest.raises(StoreError, match=r"a\.h5 .*truncated.* again"):
            store.read(path, "features", rows)


def test_a_file_that_shrinks_while_it_is_read_is_noticed(tmp_path, monkeypatch):
    path = tmp_path / "a.h5"
    store.write(path, {"features": np.ones((1000, 6), np.float32)})
    monkeypatch.setattr(hdf5, "BLOCK_BYTES", 2400)
    blocks = store.read_blocks(path, "features")
    assert next(blocks).shape == (100, 6)
    os.truncate(path, 4000)
    with pytest.raises(StoreError, match=r"a\.h5 (is truncated|became shorter while it was read)"):
        list(blocks)


# Bombs


def test_a_compression_bomb_is_refused_before_it_is_unpacked(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        shape = (4 * FREE // 1024, 1024)
        dataset = file.create_dataset("features", shape, "f4", chunks=(1024, 1024), compression="gzip")
        dataset[:1024] = 0
    tracemalloc.start()
    for read in (lambda path, name: next(store.read_blocks(path, name)), store.read):
        with pytest.raises(StoreError, match=r"'features' of shape .* claims [\d,]+ bytes, but the file has"):
            read(tmp_path / "a.h5", "features")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 * 2**20


def test_a_sparse_file_is_no_larger_than_its_data(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver="latest") as file:
        file.create_dataset("features", (4 * FREE // 1024, 1024), "f4")[-1] = 1
    if path.stat().st_blocks * 512 > path.stat().st_size // 2:
        pytest.skip("this file system has no holes")
    with pytest.raises(StoreError, match="made to exhaust memory"):
        store.read(path, "features")


def test_one_giant_chunk_is_refused(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        file.create_dataset("features", (4, 6), "f4", chunks=(FREE, 6), maxshape=(None, 6))
    with pytest.raises(StoreError, match=r"claims [\d,]+ bytes"):
        store.read(tmp_path / "a.h5", "features")


def test_a_million_chunks_that_were_never_written_are_refused(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        file.create_dataset("region", (2**20, 1), "u1", chunks=(1, 1), fillvalue=0)
    with pytest.raises(StoreError, match="claims 1,048,576 chunks, but the file has"):
        store.read(tmp_path / "a.h5", "region")


def test_a_shape_beyond_all_memory_is_refused(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        file.create_dataset("features", (2**40, 1024), "f4", chunks=(64, 1024))
    assert store.describe(tmp_path / "a.h5")["features"].shape == (2**40, 1024)
    with pytest.raises(StoreError, match="made to exhaust memory"):
        store.read(tmp_path / "a.h5", "features", np.array([0, 5]))


def test_a_text_that_stands_a_million_times_is_refused(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        file.create_dataset(
            "prompts", (20,), h5py.string_dtype("ascii", 100_000), chunks=(20,), compression="gzip"
        )[:] = b"x" * 100_000
    with pytest.raises(StoreError, match="'prompts' holds more than 1,048,576 letters"):
        store.read_texts(tmp_path / "a.h5", "prompts")


def test_a_huge_attribute_is_refused(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        file.attrs["notes"] = np.zeros(hdf5.MAX_ATTRIBUTE_BYTES // 8 + 1)
    with pytest.raises(StoreError, match=r"attribute 'notes' of shape \(131073,\) is too large"):
        store.attributes(tmp_path / "a.h5")


# Other places

READERS = {
    "read": lambda path: store.read(path, "features"),
    "rows": lambda path: store.read(path, "features", ROWS),
    "blocks": lambda path: list(store.read_blocks(path, "features")),
    "texts": lambda path: store.read_texts(path, "features"),
    "describe": store.describe,
    "attributes": lambda path: store.attributes(path, "features"),
    "has": lambda path: store.has(path, "features"),
    "beside": lambda path: store.read_beside(path, "features", "coords"),
    "repack": store.repack,
}


def soft_link(file, other):
    file["elsewhere"] = make_features()
    file["features"] = h5py.SoftLink("/elsewhere")


def external_link(file, other):
    with h5py.File(other, "w") as secret:
        secret["features"] = make_features()
        secret["features"].attrs["patch_size"] = 512
    file["features"] = h5py.ExternalLink(str(other), "/features")


def dangling_link(file, other):
    file["features"] = h5py.SoftLink("/nowhere")


def external_data(file, other):
    other.write_bytes(bytes(288))
    file.create_dataset("features", (12, 6), "f4", external=[(str(other), 0, 288)])


def virtual_data(file, other):
    with h5py.File(other, "w") as secret:
        secret["features"] = make_features()
    layout = h5py.VirtualLayout((12, 6), "f4")
    layout[:] = h5py.VirtualSource(str(other), "features", (12, 6))
    file.create_virtual_dataset("features", layout)


def link_to_a_pipe(file, other):
    os.mkfifo(other)
    file["features"] = h5py.ExternalLink(str(other), "/features")


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    "plant", [soft_link, external_link, dangling_link, external_data, virtual_data, link_to_a_pipe]
)
def test_no_reader_follows_a_file_to_another_place(tmp_path, plant, reader):
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        plant(file, tmp_path / "other")
    with pytest.raises(StoreError, match=r"a\.h5: 'features' .* never followed. Copy"):
        READERS[reader](tmp_path / "a.h5")


def test_a_link_on_the_way_to_a_dataset_is_not_followed(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        file["there/features"] = make_features()
        file["group"] = h5py.SoftLink("/there")
    assert store.read(tmp_path / "a.h5", "there/features").shape == (12, 6)
    with pytest.raises(StoreError, match="'group' is a link to another place"):
        store.read(tmp_path / "a.h5", "group/features")


@pytest.mark.parametrize("name", ["..", ".", "/", "//features", "features/..", "", "../features"])
def test_paths_as_names_lead_nowhere(tmp_path, name):
    path = write_plain(tmp_path / "a.h5", features=make_features())
    assert not store.has(path, name)


def test_a_pipe_in_place_of_a_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a.h5")
    with pytest.raises(StoreError, match=r"a\.h5 is no regular file, so it is not read"):
        store.read(tmp_path / "a.h5", "features")


def test_a_filter_that_is_not_installed_is_named(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plan.set_chunk((4, 6))
        plan.set_filter(32_099, h5py.h5z.FLAG_OPTIONAL)
        space = h5py.h5s.create_simple((12, 6))
        h5py.h5d.create(file.id, b"features", h5py.h5t.IEEE_F32LE, space, plan)
    with pytest.raises(StoreError, match="a filter that is not installed here"):
        store.read(tmp_path / "a.h5", "features")
