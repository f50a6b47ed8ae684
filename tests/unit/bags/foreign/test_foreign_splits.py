import pytest

from builders.foreign import stamp_splits, write_table
from gcemil.bags.cohort import SlideRow
from gcemil.bags.foreign.splits import match_folds, read_splits
from gcemil.errors import CohortError

ROWS = [SlideRow(f"s{i}", f"p{i}", label="x") for i in range(4)]


def parts(path, rows=ROWS):
    return [fold.part_of for fold in match_folds(read_splits(path), rows)[0]]


def test_clam_folder_of_ragged_columns(tmp_path):
    write_table(tmp_path / "splits_0.csv", ",train,val,test", "0,s0,s2,s3", "1,s1,,")
    write_table(tmp_path / "splits_1.csv", ",train,val,test", "0,s3,s0,s1", "1,s2,,")
    write_table(tmp_path / "splits_0_bool.csv", ",train,val,test", "s0,True,False,False")
    write_table(tmp_path / "splits_0_descriptor.csv", ",train,val,test", "x,2,1,1")
    assert parts(tmp_path) == [
        {"s0": "train", "s1": "train", "s2": "val", "s3": "test"},
        {"s0": "val", "s1": "test", "s2": "train", "s3": "train"},
    ]


def test_mcat_case_ids_and_its_val_is_the_test_part(tmp_path):
    path = write_table(tmp_path / "splits_0.csv", ",train,val", "0,p0,p1", "1,p2,p3")
    splits = read_splits(path)
    assert parts(path) == [{"s0": "train", "s1": "test", "s2": "train", "s3": "test"}]
    assert "its 'val' is the held-out part" in splits.assumptions[0]


def test_patho_bench_fold_columns(tmp_path):
    lines = ["case_id\tslide_id\tER\tfold_0\tfold_1"]
    lines += [
        f"p{i}\ts{i}\t1\t{'test' if i < 2 else 'train'}\t{'train' if i < 2 else 'test'}"
        for i in range(4)
    ]
    path = write_table(tmp_path / "k.tsv", *lines)
    assert [list(fold.values()) for fold in parts(path)] == [
        ["test", "test", "train", "train"],
        ["train", "train", "test", "test"],
    ]


def test_stamp_json_names_patients(tmp_path):
    path = stamp_splits(
        tmp_path / "splits.json", (["p0", "p1"], ["p2", "p3"]), (["p2", "p3"], ["p0", "p1"])
    )
    assert [list(fold.values()) for fold in parts(path)] == [
        ["train", "train", "test", "test"],
        ["test", "test", "train", "train"],
    ]


def test_panther_folders(tmp_path):
    for k, (train, test) in enumerate([("s0 s1", "s2 s3"), ("s2 s3", "s0 s1")]):
        folder = tmp_path / f"T_overall_survival_k={k}"
        write_table(
            folder / "train.csv", "case_id,slide_id", *(f"p,{name}.svs" for name in train.split())
        )
        write_table(
            folder / "test.csv", "case_id,slide_id", *(f"p,{name}.svs" for name in test.split())
        )
    assert [fold["s0"] for fold in parts(tmp_path)] == ["train", "test"]


@pytest.mark.parametrize(
    "lines",
    [
        ("ID,Split,Label", "s0,train,1", "s1,train,0", "s2,val,1", "s3,test,1"),
        ("train,train_label,val,val_label,test,test_label", "s0,1,s2,1,s3,1", "s1,0,,,,"),
        (
            "train_slide_path,train_label,val_slide_path,val_label,test_slide_path,test_label",
            "/d/s0.pt,1,/d/s2.pt,1,/d/s3.pt,1",
            "/d/s1.pt,0,,,,",
        ),
        (
            "WSI Filename,Patient Id,WSI label,Set",
            "s0,1,N,Training",
            "s1,2,N,Training",
            "s2,3,N,Validation",
            "s3,4,N,Testing",
        ),
        ("slide_id,split", "s0,train", "s1,train", "s2,val", "s3,test"),
        ("bag_name,split", "s0,train", "s1,train", "s2,val", "s3,test"),
        (
            ",train,val,test",
            "s0,True,False,False",
            "s1,True,False,False",
            "s2,False,True,False",
            "s3,False,False,True",
        ),
    ],
)
def test_split_columns_of_label_tables(tmp_path, lines):
    path = write_table(tmp_path / "t.csv", *lines)
    assert list(parts(path)[0].values()) == ["train", "train", "val", "test"]


def test_numbers_that_pandas_turned_into_floats_are_found(tmp_path):
    rows = [SlideRow(str(i), f"p{i}", label="x") for i in range(3)]
    path = write_table(tmp_path / "splits_0.csv", ",train,val,test", "0,0,1.0,2.0")
    assert parts(path, rows) == [{"0": "train", "1": "val", "2": "test"}]


def test_slides_no_fold_places_are_returned(tmp_path):
    path = write_table(tmp_path / "splits_0.csv", ",train,val,test", "0,s0,s1,s2")
    assert match_folds(read_splits(path), ROWS)[1] == ["s3"]


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ([(",train,val,test", "0,s0,s1,s0")], "'s0' is in train and in test"),
        (
            [(",train,val,test", "0,s0,s1,s2", "1,s3,,"), (",train,val,test", "0,s0,s1,s2")],
            "fold 1 does not place slide 's3'",
        ),
        ([(",train,val,test", "0,a,b,c")], "none of its 3 ids"),
        ([(",train,val,test", "0,s0,,p0")], "can be read in two ways"),
        ([("bag_name,split", "s0,holdout")], "'s0' has split 'holdout'"),
        ([("a,b", "1,2")], "holds no splits that are known here; its columns are: a, b"),
    ],
)
def test_splits_that_cannot_be_used_are_refused(tmp_path, tables, message):
    for index, lines in enumerate(tables):
        write_table(tmp_path / f"splits_{index}.csv", *lines)
    with pytest.raises(CohortError, match=message):
        parts(tmp_path)
