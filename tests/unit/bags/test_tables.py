"""Tables made elsewhere: encodings, quotes, widths and names that would break a reader are named instead."""

import pytest

from builders import make_cohort
from gcemil.bags.cohort import read_card
from gcemil.bags.tables import read_frame, read_table
from gcemil.errors import CohortError, InputError


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'slide_id,label\na,"x\n', "is not a table .unexpected end of data"),
        (b"slide_id,slide_id\na,b\n", "column 'slide_id' occurs twice"),
    ],
)
def test_a_table_that_cannot_be_read_is_named(tmp_path, content, message):
    path = tmp_path / "table.csv"
    path.write_bytes(content)
    with pytest.raises(CohortError, match=rf"table\.csv.*{message}"):
        read_table(path)


def test_a_folder_or_a_name_the_system_refuses_is_no_table(tmp_path):
    for path in (tmp_path, tmp_path / ("x" * 300), tmp_path / "a\0b"):
        with pytest.raises(CohortError, match="does not exist|is not a file"):
            read_frame(path)


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_a_table_of_ours_is_utf_8(tmp_path, encoding):
    (tmp_path / "slides.csv").write_bytes("slide_id,label\na,Größe\n".encode(encoding))
    with pytest.raises(CohortError, match=r"slides\.csv is not UTF-8.*Save it again as UTF-8"):
        read_table(tmp_path / "slides.csv")


def test_quoted_line_ends_and_short_lines_are_read(tmp_path):
    (tmp_path / "t.csv").write_bytes(
        b'\xef\xbb\xbfslide_id,label,site\r\n"a\nb",x\r\n\r\n c ,y, z ,more\r\n'
    )
    rows = read_table(tmp_path / "t.csv", ("slide_id",))
    assert rows == [
        {"slide_id": "a\nb", "label": "x", "site": ""},
        {"slide_id": "c", "label": "y", "site": "z"},
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("classes: [a, a]", "a class occurs twice"),
        ("feature_dim: .inf", "feature_dim must be a finite number"),
        ("feature_dim: 99999999999", "feature_dim must be at most 65536"),
        ("provenance: {x: .nan}", "not a finite"),
        ("name: !!binary aGk=", "is not valid YAML"),
    ],
)
def test_a_card_with_a_wrong_value_is_named(tmp_path, change, message):
    make_cohort(tmp_path, n_cases=4)
    key = change.partition(":")[0]
    lines = [
        line for line in (tmp_path / "cohort.yaml").read_text().splitlines() if line[:1] not in "- "
    ]
    kept = [line for line in lines if not line.startswith((key, "classes"))]
    classes = [] if key == "classes" else ["classes: [a, b]"]
    (tmp_path / "cohort.yaml").write_text("\n".join([*kept, *classes, change]))
    with pytest.raises(InputError, match=rf"cohort\.yaml.*{message}"):
        read_card(tmp_path)


def test_a_damaged_workbook_is_named(tmp_path):
    (tmp_path / "u.xlsx").write_bytes(b"no zip")
    message = r"u\.xlsx cannot be read as an Excel table .File is not a zip file"
    with pytest.raises(CohortError, match=message):
        read_frame(tmp_path / "u.xlsx")
