import openpyxl
import pytest

from builders.foreign import write_table
from gcemil.bags.cohort import SlideRow
from gcemil.bags.foreign.dialects import Choice
from gcemil.bags.foreign.label_tables import count_targets, find_label_faults, read_labels
from gcemil.errors import CohortError, UsageError


def read(tmp_path, text, **choice):
    """The labels of a table whose lines are separated by a bar."""
    return read_labels(write_table(tmp_path / "t.csv", *text.split("|")), choice=Choice(**choice))


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


def test_panther_folder_of_splits_is_one_table(tmp_path):
    header = "case_id,slide_id,os_survival_days,os_censorship"
    write_table(tmp_path / "X_overall_survival_k=0" / "train.csv", header, "p1,a,100,0")
    write_table(tmp_path / "X_overall_survival_k=0" / "test.csv", header, "p2,b,200,1")
    table = read_labels(tmp_path)
    assert table.dialect == "PANTHER/MMP"
    assert [(row.slide_id, row.event) for row in table.rows] == [("a", 1), ("b", 0)]


def excel(path, *lines):
    book = openpyxl.Workbook()
    for line in lines:
        book.active.append(line)
    book.save(path)
    return path


def test_stamp_tables_are_joined_by_patient_and_the_rest_is_named(tmp_path):
    clinical = excel(
        tmp_path / "clini.xlsx",
        ("PATIENT", "isMSIH"),
        ("p1", "MSIH"),
        ("p2", "nonMSIH"),
        ("p4", "MSIH"),
    )
    slides = write_table(
        tmp_path / "slide.csv", "PATIENT,FILENAME", "p1,sub/a.h5", "p2,b.h5", "p3,c.h5"
    )
    table = read_labels(clinical, slide_table=slides)
    assert [(row.slide_id, row.case_id, row.label) for row in table.rows] == [
        ("a", "p1", "MSIH"),
        ("b", "p2", "nonMSIH"),
    ]
    assert any("without clinical row: p3" in line for line in table.assumptions)
    assert any("without slide: p4" in line for line in table.assumptions)


@pytest.mark.parametrize(
    ("text", "dialect", "expected"),
    [
        ("case_id,slide_id,label|p1,s.1,x", "CLAM", SlideRow("s.1", "p1", label="x")),
        ("case_id,slide_id,label|p1,s.1-2.svs,x", "CLAM", SlideRow("s.1-2", "p1", label="x")),
        (
            "case_id\tslide_id\tOS_event\tOS_days\tfold_0|p\ts\t1\t30\ttrain",
            "Patho-Bench",
            SlideRow("s", "p", time=30.0, event=1),
        ),
        (
            "patient,slide,dataset,category|p,s.svs,train,LUAD",
            "slideflow/PathBench",
            SlideRow("s", "p", label="LUAD"),
        ),
        (
            "patient,slide,dataset,time,event|p,s,train,3,1",
            "slideflow/PathBench",
            SlideRow("s", "p", time=3.0, event=1),
        ),
        ("slide_path,label|/data/x/s.pt,1", "MIL_BASELINE", SlideRow("s", "s", label="1")),
        (
            "train_slide_path,train_label,test_slide_path,test_label|/d/s.pt,1,/d/t.pt,0",
            "MIL_BASELINE",
            SlideRow("s", "s", label="1"),
        ),
        ("ID,Split,Label|s,train,1", "MHIM-MIL", SlideRow("s", "s", label="1")),
        ("Case,ID,Label,Split|p,s,1,train", "MHIM-MIL", SlideRow("s", "p", label="1")),
        (
            "train,train_label,val,val_label,test,test_label|s,1,u,0,t,0",
            "CAMIL",
            SlideRow("s", "s", label="1"),
        ),
        ("slide_id,case_id,time,event|s,p,3,0", "gcemil", SlideRow("s", "p", time=3.0, event=0)),
    ],
)
def test_every_dialect_is_recognised_by_its_columns(tmp_path, text, dialect, expected):
    table = read(tmp_path, text)
    assert table.dialect == dialect
    assert table.rows[0] == expected


MCAT = "case_id,slide_id,survival_months,censorship"


def test_rows_without_a_target_are_left_out_and_listed(tmp_path):
    table = read(tmp_path, f"{MCAT}|p,s,12,1|q,t,,0|r,u,0,1|x,v,3,nan")
    assert [row.slide_id for row in table.rows] == ["s"]
    assert table.excluded == (
        "slide 't': no valid time in 'survival_months' ('')",
        "slide 'u': no valid time in 'survival_months' ('0')",
        "slide 'v': no valid status in 'censorship' ('nan')",
    )


DAYS = {"time": "days", "event": "died"}


@pytest.mark.parametrize(
    ("text", "choice", "expected"),
    [
        (
            f"{MCAT},survival_months_dss,censorship_dss|p,s,12,1,5,0",
            {"endpoint": "dss"},
            (5.0, 1),
        ),
        (f"{MCAT},label|p,s,3,1,x", {"task": "survival"}, (3.0, 0)),
        (f"{MCAT},label|p,s,3,1,x", {"task": "classification"}, "x"),
        ("patient,slide,category,time,event|p,s,x,3,1", {"task": "survival"}, (3.0, 1)),
        ("case_id,slide_id,ER,PR,fold_0|p,s,1,0,train", {"target": "PR"}, "0"),
        ("slide_id,case_id,days,died|s,p,3,1", DAYS, (3.0, 1)),
        ("slide_id,case_id,days,x_censor|s,p,3,1", DAYS | {"event": "x_censor"}, (3.0, 0)),
    ],
)
def test_a_choice_settles_what_a_table_means(tmp_path, text, choice, expected):
    assert read(tmp_path, text, **choice).rows[0].target == expected


@pytest.mark.parametrize(
    ("text", "choice", "message"),
    [
        (f"{MCAT},label|p,s,3,1,x", {}, "holds labels and survival times"),
        (f"{MCAT},event|p,s,3,1,1", {}, "'censorship' and 'event'; only one can be right"),
        (f"{MCAT},os_survival_days,os_censorship|p,s,3,1,3,1", {}, "MCAT/SurvPath or PANTHER/MMP"),
        (f"{MCAT}|p,s,3,1", {"endpoint": "dss"}, "has endpoints os. Choose one with --endpoint"),
        (f"{MCAT}|p,s,3,1|p,t,4,1", {}, "'s' and 't' of case 'p' have different survival"),
        ("name,diagnosis|1,1", {}, "is not a label table"),
        ("patient,slide,value|p,s,1", {}, "does not say which column is the label"),
        ("case_id,slide_id,ER,PR,fold_0|p,s,1,0,train", {}, r"2 possible targets \(ER, PR\)"),
        ("PATIENT,isMSIH|p1,MSIH", {}, "--slide-table"),
        ("slide_id,label|s.svs,x|s,y", {}, "slide 's' occurs twice with different targets"),
        ("slide_id,label|..,x", {}, "cannot be a slide id"),
        ("slide_id,label|s,", {}, r"no row has a usable target \(slide 's': no label"),
        ("slide_id,label|s,x", {"time": "days"}, "give --time and --event"),
        ("slide_id,label|s,x", {"task": "survival"}, "no survival target.* --time and --event"),
        ("slide_id,label|s,x", DAYS, "no column 'days'.* are: slide_id, label. .*--time and"),
        ("slide_id,label|s,x", {"target": "grade"}, "no column 'grade'.* label with --target"),
    ],
)
def test_a_table_that_cannot_be_read_is_refused(tmp_path, text, choice, message):
    with pytest.raises((CohortError, UsageError), match=message):
        read(tmp_path, text, **choice)


def rows_of(labels):
    return [
        SlideRow(f"s{number}", f"c{number // 2}", label=label)
        for number, label in enumerate(labels)
    ]


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
    ("text", "expected"),
    [
        ("Slide,Patient,Diagnosis|s.svs,p,x", ("s", "p", "x")),
        ("image,pid,y|s,p,1", ("s", "p", "1")),
        ("SLIDE_ID,CASE_ID,LABEL|s,p,x", ("s", "p", "x")),
        ("Slide_ID,Patient,OS.time,OS|s,p,12.5,1", ("s", "p", (12.5, 1))),
        ("slide_id;Patient;Time;Event|s;p;12,5;0", ("s", "p", (12.5, 0))),
    ],
)
def test_columns_are_matched_without_regard_to_case_and_by_usual_names(tmp_path, text, expected):
    labels = read(tmp_path, text)
    (row,) = labels.rows
    assert (row.slide_id, row.case_id, row.target) == expected
    patient = text.replace(";", ",").split(",")[1]
    assert any(patient in note for note in labels.assumptions)


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_another_encoding_is_read_and_noted(tmp_path, encoding):
    path = tmp_path / "t.csv"
    path.write_bytes("slide_id,label\ns,größer\nt,klein\n".encode(encoding))
    labels = read_labels(path)
    assert labels.classes == ("größer", "klein")
    assert f"t.csv is not UTF-8 and was read as {encoding.upper()}." in labels.assumptions
