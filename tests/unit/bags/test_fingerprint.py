import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest

from builders import make_cohort
from gcemil.bags import fingerprint, store
from gcemil.bags.cohort import Cohort
from gcemil.bags.fingerprint import CACHE, record_cohort
from gcemil.bags.folds import make_folds, write_folds


@pytest.fixture
def cohort(tmp_path):
    made = make_cohort(tmp_path / "cohort", n_cases=20)
    write_folds(made, make_folds(made))
    store.write_anchors(made.folder / "anchors.h5", np.eye(4, dtype=np.float32), list("abcd"))
    rows = np.eye(8, dtype=np.float32)
    store.write(
        made.folder / "anchor_pairs.h5", {"features": rows, "anchor_space": rows[:, :4].copy()}
    )
    return made


@pytest.fixture
def settled(monkeypatch):
    """Files count as settled at once, so that what was hashed is remembered."""
    monkeypatch.setattr(fingerprint, "SETTLED_NS", -(10**15))
    monkeypatch.setattr(fingerprint, "_known_hashes", {})


@pytest.fixture
def reads(monkeypatch):
    """Every file that is read to be hashed."""
    found, digest = [], hashlib.file_digest

    def counted(file, name):
        found.append(Path(file.name).name)
        return digest(file, name)

    monkeypatch.setattr(hashlib, "file_digest", counted)
    return found


def forget(monkeypatch):
    """What a new process knows."""
    monkeypatch.setattr(fingerprint, "_known_hashes", {})


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def zero_middle(path: Path) -> None:
    """Half of a file becomes zero; size and time of writing stay."""
    content, times = bytearray(path.read_bytes()), path.stat()
    quarter = len(content) // 4
    content[quarter : 3 * quarter] = bytes(2 * quarter)
    with path.open("r+b") as file:
        file.write(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def resplit(cohort):
    write_folds(cohort, make_folds(cohort, seed=5))


CHANGES = {
    "cohort.yaml": lambda c: edit(
        c.folder / "cohort.yaml", "patch_size_level0: 512", "patch_size_level0: 256"
    ),
    "the labels": lambda c: edit(c.folder / "slides.csv", "c000,benign", "c000,malignant"),
    "the splits (fold_0.csv and 4 more)": resplit,
    "the anchors (anchors.h5)": lambda c: zero_middle(c.folder / "anchors.h5"),
    "the anchor pairs (anchor_pairs.h5)": lambda c: (c.folder / "anchor_pairs.h5").unlink(),
    "the features of slide 's003_0'": lambda c: zero_middle(c.feature_file("s003_0")),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_is_noticed_and_named(cohort, settled, what):
    before = record_cohort(cohort)
    CHANGES[what](cohort)
    after = record_cohort(Cohort.load(cohort.folder))
    assert before.differences(after) == [what]
    assert before.fingerprint != after.fingerprint


def test_equal_cohorts_have_equal_fingerprints_wherever_they_lie(tmp_path):
    first, second = (make_cohort(tmp_path / name, n_cases=3) for name in "ab")
    assert record_cohort(first).fingerprint == record_cohort(second).fingerprint
    assert record_cohort(first).differences(record_cohort(second)) == []


def test_name_history_sites_and_truth_are_no_part_of_it(cohort):
    before = record_cohort(cohort)
    edit(cohort.folder / "cohort.yaml", "name: test", "name: other\nprovenance: {seen: yesterday}")
    table = cohort.folder / "slides.csv"
    header, *lines = table.read_text().splitlines()
    table.write_text("\n".join([f"{header},site", *(f"{line},here" for line in lines)]))
    store.write(cohort.truth_file("s000_0"), {"evidence": np.zeros(12, np.uint8)})
    assert before.differences(record_cohort(Cohort.load(cohort.folder))) == []


def test_a_file_is_read_once_until_it_is_touched(cohort, settled, reads, monkeypatch):
    first = record_cohort(cohort)
    assert len(reads) == 20 + 2
    reads.clear()
    forget(monkeypatch)
    assert record_cohort(cohort) == first
    assert reads == []
    cohort.feature_file("s003_0").touch()
    forget(monkeypatch)
    assert record_cohort(cohort).fingerprint == first.fingerprint
    assert reads == ["s003_0.h5"]


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b'{"anchors.h5": [1, 2]}'])
def test_a_damaged_cache_is_no_cache(cohort, settled, reads, monkeypatch, content):
    first = record_cohort(cohort)
    (cohort.folder / CACHE).write_bytes(content)
    reads.clear()
    forget(monkeypatch)
    assert record_cohort(cohort) == first
    assert len(reads) == 20 + 2
    kept = json.loads((cohort.folder / CACHE).read_text())["anchors.h5"][-1]
    assert kept == first.parts["anchors"]["anchors.h5"]
