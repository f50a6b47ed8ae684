import openpyxl
import pytest

from builders.foreign import grid, trident_features, write_table
from gcemil.bags.cohort import Cohort
from gcemil.bags.folds import fold_indices, read_fold
from gcemil.bags.foreign.datasets import import_dataset
from gcemil.errors import UsageError


def features(tmp_path, *slides):
    for slide in slides:
        trident_features(tmp_path / "job", slide, grid(8, 512))
    return tmp_path / "job"


def barcode(case, block="DX1", code="0A1B"):
    return f"TCGA-{case}-01Z-00-{block}.{code}"


def slides_of(folder):
    return {row.slide_id: row for row in Cohort.load(folder).slides}


def bracs_sheet(path):
    book = openpyxl.Workbook()
    sheet = book.active
    sheet.title = "WSI_Information"
    sheet.append(("WSI Filename", "Patient Id", "RoI", "WSI label", "Set"))
    for number, label in enumerate(("N", "PB", "UDH", "FEA", "ADH", "DCIS", "IC")):
        sheet.append((f"BRACS_{number}", number // 2, 3, label, "Training"))
    book.create_sheet("RoI_Information").append(("RoI Filename",))
    book.save(path)
    return path


def test_bracs_sheet_becomes_seven_classes_by_patient(tmp_path):
    slides = [f"BRACS_{number}" for number in range(7)]
    report = import_dataset(
        "bracs",
        features(tmp_path, *slides),
        tmp_path / "c",
        labels=bracs_sheet(tmp_path / "BRACS.xlsx"),
    )
    cohort = Cohort.load(tmp_path / "c")
    assert cohort.card.classes == ("N", "PB", "UDH", "FEA", "ADH", "DCIS", "IC")
    assert cohort.card.anchors == "breast"
    assert [row.case_id for row in cohort.slides] == ["0", "0", "1", "1", "2", "2", "3"]
    assert report.warnings[0] == "bracs: 7 slides here, 525 in the paper."
    assert len(report.warnings) == 8
    assert "class 'DCIS': the class has a single case" in " ".join(report.warnings)
    assert cohort.card.provenance["paper_split_unit"] == "slide"


def test_panda_grades_are_six_classes_with_the_provider_as_site(tmp_path):
    labels = write_table(
        tmp_path / "train.csv",
        "image_id,data_provider,isup_grade,gleason_score",
        "0005f7aa,karolinska,0,0+0",
        "000920ad,radboud,5,4+5",
    )
    import_dataset(
        "panda", features(tmp_path, "0005f7aa", "000920ad"), tmp_path / "c", labels=labels
    )
    rows = slides_of(tmp_path / "c")
    assert (rows["000920ad"].label, rows["000920ad"].site) == ("isup_5", "radboud")
    assert Cohort.load(tmp_path / "c").n_outputs == 6


def test_brca_subtypes_by_case_reach_every_slide_of_the_case(tmp_path):
    slides = [barcode("A1-A0SB", "DX1"), barcode("A1-A0SB", "DX2"), barcode("A1-A0SD")]
    labels = write_table(
        tmp_path / "clinical.tsv",
        "case_id\tcase_submitter_id\tprimary_diagnosis",
        "uuid-1\tTCGA-A1-A0SB\tInfiltrating duct carcinoma, NOS",
        "uuid-2\tTCGA-A1-A0SD\tLobular carcinoma, NOS",
        "uuid-3\tTCGA-A1-A0SE\tLobular carcinoma, NOS",
    )
    report = import_dataset("brca", features(tmp_path, *slides), tmp_path / "c", labels=labels)
    rows = slides_of(tmp_path / "c")
    assert {slide: (rows[slide].case_id, rows[slide].label) for slide in slides} == {
        slides[0]: ("TCGA-A1-A0SB", "IDC"),
        slides[1]: ("TCGA-A1-A0SB", "IDC"),
        slides[2]: ("TCGA-A1-A0SD", "ILC"),
    }
    assert "1 cases without a slide: TCGA-A1-A0SE." in report.assumptions


def test_nsclc_sample_sheet_by_project_warns_with_both_numbers_per_class(tmp_path):
    slides = [barcode("05-4244"), barcode("18-3406")]
    labels = write_table(
        tmp_path / "sheet.tsv",
        "File ID\tFile Name\tProject ID\tCase ID",
        f"1\t{slides[0]}.svs\tTCGA-LUAD\tTCGA-05-4244",
        f"2\t{slides[1]}.svs\tTCGA-LUSC\tTCGA-18-3406",
    )
    report = import_dataset("nsclc", features(tmp_path, *slides), tmp_path / "c", labels=labels)
    assert [row.label for row in Cohort.load(tmp_path / "c").slides] == ["LUAD", "LUSC"]
    assert report.warnings[:3] == (
        "nsclc: 2 slides here, 1053 in the paper.",
        "nsclc: 1 slides of class LUAD here, 541 in the paper.",
        "nsclc: 1 slides of class LUSC here, 512 in the paper.",
    )


def test_survival_in_the_gdc_style_lists_every_case_it_leaves_out(tmp_path):
    cases = [f"05-424{number}" for number in range(6)]
    slides = [barcode(case) for case in cases] + [barcode(cases[0], "DX2")]
    outcomes = (
        ("TCGA-05-4240", "Dead", "300", "'--"),
        ("TCGA-05-4240", "Dead", "300", "'--"),
        ("TCGA-05-4241", "Alive", "'--", "500"),
        ("TCGA-05-4242", "Dead", "'--", "200"),
        ("TCGA-05-4243", "Not Reported", "'--", "200"),
        ("TCGA-05-4244", "Alive", "'--", "0"),
        ("TCGA-05-4245", "Alive", "'--", "10"),
        ("TCGA-05-4245", "Alive", "'--", "90"),
    )
    labels = write_table(
        tmp_path / "clinical.tsv",
        "case_id\tcase_submitter_id\tvital_status\tdays_to_death\tdays_to_last_follow_up",
        *("\t".join(("uuid", *outcome)) for outcome in outcomes),
    )
    report = import_dataset("luad", features(tmp_path, *slides), tmp_path / "c", labels=labels)
    bags = {bag.case_id: bag for bag in Cohort.load(tmp_path / "c").bags}
    assert {name: bag.target for name, bag in bags.items()} == {
        "TCGA-05-4240": (300.0, 1),
        "TCGA-05-4241": (500.0, 0),
        "TCGA-05-4245": (90.0, 0),
    }
    assert len(bags["TCGA-05-4240"].slide_ids) == 2
    assert report.excluded == (
        "case 'TCGA-05-4242': no valid time in 'days_to_death' (''--')",
        "case 'TCGA-05-4243': no valid status in 'vital_status' (Not Reported)",
        "case 'TCGA-05-4244': no valid time in 'days_to_last_follow_up' ('0')",
    )
    remark = "2 values in 'days_to_last_follow_up', the largest taken"
    assert f"case 'TCGA-05-4245': {remark}" in report.assumptions


def test_camelyon_labels_come_from_names_and_the_reference_without_header(tmp_path):
    slides = ["normal_001", "tumor_001", "test_001", "test_002", "test_003"]
    slides += ["normal_086", "test_049", "test_114"]
    reference = write_table(
        tmp_path / "reference.csv",
        "test_001,Tumor,IDC,Macro",
        "test_002,Normal,None,None",
        "test_049,Normal",
        "test_114.tif,Tumor",
    )
    report = import_dataset(
        "camelyon16", features(tmp_path, *slides), tmp_path / "c", labels=reference
    )
    rows = slides_of(tmp_path / "c")
    assert {slide: row.label for slide, row in rows.items()} == {
        "normal_001": "normal",
        "tumor_001": "tumor",
        "test_001": "tumor",
        "test_002": "normal",
        "test_114": "tumor",
    }
    assert report.excluded == (
        "slide 'normal_086': contains tumour and was moved to tumor_111",
        "slide 'test_003': neither its name nor reference.csv gives a label",
        "slide 'test_049': duplicate that the organisers dropped",
    )
    assert report.warnings[0] == "camelyon16: 5 slides here, 399 in the official data set."
    assert any(
        one["slide"] == "test_114"
        for one in Cohort.load(tmp_path / "c").card.provenance["exclusions"]
    )


def test_recipe_without_its_table_says_which_it_needs(tmp_path):
    with pytest.raises(
        UsageError, match=r"'panda' needs its label table \(train.csv of the PANDA challenge\)"
    ):
        import_dataset("panda", features(tmp_path, "a"), tmp_path / "c")


CAMELYON = [
    *(f"{kind}_{number:03d}" for kind in ("normal", "tumor") for number in range(1, 11)),
    "test_001",
    "test_002",
]


def test_camelyon_can_be_split_as_its_organisers_did(tmp_path):
    reference = write_table(tmp_path / "reference.csv", "test_001,Tumor", "test_002,Normal")
    import_dataset(
        "camelyon16",
        features(tmp_path, *CAMELYON),
        tmp_path / "c",
        labels=reference,
        official_split=True,
    )
    cohort = Cohort.load(tmp_path / "c")
    fold = read_fold(cohort, 0)
    assert fold_indices(tmp_path / "c") == [0]
    assert sorted(fold.slides("test")) == ["test_001", "test_002"]
    # Each fifth of ten slides of either class.
    assert sorted(name.partition("_")[0] for name in fold.slides("val")) == [
        "normal",
        "normal",
        "tumor",
        "tumor",
    ]
    assert len(fold.slides("train")) == 16


CBIOPORTAL = (
    "#Patient Identifier\tOverall Survival Status\tOverall Survival (Months)",
    "#Identifier\tStatus\tMonths",
    "#STRING\tSTRING\tNUMBER",
    "#1\t1\t1",
    "PATIENT_ID\tOS_STATUS\tOS_MONTHS",
    "TCGA-05-4244\t0:LIVING\t0",
    "TCGA-05-4249\t0:LIVING\t50.03",
    "TCGA-05-4250\t1:DECEASED\t3.98",
)


def test_cbioportal_tables_of_patients_are_joined_by_barcode(tmp_path):
    labels = write_table(tmp_path / "data_clinical_patient.txt", *CBIOPORTAL)
    slides = [barcode(case) for case in ("05-4244", "05-4249", "05-4250")]
    report = import_dataset("luad", features(tmp_path, *slides), tmp_path / "c", labels=labels)
    rows = slides_of(tmp_path / "c")
    assert {row.case_id: (row.time, row.event) for row in rows.values()} == {
        "TCGA-05-4249": (50.03, 0),
        "TCGA-05-4250": (3.98, 1),
    }
    assert report.dialect == "cBioPortal"
    assert report.excluded == (f"slide '{slides[0]}': no valid time in 'OS_MONTHS' ('0')",)
