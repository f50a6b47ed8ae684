import pytest

from gcemil.bags.foreign.source import plain_id, plain_ids, tcga_case_id
from gcemil.errors import CohortError


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("TCGA-05-4244-01Z-00-DX1.d4ff32cd-38cf.svs", "TCGA-05-4244-01Z-00-DX1.d4ff32cd-38cf"),
        ("TCGA-05-4244-01Z-00-DX1.d4ff32cd-38cf", "TCGA-05-4244-01Z-00-DX1.d4ff32cd-38cf"),
        ("HP19.754.A5.ccRCC.scn", "HP19.754.A5.ccRCC"),
        ("folder/a.svs.h5", "a"),
        ("C:\\slides\\b.OME.TIFF", "b"),
        ("v1.2", "v1.2"),
        (".svs", ".svs"),
    ],
)
def test_known_extensions_come_off_and_other_dots_stay(name, expected):
    assert plain_id(name) == expected


def test_two_files_that_would_be_one_slide_are_refused():
    with pytest.raises(CohortError, match=r"'a.svs' and 'a.tif' would both be slide 'a'"):
        plain_ids(["a.svs", "a.tif"], where="here")


def test_case_of_a_barcode_is_its_first_twelve_characters():
    assert tcga_case_id("TCGA-05-4244-01Z-00-DX1.d4ff32cd") == "TCGA-05-4244"
    assert tcga_case_id("TCGA-05-4244") == "TCGA-05-4244"


def test_something_else_than_a_barcode_has_no_case():
    with pytest.raises(CohortError, match="'slide_7' is not a TCGA barcode"):
        tcga_case_id("slide_7")
