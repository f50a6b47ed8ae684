import sys

import openpyxl
import pytest

from foreign_builders import write_table
from gcemil.bags.cohort import SlideRow
from gcemil.bags.foreign.dialects import Choice
from gcemil.bags.foreign.label_tables import count_targets, find_label_faults, read_labels
from gcemil.errors import CohortError, MissingExtraError, UsageError


def test_clam_table(tmp_path):
    path = write_table(tmp_path / "t.csv", "case_id,slide_id,label", "p1,s.1,tumor", "p1,s.2,normal")
    table = read_labels(path)
    assert (table.dialect, table.task, table.classes) == ("CLAM", "classification", ("normal", "tumor"))
    assert table.rows[1] == SlideRow("s.2", "p1", label="normal")


def test_t4_censorship_is_turned_into_event_and_said(tmp_path):
    path = write_table(
        tmp_path / "t.csv",
        ",case_id,slide_id,site,is_female,oncotree_code,age,survival_months,censorship",
        "0,TCGA-A1-0001,TCGA-A1-0001-01Z-00-DX1.AB.svs,A1,1,LUAD,60,12.5,1.0",
        "1,TCGA-A1-0002,TCGA-A1-0002-01Z-00-DX1.CD.svs,A1,1,LUAD,60,7.0,0.0",
    )
    table = read_labels(path)
    assert table.dialect == "MCAT/SurvPath"
    assert [(row.time, row.event) for row in table.rows] == [(12.5, 0), (7.0, 1)]
    assert any("event = 1 - censorship" in line for line in table.assumptions)


def test_t9_svs_suffix_is_stripped_and_dots_stay(tmp_path):
    path = write_table(
        tmp_path / "t.csv",
        "case_id,slide_id,label",
        "TCGA-A1-0001,TCGA-A1-0001-01Z-00-DX1.AB-12.svs,x",
        "TCGA-A1-0001,TCGA-A1-0001-01Z-00-DX1.CD-34.svs,y",
    )
    table = read_labels(path)
    assert [row.slide_id for row in table.rows] == [
        "TCGA-A1-0001-01Z-00-DX1.AB-12",
        "TCGA-A1-0001-01Z-00-DX1.CD-34",
    ]
    assert any("taken off 2 ids" in line for line in table.assumptions)


def test_other_mcat_endpoint_is_a_choice(tmp_path):
    path = write_table(
        tmp_path / "t.csv",
        "case_id,slide_id,survival_months,censorship,survival_months_dss,censorship_dss",
        "p,s,12,1,5,0",
    )
    row = read_labels(path, choice=Choice(endpoint="dss")).rows[0]
    assert (row.time, row.event) == (5.0, 1)


def test_panther_folder_of_splits_is_one_table(tmp_path):
    header = "case_id,slide_id,os_survival_days,os_censorship"
    write_table(tmp_path / "X_overall_survival_k=0" / "train.csv", header, "p1,a,100,0")
    write_table(tmp_path / "X_overall_survival_k=0" / "test.csv", header, "p2,b,200,1")
    table = read_labels(tmp_path)
    assert table.dialect == "PANTHER/MMP"
    assert [(row.slide_id, row.event) for row in table.rows] == [("a", 1), ("b", 0)]


def test_patho_bench_table_with_survival(tmp_path):
    path = write_table(
        tmp_path / "t.tsv", "case_id\tslide_id\tOS_event\tOS_days\tfold_0", "p\ts\t1\t30\ttrain"
    )
    row = read_labels(path).rows[0]
    assert (row.time, row.event) == (30.0, 1)


def test_patho_bench_table_with_two_tasks_needs_a_choice(tmp_path):
    path = write_table(tmp_path / "t.tsv", "case_id\tslide_id\tER\tPR\tfold_0", "p\ts\t1\t0\ttrain")
    with pytest.raises(UsageError, match=r"2 possible targets \(ER, PR\)"):
        read_labels(path)
    assert read_labels(path, choice=Choice(target="PR")).rows[0].label == "0"


def excel(path, *lines):
    book = openpyxl.Workbook()
    for line in lines:
        book.active.append(line)
    book.save(path)
    return path


def test_stamp_tables_are_joined_by_patient_and_the_rest_is_named(tmp_path):
    clinical = excel(
        tmp_path / "clini.xlsx", ("PATIENT", "isMSIH"), ("p1", "MSIH"), ("p2", "nonMSIH"), ("p4", "MSIH")
    )
    slides = write_table(tmp_path / "slide.csv", "PATIENT,FILENAME", "p1,sub/a.h5", "p2,b.h5", "p3,c.h5")
    table = read_labels(clinical, slide_table=slides)
    assert [(row.slide_id, row.case_id, row.label) for row in table.rows] == [
        ("a", "p1", "MSIH"),
        ("b", "p2", "nonMSIH"),
    ]
    assert any("without clinical row: p3" in line for line in table.assumptions)
    assert any("without slide: p4" in line for line in table.assumptions)


def test_stamp_status_words_are_events(tmp_path):
    clinical = write_table(tmp_path / "clini.csv", "PATIENT,os,state", "p1,10,dead", "p2,20,Alive")
    slides = write_table(tmp_path / "slide.csv", "PATIENT,FILENAME", "p1,a.h5", "p2,b.h5")
    table = read_labels(clinical, slide_table=slides, choice=Choice(time="os", event="state"))
    assert [(row.time, row.event) for row in table.rows] == [(10.0, 1), (20.0, 0)]


def test_stamp_clinical_table_alone_is_not_enough(tmp_path):
    path = write_table(tmp_path / "clini.csv", "PATIENT,isMSIH", "p1,MSIH")
    with pytest.raises(UsageError, match="--slide-table"):
        read_labels(path)


@pytest.mark.parametrize(
    ("lines", "dialect", "expected"),
    [
        (
            ("patient,slide,dataset,category", "p,s.svs,train,LUAD"),
            "slideflow/PathBench",
            SlideRow("s", "p", label="LUAD"),
        ),
        (
            ("patient,slide,dataset,time,event", "p,s,train,3,1"),
            "slideflow/PathBench",
            SlideRow("s", "p", time=3.0, event=1),
        ),
        (("slide_path,label", "/data/x/s.pt,1"), "MIL_BASELINE", SlideRow("s", "s", label="1")),
        (
            ("train_slide_path,train_label,test_slide_path,test_label", "/d/s.pt,1,/d/t.pt,0"),
            "MIL_BASELINE",
            SlideRow("s", "s", label="1"),
        ),
        (("ID,Split,Label", "s,train,1"), "MHIM-MIL", SlideRow("s", "s", label="1")),
        (("Case,ID,Label,Split", "p,s,1,train"), "MHIM-MIL", SlideRow("s", "p", label="1")),
        (
            ("train,train_label,val,val_label,test,test_label", "s,1,u,0,t,0"),
            "CAMIL",
            SlideRow("s", "s", label="1"),
        ),
        (("slide_id,case_id,time,event", "s,p,3,0"), "gcemil", SlideRow("s", "p", time=3.0, event=0)),
    ],
)
def test_every_dialect_is_recognised_by_its_columns(tmp_path, lines, dialect, expected):
    table = read_labels(write_table(tmp_path / "t.csv", *lines))
    assert table.dialect == dialect
    assert table.rows[0] == expected


def test_tcga_slides_without_a_case_column_get_the_barcode_case(tmp_path):
    path = write_table(tmp_path / "t.csv", "slide_id,label", "TCGA-A1-0001-01Z-00-DX1.AB.svs,x")
    table = read_labels(path)
    assert table.rows[0].case_id == "TCGA-A1-0001"
    assert any("first 12 characters" in line for line in table.assumptions)


def test_rows_without_a_target_are_left_out_and_listed(tmp_path):
    path = write_table(
        tmp_path / "t.csv",
        "case_id,slide_id,survival_months,censorship",
        "p,s,12,1",
        "q,t,,0",
        "r,u,0,1",
        "x,v,3,nan",
    )
    table = read_labels(path)
    assert [row.slide_id for row in table.rows] == ["s"]
    assert table.excluded == (
        "slide 't': no valid time in 'survival_months' ('')",
        "slide 'u': no valid time in 'survival_months' ('0')",
        "slide 'v': no valid status in 'censorship' ('nan')",
    )


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("case_id,slide_id,label,survival_months,censorship", "holds labels and survival times"),
        (
            "case_id,slide_id,survival_months,censorship,event",
            "'censorship' and 'event'; only one can be right",
        ),
        (
            "case_id,slide_id,survival_months,censorship,os_survival_days,os_censorship",
            "MCAT/SurvPath or PANTHER/MMP",
        ),
        ("name,diagnosis,a,b,c", "is no label table of"),
    ],
)
def test_tables_with_two_meanings_or_none_are_refused(tmp_path, header, message):
    path = write_table(tmp_path / "t.csv", header, ",".join("1" for _ in header.split(",")))
    with pytest.raises(CohortError, match=message):
        read_labels(path)


@pytest.mark.parametrize(("column", "expected"), [("died", 1), ("pfi_censorship", 0)])
def test_named_columns_are_read_and_a_censorship_column_is_turned(tmp_path, column, expected):
    path = write_table(tmp_path / "t.csv", f"slide_id,case_id,days,{column}", "s,p,3,1")
    row = read_labels(path, choice=Choice(time="days", event=column)).rows[0]
    assert (row.time, row.event) == (3.0, expected)


def test_named_target_wins_over_the_dialect(tmp_path):
    path = write_table(tmp_path / "t.csv", "case_id,slide_id,label,grade", "p,s,x,3", "q,t,y,1")
    assert read_labels(path, choice=Choice(target="grade")).classes == ("1", "3")


def test_named_columns_that_do_not_exist_are_refused(tmp_path):
    path = write_table(tmp_path / "t.csv", "case_id,slide_id,label", "p,s,x")
    with pytest.raises(
        UsageError, match="no column 'days'.* Its columns are: case_id, slide_id, label. .*--time and --event"
    ):
        read_labels(path, choice=Choice(time="days", event="died"))
    with pytest.raises(
        UsageError, match="no column 'grade'. It has: case_id, slide_id, label. Name the label with --target"
    ):
        read_labels(path, choice=Choice(target="grade"))
    with pytest.raises(UsageError, match="give --time and --event"):
        read_labels(path, choice=Choice(time="days"))


def test_task_settles_a_table_with_labels_and_survival(tmp_path):
    path = write_table(tmp_path / "t.csv", "case_id,slide_id,label,survival_months,censorship", "p,s,x,3,1")
    assert read_labels(path, choice=Choice(task="survival")).rows[0].time == 3.0
    assert read_labels(path, choice=Choice(task="classification")).rows[0].label == "x"


def test_slides_of_one_case_with_different_survival_are_refused(tmp_path):
    path = write_table(
        tmp_path / "t.csv", "case_id,slide_id,survival_months,censorship", "p,s,3,1", "p,t,4,1"
    )
    with pytest.raises(CohortError, match="'s' and 't' of case 'p' have different survival"):
        read_labels(path)


def test_one_slide_with_two_labels_is_refused(tmp_path):
    path = write_table(tmp_path / "t.csv", "case_id,slide_id,label", "p,s.svs,x", "p,s,y")
    with pytest.raises(CohortError, match="slide 's' stands twice with different targets"):
        read_labels(path)


def test_slide_ids_that_leave_the_folder_are_refused(tmp_path):
    path = write_table(tmp_path / "t.csv", "case_id,slide_id,label", "p,..,x")
    with pytest.raises(CohortError, match="cannot be a slide id"):
        read_labels(path)


def test_excel_without_openpyxl_says_how_to_get_it(tmp_path, monkeypatch):
    path = excel(tmp_path / "t.xlsx", ("case_id", "slide_id", "label"), ("p", "s", "x"))
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(MissingExtraError, match="openpyxl"):
        read_labels(path)


def rows_of(labels):
    return [SlideRow(f"s{number}", f"c{number // 2}", label=label) for number, label in enumerate(labels)]


def test_classes_are_counted_by_slides_and_cases():
    assert count_targets(rows_of(["a", "a", "b"]), ("a", "b")) == (
        "class 'a': 2 slides of 1 cases",
        "class 'b': 1 slides of 1 cases",
    )
    survival = [SlideRow("s0", "c0", time=1.0, event=1), SlideRow("s1", "c0", time=1.0, event=1)]
    assert count_targets([*survival, SlideRow("s2", "c1", time=2.0, event=0)], ()) == (
        "survival: 1 cases with the event, 1 censored",
    )


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (["LUAD", "Luad ", "LUSC"], "'LUAD' and 'Luad ' are 2 classes now, and look like one"),
        (["high grade", "high_grade"], "look like one"),
        (["0.53", "0.7", "1.2"], "3 of 3 classes are fractions such as '0.53'"),
        ([f"P-{number}" for number in range(20)], "20 classes for 20 slides, most of them unique"),
    ],
)
def test_labels_that_look_like_a_mistake_are_warned_of(labels, said):
    (text,) = find_label_faults(rows_of(labels))
    assert said in text


@pytest.mark.parametrize(
    "labels", [["LUAD", "LUSC"], ["0", "1", "2"], ["a", "b"] * 20, [f"t{n}" for n in range(6)]]
)
def test_plain_labels_are_not_warned_of(labels):
    assert find_label_faults(rows_of(labels)) == ()
