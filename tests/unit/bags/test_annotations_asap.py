from pathlib import Path

import pytest
from shapely import Polygon

from gcemil.bags.annotations.shapes import read_asap
from gcemil.errors import InputError

CAMELYON16 = """<?xml version="1.0"?>
<ASAP_Annotations><Annotations>
 <Annotation Name="Annotation 0" Type="Polygon" PartOfGroup="Tumor" Color="#F4FA58">
  <Coordinates>
   <Coordinate Order="2" X="100" Y="100"/><Coordinate Order="0" X="0.5" Y="0"/>
   <Coordinate Order="10" X="0" Y="100"/><Coordinate Order="1" X="100" Y="0"/>
  </Coordinates></Annotation>
 <Annotation Name="hole" Type="Spline" PartOfGroup="Exclusion" Color="#F4FA58">
  <Coordinates><Coordinate Order="0" X="10" Y="10"/><Coordinate Order="1" X="20" Y="10"/>
   <Coordinate Order="2" X="20" Y="20"/></Coordinates></Annotation>
 <Annotation Name="point" Type="Dot" PartOfGroup="Tumor" Color="#F4FA58">
  <Coordinates><Coordinate Order="0" X="10" Y="10"/></Coordinates></Annotation>
</Annotations>
<AnnotationGroups><Group Name="Tumor" PartOfGroup="None" Color="#00ff00"><Attributes/></Group></AnnotationGroups>
</ASAP_Annotations>"""


def written(folder: Path, text: str) -> Path:
    path = folder / "tumor_001.xml"
    path.write_text(text, encoding="utf-8")
    return path


def in_group(
    group: str, groups: str = "", first: str = '<Coordinate Order="0" X="0" Y="0"/>'
) -> str:
    corners = '<Coordinate Order="1" X="9" Y="0"/><Coordinate Order="2" X="9" Y="9"/>'
    return (
        f'<ASAP_Annotations><Annotations><Annotation Name="a" Type="Polygon" PartOfGroup="{group}"><Coordinates>'
        f"{first}{corners}</Coordinates></Annotation></Annotations><AnnotationGroups>{groups}</AnnotationGroups>"
        "</ASAP_Annotations>"
    )


def test_vertices_stand_in_their_order_and_holes_are_cut_out(tmp_path):
    annotation = read_asap(written(tmp_path, CAMELYON16))
    outline = Polygon([(0.5, 0.0), (100.0, 0.0), (100.0, 100.0), (0.0, 100.0)])
    hole = Polygon([(10, 10), (20, 10), (20, 20)])
    assert annotation.areas["Tumor"].equals(outline - hole)
    assert annotation.notes == ("'point' (Dot, 1 vertices) encloses no area",)


@pytest.mark.parametrize(
    ("groups", "is_tumour"),
    [("_0 _1 Tumor metastases", True), ("_2 Exclusion None normal", False)],
)
def test_groups_of_camelyon_mean_what_they_mean_there(tmp_path, groups, is_tumour):
    for group in groups.split():
        assert list(read_asap(written(tmp_path, in_group(group))).areas) == [group] * is_tumour


def test_an_unknown_group_is_refused_and_can_be_explained(tmp_path):
    path = written(tmp_path, in_group("necrosis", '<Group Name="necrosis" PartOfGroup="None"/>'))
    with pytest.raises(InputError, match="group 'necrosis' is neither tumour nor exclusion"):
        read_asap(path)
    assert not read_asap(path, roles={"necrosis": "exclusion"}).areas
    assert read_asap(path, roles={"necrosis": "tumour"}).areas


def test_a_group_means_what_the_group_around_it_means(tmp_path):
    nested = '<Group Name="micro" PartOfGroup="lesions"/>'
    known = f'{nested}<Group Name="lesions" PartOfGroup="Tumor"/>'
    assert "micro" in read_asap(written(tmp_path, in_group("micro", known))).areas
    circle = f'{nested}<Group Name="lesions" PartOfGroup="micro"/>'
    with pytest.raises(InputError, match="group 'micro' is neither"):
        read_asap(written(tmp_path, in_group("micro", circle)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<ASAP_Annotations>", "is not valid XML"),
        ("<Slide/>", "its root is <Slide>"),
        *(
            (in_group("Tumor", first=f"<Coordinate {place}/>"), "without a finite number")
            for place in (
                'Order="0" X="1,5" Y="0"',
                'Order="0" Y="0"',
                'Order="0" X="nan" Y="0"',
            )
        ),
    ],
)
def test_a_file_that_is_no_asap_file_is_refused_by_name(tmp_path, text, message):
    with pytest.raises(InputError, match=rf"tumor_001\.xml.*{message}"):
        read_asap(written(tmp_path, text))
