"""What fuzzing found, one small input of each kind."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from builders import make_cohort
from gcemil.bags import guards
from gcemil.bags.fingerprint import content_hash
from gcemil.bags.foreign.tensorfile import read_tensor
from gcemil.bags.foreign.torchmil import read_array
from gcemil.bags.tables import file_fingerprint
from gcemil.errors import InputError


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("a.npy", partial(read_array, key="features")),
        ("a.pt", read_tensor),
        ("a.h5", content_hash),
        ("a.svs", file_fingerprint),
    ],
)
def test_a_pipe_in_place_of_a_file_is_not_waited_for(
    tmp_path: Path, name: str, read: Callable[[Path], object]
) -> None:
    pipe = tmp_path / name
    os.mkfifo(pipe)
    # A reader that waits is let go, so that this test fails and does not hang.
    release = threading.Timer(5, lambda: os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)))
    release.start()
    try:
        with pytest.raises(InputError, match=f"{name} is no regular file, so it is not read"):
            read(pipe)
    finally:
        release.cancel()


def test_validate_looks_for_no_file_outside_the_cohort(tmp_path: Path) -> None:
    cohort = make_cohort(tmp_path / "cohort", n_cases=4)
    table = cohort.folder / "slides.csv"
    first = cohort.slides[0].slide_id
    table.write_text(table.read_text().replace(f"\n{first},", "\n../../outside,"))
    said = [problem.what for problem in guards.validate(cohort.folder) if problem.where == "../../outside"]
    assert any("cannot be a slide id" in what for what in said)
    assert not any("does not exist" in what for what in said)
