"""Tables and features as people have them: columns of any name, a sheet, broken slides, thumbnails, measurements."""

import h5py
import numpy as np
import pandas as pd
import pytest
import yaml
from PIL import Image

from builders.commands import answer, refused, succeeded
from builders.foreign import grid, trident_features, write_table
from gcemil.bags.cohort import Cohort
from gcemil.errors import CohortError
from gcemil.exports.overlay import read_own_thumbnail


@pytest.fixture
def job(tmp_path):
    """A TRIDENT job of eight slides."""
    for number in range(8):
        trident_features(tmp_path / "job", f"S{number}", grid(6, 512))
    return tmp_path / "job"


@pytest.fixture
def labels(tmp_path):
    rows = [f"S{n},P{n},{'AB'[n % 2]}" for n in range(8)]
    return write_table(tmp_path / "labels.csv", "slide_id,case_id,label", *rows)


def test_columns_of_any_name_are_named_by_the_user(job, tmp_path):
    rows = [f"x{n},S{n},P{n // 2},{'AB'[n // 2 % 2]}" for n in range(8)]
    table = write_table(tmp_path / "own.csv", "slide_id,Objekttraeger,Patientin,label", *rows)
    named = ("--labels", table, "--slide-column", "Objekttraeger", "--case-column", "Patientin")
    report = answer("import", job, *named, "--out", tmp_path / "cohort")
    assert (report["n_slides"], report["n_cases"]) == (8, 4)
    message = refused(
        "import", job, "--labels", table, "--slide-column", "Objekttrager", "--out", tmp_path / "no"
    )
    assert "has no column 'Objekttrager'. Did you mean Objekttraeger?" in message
    assert "--slide-column" in message


def test_a_sheet_of_a_workbook_is_chosen(job, tmp_path):
    pytest.importorskip("openpyxl")
    table = tmp_path / "book.xlsx"
    frame = pd.DataFrame({"slide_id": [f"S{n}" for n in range(8)], "label": list("AB" * 4)})
    with pd.ExcelWriter(table) as book:
        pd.DataFrame({"notes": ["read me"]}).to_excel(book, sheet_name="Notes", index=False)
        frame.to_excel(book, sheet_name="Slides", index=False)
    report = answer(
        "import", job, "--labels", table, "--sheet", "Slides", "--out", tmp_path / "cohort"
    )
    assert report["n_slides"] == 8
    command = ("import", job, "--labels", table, "--sheet", "S", "--out", tmp_path / "no")
    assert "has no sheet 'S', only: Notes, Slides" in refused(*command, error=CohortError)


def test_broken_slides_are_left_out_on_request_and_recorded(job, labels, tmp_path):
    folder = job / "20x_256px_0px_overlap" / "features_uni_v1"
    (folder / "S1.h5").write_bytes((folder / "S1.h5").read_bytes()[:900])
    with h5py.File(folder / "S2.h5", "a") as file:
        file["features"][3, 0] = np.nan
    command = ("import", job, "--labels", labels, "--out")
    assert "S1.h5" in refused(*command, tmp_path / "no", error=Exception)
    assert not (tmp_path / "no").exists()
    report = answer(*command, tmp_path / "cohort", "--skip-broken")
    assert report["n_slides"] == 6
    kept = {slide.slide_id for slide in Cohort.load(tmp_path / "cohort").slides}
    assert kept == {"S0", *(f"S{n}" for n in range(3, 8))}
    card = yaml.safe_load((tmp_path / "cohort" / "cohort.yaml").read_text())
    left_out = " ".join(card["provenance"]["left_out"])
    assert "S1.h5" in left_out
    assert "S2.h5: 1 patches have NaN or infinite features, the first is row 3" in left_out
    for path in folder.glob("*.h5"):
        path.write_bytes(b"broken")
    said = refused(*command, tmp_path / "all", "--skip-broken", error=CohortError)
    assert "8 of 8 slides cannot be used" in said
    assert "And 5 more. Extract them again" in said


def test_a_cohort_is_replaced_on_request_and_keeps_its_anchors(job, labels, tmp_path):
    out = tmp_path / "cohort"
    command = ("import", job, "--labels", labels, "--out", out)
    succeeded(*command)
    (out / "anchors.h5").write_bytes(b"anchors")
    (out / "features" / "old.h5").write_bytes(b"old")
    assert "replace the cohort with --force" in refused(*command)
    succeeded(*command, "--force")
    assert (out / "anchors.h5").is_file()
    assert not (out / "features" / "old.h5").exists()
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").touch()
    assert "remove it first" in refused(*command[:-1], other, "--force")
    assert (other / "notes.txt").is_file()


def test_thumbnails_of_a_trident_job_lie_under_the_evidence(job, labels, tmp_path):
    (job / "thumbnails").mkdir()
    Image.new("RGB", (90, 90), (200, 100, 150)).save(job / "thumbnails" / "S3.jpg")
    out = tmp_path / "cohort"
    said = succeeded("import", job, "--labels", labels, "--out", out)
    assert "Thumbnails of 1 slides were found" in said
    thumbnail = read_own_thumbnail(out, "S3")
    assert thumbnail.downsample == 100
    assert read_own_thumbnail(out, "S4") is None


def test_a_measurement_and_a_table_without_events_are_refused(job, tmp_path):
    # As many values as slides: a biomarker, not a class.
    for number in range(8, 12):
        trident_features(job, f"S{number}", grid(6, 512))
    tables = {
        "slide_id,label": [f"S{n},{n / 7 + 0.1:.3f}" for n in range(12)],
        "slide_id,time,event": [f"S{n},{n + 3},0" for n in range(12)],
    }
    faults = ("a measurement is not a class", "all 12 slides are censored")
    for (header, lines), fault in zip(tables.items(), faults, strict=True):
        labels = write_table(tmp_path / "labels.csv", header, *lines)
        command = ("import", job, "--labels", labels, "--out", tmp_path / "no")
        assert fault in refused(*command, error=CohortError)
    assert not (tmp_path / "no").exists()


def test_a_long_list_is_shortened_and_whole_as_json(job, labels, tmp_path):
    with labels.open("a") as file:
        file.writelines(f"absent{n:02},Q{n},A\n" for n in range(32))
    said = succeeded("import", job, "--labels", labels, "--out", tmp_path / "cohort")
    assert "32 labels without features: absent00, absent01, absent02 and 29 more" in said
    report = answer("import", job, "--labels", labels, "--out", tmp_path / "again")
    assert len(report["labels_without_features"]) == 32


def test_split_prints_classes_and_events_of_every_part(job, tmp_path):
    rows = [f"S{n},P{n},{'AB'[n % 2]}" for n in range(8)]
    labels = write_table(tmp_path / "l.csv", "slide_id,case_id,label", *rows)
    succeeded("import", job, "--labels", labels, "--out", tmp_path / "cohort")
    said = succeeded("split", tmp_path / "cohort", "--parts", "4,2,2")
    assert "slides per part (A, B)" in said
    assert [part in said for part in ("4 (2, 2)", "2 (1, 1)")] == [True, True]
    times = write_table(
        tmp_path / "t.csv", "slide_id,time,event", *(f"S{n},{n + 3},{n % 2}" for n in range(8))
    )
    succeeded("import", job, "--labels", times, "--out", tmp_path / "survival")
    said = succeeded("split", tmp_path / "survival", "--parts", "4,2,2")
    assert "events of cases" in said
    assert "4 (2 of 4)" in said
