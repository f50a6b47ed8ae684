"""After encoding, the slides are known to the viewer and the report."""

from gcemil.bags.cohort import find_slide_file
from gcemil.features.encode_cohort import link_slides


def test_slides_are_linked_into_the_cohort_and_those_of_several_files_are_not(tmp_path):
    scans = tmp_path / "scans"
    scans.mkdir()
    for name in ("A.svs", "B.MRXS", "C.tif"):
        (scans / name).write_bytes(b"slide")
    slides = {"A": scans / "A.svs", "B": scans / "B.MRXS", "C": scans / "C.tif"}
    out = tmp_path / "cohort"
    (out / "slides").mkdir(parents=True)
    (out / "slides" / "C.svs").write_bytes(b"mine")
    link_slides(slides, out)
    assert find_slide_file(out, "A").resolve() == scans / "A.svs"
    assert find_slide_file(out, "B") is None
    assert find_slide_file(out, "C").read_bytes() == b"mine"
    # A source that moved is linked anew.
    (scans / "A.svs").rename(tmp_path / "A.svs")
    link_slides({"A": tmp_path / "A.svs"}, out)
    assert find_slide_file(out, "A").resolve() == tmp_path / "A.svs"
