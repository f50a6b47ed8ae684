import gc

import h5py
import numpy as np
import pytest

from gcemil.bags import arrays, store
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


@pytest.mark.parametrize("rows", [1, 16])
def test_rows_that_were_never_written_are_what_the_file_says_they_are(tmp_path, rows):
    path = tmp_path / "holes.h5"
    with h5py.File(path, "w") as file:
        features = file.create_dataset("features", (40, 6), np.float32, chunks=(rows, 6), fillvalue=7.0)
        features[:20] = 1.0
    found = store.read(path, "features")
    assert found[:20].tolist() == [[1.0] * 6] * 20
    assert found[32:].tolist() == [[7.0] * 6] * 8


def test_blocks_of_a_chunked_file_are_its_rows_in_order(tmp_path, monkeypatch):
    path = tmp_path / "chunked.h5"
    values = np.arange(90.0, dtype=np.float32).reshape(30, 3)
    with h5py.File(path, "w") as file:
        # Written backwards, so that the chunks do not lie in the order of their rows.
        features = file.create_dataset("features", values.shape, values.dtype, chunks=(4, 3))
        for start in reversed(range(0, 30, 4)):
            features[start : start + 4] = values[start : start + 4]
    monkeypatch.setattr("gcemil.bags.hdf5.BLOCK_BYTES", 100)
    blocks = list(store.read_blocks(path, "features"))
    assert len(blocks) == 4
    assert np.concatenate(blocks).tolist() == values.tolist()


def test_equal_content_gives_equal_bytes(tmp_path):
    for name in ("a.h5", "b.h5"):
        store.write(tmp_path / name, {"features": make_features()}, {"encoder": "uni"})
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()


def test_a_failed_write_leaves_neither_a_file_nor_a_rest(tmp_path):
    with pytest.raises(TypeError, match="[Oo]bject dtype"):
        store.write(tmp_path / "a.h5", {"features": np.array([object()])})
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def small_disk():
    """No file of this process may grow beyond 4 KB: the system refuses the rest, as it does when a disk is full."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("rows", [700, 100_000])
def test_a_disk_without_room_is_a_sentence_and_the_old_file_stays(tmp_path, small_disk, capfd, rows):
    path = tmp_path / "a.h5"
    store.write(path, {"features": np.zeros((2, 2), np.float32)})
    before = path.read_bytes()
    many = {"features": np.ones((rows, 2), np.float32), "coords": np.ones((rows, 2), np.int64)}
    with pytest.raises(StoreError, match=r"a\.h5 cannot be written \(File too large\)\. Free some space"):
        store.write(path, many, {"encoder": "uni"})
    gc.collect()
    assert capfd.readouterr() == ("", "")
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_repacking_without_room_leaves_the_file_as_it_was(tmp_path, small_disk):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver="latest") as file:
        file.create_dataset("features", data=np.ones((4000, 2), np.float32), compression="gzip")
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"a\.h5 cannot be written \(File too large\)"):
        store.repack(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("is_lost", "message"),
    [
        (lambda content: len(content) == 100 * 6 * 4, "'features' was not stored as it was given"),
        (lambda content: len(content) == 100 * 2 * 8, "'coords' was not stored as it was given"),
        (lambda content: len(content) < 50, "cannot be written"),
    ],
)
def test_a_write_that_the_disk_lost_is_noticed_before_the_file_is_replaced(
    tmp_path, monkeypatch, is_lost, message
):
    class Forgetful(store._OutputFile):
        def write(self, content):
            return len(content) if is_lost(content) else super().write(content)

    path = tmp_path / "a.h5"
    store.write(path, {"features": np.zeros((2, 2), np.float32)})
    before = path.read_bytes()
    monkeypatch.setattr(store, "_OutputFile", Forgetful)
    with pytest.raises(StoreError, match=message):
        store.write(path, {"features": make_features(), "coords": np.ones((100, 2), np.int64)})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_writing_into_a_folder_that_is_a_file_says_so(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises((StoreError, OSError), match="file"):
        store.write(tmp_path / "file" / "a.h5", {"features": make_features()})


def test_a_truncated_file_is_named_with_the_remedy(tmp_path):
    path = tmp_path / "a.h5"
    store.write(path, {"features": make_features()})
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(StoreError, match=r"a\.h5 cannot be read as HDF5.*extract it again"):
        store.read(path, "features")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(StoreError, match=r"gone\.h5 does not exist"):
        store.read(tmp_path / "gone.h5", "features")


def test_a_missing_dataset_lists_what_there_is(tmp_path):
    store.write(tmp_path / "a.h5", {"feats": make_features()})
    with pytest.raises(StoreError, match="no dataset 'features', only: feats"):
        store.read(tmp_path / "a.h5", "features")


@pytest.mark.parametrize("rows", [[2, 1], [1, 1], [-1, 2], [5, 100]])
def test_rows_must_be_sorted_distinct_and_inside(tmp_path, rows):
    store.write(tmp_path / "a.h5", {"features": make_features()})
    with pytest.raises(StoreError, match="sorted, distinct and below 100"):
        store.read(tmp_path / "a.h5", "features", np.array(rows))


def test_a_link_to_another_file_is_never_followed(tmp_path):
    store.write(tmp_path / "secret.h5", {"features": make_features()})
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["features"] = h5py.ExternalLink(str(tmp_path / "secret.h5"), "/features")
    with pytest.raises(StoreError, match="never followed"):
        store.read(tmp_path / "a.h5", "features")


def test_data_stored_in_another_file_is_never_followed(tmp_path):
    (tmp_path / "raw").write_bytes(bytes(24))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("features", (3, 2), "f4", external=[(str(tmp_path / "raw"), 0, 24)])
    with pytest.raises(StoreError, match="never followed"):
        store.read(tmp_path / "a.h5", "features")


def test_repack_keeps_values_and_attributes_and_is_done_once(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.attrs["job"] = "x"
        file.create_dataset("features", data=make_features(), chunks=(1, 6)).attrs["encoder"] = "uni"
        file.create_dataset("coords", data=np.zeros((100, 2), int), chunks=(1, 2))
    assert store.describe(path)["features"].is_slow
    assert store.repack(path)
    assert not store.describe(path)["features"].is_slow
    np.testing.assert_array_equal(store.read(path, "features"), make_features())
    assert store.attributes(path) == {"job": "x"}
    assert store.attributes(path, "features") == {"encoder": "uni"}
    assert not store.repack(path)


def test_an_empty_slide_is_read_as_zero_rows(tmp_path):
    store.write(tmp_path / "a.h5", {"features": np.empty((0, 6), np.float32)})
    assert store.read(tmp_path / "a.h5", "features").shape == (0, 6)


def test_anchors_round_trip(tmp_path):
    embeddings = np.eye(3, dtype=np.float32)
    arrays.write_anchors(tmp_path / "anchors.h5", embeddings, ["gland", "necrosis", "größe"])
    read, prompts = arrays.read_anchors(tmp_path / "anchors.h5")
    np.testing.assert_array_equal(read, embeddings)
    assert prompts == ["gland", "necrosis", "größe"]


def test_a_bank_with_too_few_prompts_is_refused(tmp_path):
    arrays.write_anchors(tmp_path / "anchors.h5", np.eye(3), ["gland"])
    with pytest.raises(StoreError, match="1 prompts for 3 embeddings"):
        arrays.read_anchors(tmp_path / "anchors.h5")
