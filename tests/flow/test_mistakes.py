"""Mistakes of a first hour: what was typed, the exit code, and the one sentence that answers it.

An answer that ends in … goes on with a list. Nothing may be written by a command that is refused.
"""

import re
import shlex
import shutil
import sys

import h5py
import pytest
import yaml

from builders.foreign import grid, rows, torchmil_set, trident_features, write_table
from gcemil.bags.cohort import Cohort
from gcemil.bags.folds import read_fold
from gcemil.cli import main

HELP = "See 'gcemil {} --help'."
HOSTS = "abmil, clam_sb, transmil, dsmil, dtfd, ibmil, mhim, camil, hdmil, clam_mb, acmil, additive, mean, max, linear"
RECIPES = "bracs, brca, camelyon16, kirc, kirp, luad, nsclc, panda, stad, ucec"
PROFILES = f"biomarker, {RECIPES}"
SETTINGS = "host, evidence, epochs, min_steps, min_epochs, learning_rate, weight_decay, optimizer, betas, schedule, final_rate, clip, …"
FOLDS = "cohort has no fold 9; its folds are 0, 1, 2, 3, 4. Give --folds or --fold one of these."
NO_COHORT = "cohrt does not exist. Did you mean cohort? Give a cohort folder, as 'gcemil import' or 'gcemil encode' writes it."
NO_RUN = "nowhere does not exist. Give a run folder, as 'gcemil train' writes it."
IS_COHORT = (
    "cohort is a cohort, not a run. Train on it with 'gcemil train cohort --out RUN', and give RUN."
)

MISTAKES = [
    # The command itself
    ("trian cohort --out new", 2, "No such command 'trian'. Did you mean 'train'? See 'gcemil --help'."),
    ("train cohort", 2, f"--out is missing. {HELP.format('train')}"),
    ("train cohort --out", 2, "Option '--out' requires an argument. See 'gcemil --help'."),
    ("doctor --jsn", 2, f"No such option: --jsn (Possible options: --json). {HELP.format('doctor')}"),
    ("train cohort --out new --lr 0.1", 2, f"No such option: --lr. Did you mean --set learning_rate=VALUE? {HELP.format('train')}"),
    ("train cohort --out new --amp", 2, f"No such option: --amp. Did you mean --precision bf16? {HELP.format('train')}"),
    ("train cohort --out new --batch-size 4", 2, f"No such option: --batch-size. Did you mean --set bags_per_step=NUMBER? {HELP.format('train')}"),
    ("train cohort --out new --gpu", 2, f"No such option: --gpu. Did you mean --device cuda? {HELP.format('train')}"),
    ("validate cohort again", 2, f"Got unexpected extra argument(s) (again). {HELP.format('validate')}"),
    ("train cohort --out new --epochs 0", 2, f"Invalid value for '--epochs': Input should be greater than or equal to 1. {HELP.format('train')}"),
    ("train cohort --out new --recipe fancy", 2, f"Invalid value for '--recipe': 'fancy' is not one of 'default', 'joint', 'taught', 'paper', 'paper_constrained', 'paper_budget'. {HELP.format('train')}"),
    ("split cohort --folds two", 2, f"Invalid value for '--folds': Input should be a valid integer, unable to parse string as an integer. {HELP.format('split')}"),
    ("view gce --port 99999", 2, f"Invalid value for '--port': Input should be less than or equal to 65535. {HELP.format('view')}"),
    # Settings
    ("train cohort --out new --set lr=0.1", 2, f"There is no setting 'lr'. Did you mean learning_rate? There are: {SETTINGS}"),
    ("train cohort --out new --set budget=0.1", 2, f"There is no setting 'budget'. Did you mean evidence.budget? There are: {SETTINGS}"),
    ("train cohort --out new --set evidence.recovery.tresh=1", 2, "There is no setting 'evidence.recovery.tresh'. Did you mean evidence.recovery.threshold? There are: evidence.recovery.threshold, …"),
    ("train cohort --out new --set epochs", 2, "A setting is written key=value, such as epochs=20; got 'epochs'."),
    ("train cohort --out new --set epochs=many", 2, "epochs must be a whole number (got 'many')."),
    ("train cohort --out new --set evidence.budget=5", 2, "evidence.budget must be at most 1 (got 5)."),
    ("train cohort --out new --no-gce --set evidence.budget=0.1", 2, "'evidence.budget' cannot be set: 'evidence' is switched off in these settings."),
    ("train cohort --out new --device gpu", 2, "device: a device is auto, cpu, cuda, cuda:1 or mps (got 'gpu')."),
    ("train cohort --out new --config settings.yaml", 2, f"settings.yaml: there is no key 'lr'. Did you mean learning_rate? There are: {SETTINGS}"),
    ("train cohort --out new --config missing.yaml", 2, "missing.yaml does not exist. 'gcemil train --print-config' prints a file to start from."),
    ("train cohort --out new --config notes.txt", 2, "notes.txt holds no settings. Write them as 'key: value', one to a line."),
    ("train cohort --out new --config gce --host dsmil", 2, "--host and --config both set the training. Leave --host out, or change the file's settings with --set host.name=NAME."),
    ("train cohort --out new --host abmill", 2, f"Unknown host 'abmill'. Did you mean abmil? Choose one of: {HOSTS}; or name a class of your own as package.module:Class."),
    ("train cohort --out new --freeze-host", 2, "--freeze-host needs the weights of a trained host: give --host-weights."),
    # A folder that is something else
    ("train cohrt --out new", 1, NO_COHORT),
    ("split cohrt", 1, NO_COHORT),
    ("validate cohrt", 1, NO_COHORT),
    ("validate gce", 1, "gce is a run, not a cohort. Give the folder of the cohort it was trained on."),
    ("split trident", 1, "trident is not a cohort: it has no cohort.yaml. Make one with 'gcemil import' or 'gcemil simulate'; 'gcemil inspect trident' says what it is."),
    ("diagnose nowhere", 1, NO_RUN),
    ("evaluate nowhere", 1, NO_RUN),
    ("report nowhere", 1, NO_RUN),
    ("view nowhere --no-browser", 1, NO_RUN),
    ("report cohort", 1, IS_COHORT),
    ("figures nowhere", 1, NO_RUN),
    ("figures gce --format eps", 2, "Figures are written as svg, pdf, png, separated by commas; got 'eps'."),
    ("figures gce --slide nobody", 2, "Slide 'nobody' is not among the test slides of gce. Take an id of fold_<k>/predictions.csv."),
    ("train cohort --out new --tracker comet", 2, f"Invalid value for '--tracker': 'comet' is not one of 'tensorboard', 'mlflow', 'wandb', 'none'. {HELP.format('train')}"),
    ("predict cohort trident", 1, IS_COHORT),
    ("predict run trident --address head:6379", 2, "--address is the address of a Ray cluster: add --engine ray."),
    ("diagnose gce/fold_0", 1, "gce/fold_0 is a fold of a run. Give gce."),
    ("inspect nowhere", 1, "nowhere does not exist. Give a file or a folder."),
    ("train cohort --out cohort", 1, "cohort is not a run, and not empty: it holds 'anchor_pairs.h5'. Give another --out."),
    ("validate badcard", 1, None),
    ("split badcard", 1, "badcard/cohort.yaml is not what it should be: there is no key 'patchsize'. Did you mean patch_size_level0? There are: name, task, classes, negative_class, feature_dim, encoder, patch_size_level0, anchors, bag_unit, provenance. Correct the card."),
    # Folds
    ("train cohort --out new --folds 9", 1, FOLDS),
    ("train cohort --out new --folds one", 2, "--folds is 'all' or numbers such as 0,2; got 'one'."),
    ("audit cohort --model gce --fold 9 --out new.json", 1, FOLDS),
    ("diagnose gce --only snr --folds 9", 1, "gce/fold_9/checkpoint.safetensors does not exist: the fold is not trained. Trained are: fold_0. Train it with 'gcemil train'."),
    ("train unsplit --out new", 1, "unsplit has no folds. Make them with 'gcemil split unsplit'."),
    ("split cohort", 2, "cohort/splits already holds folds. Add --force to replace them."),
    ("split few", 1, "few: 6 cases are too few for 5 folds: fold 0 would validate on nothing. Give --folds 3 or fewer, or add cases. Nothing was written."),
    ("split few --parts 1,2", 2, "--parts are three whole numbers such as 90,30,300; got '1,2'."),
    # Features and labels
    ("import nowhere --labels labels.csv --out new", 1, "nowhere does not exist. Give the folder that holds the features of your slides."),
    ("import notes.txt --labels labels.csv --out new", 1, "notes.txt is a file. Give the folder that holds the features of your slides."),
    ("import cohort --labels labels.csv --out new", 1, "cohort is a cohort already. Use it as it is: 'gcemil validate cohort'."),
    ("import empty --labels labels.csv --out new", 1, "empty is not a features folder of wsidata, STAMP, TRIDENT, CLAM or torchmil. Try 'gcemil inspect empty'."),
    ("import trident --labels lables.csv --out new", 1, "lables.csv does not exist. Did you mean labels.csv? Give the path of the table."),
    ("import trident --out new", 2, "trident/20x_256px_0px_overlap/features_uni_v1 holds features only. Give the label table with --labels."),
    ("import trident --labels labels.csv --target gleason --out new", 2, "labels.csv has no column 'gleason'. Its columns are: slide_id, case_id, label, stage. Name the label with --target."),
    ("import trident --labels many.csv --target Grade --out new", 2, "many.csv has no column 'Grade'. Did you mean grade? Its columns are: case_id, slide_id, grade, stage. Name the label with --target."),
    ("import trident --labels many.csv --out new", 2, "many.csv does not say which column is the label: it has case_id, slide_id, grade, stage. Name it with --target, or for survival give --time and --event."),
    ("import trident --labels labels.csv --time month --event stage --out new", 2, "labels.csv has no column 'month'. Its columns are: slide_id, case_id, label, stage. Name two of them with --time and --event."),
    ("import trident --labels others.csv --out new", 1, "others.csv has one row per case_id ('X1' …), and no slide begins with one of them ('P0-0' …). Add a column slide_id, or for STAMP give --slide-table."),
    ("import trident --labels labels.csv --out cohort", 2, "cohort is not an empty folder. Choose another one, or replace the cohort with --force."),
    ("import trident --recipe braks --out new", 2, f"Unknown recipe 'braks'. Did you mean bracs? Choose one of: {RECIPES}."),
    ("encode nowhere --out new", 2, "nowhere does not exist. Give slide files, or a folder of them."),
    ("encode empty --out new", 2, "No slides found in empty. Slides are files that end in .ome.tiff, .ome.tif, .svs, …"),
    ("simulate lung --out new", 2, f"Unknown profile 'lung'. Choose one of: {PROFILES}."),
    ("simulate nsclc --dial label_nois=1 --out new", 2, "Simulator dials: there is no key 'label_nois'. Did you mean label_noise? There are: evidence_strength, …"),
    ("annotate cohort nowhere", 2, "nowhere does not exist. Give the folder that holds the annotation files."),
    ("annotate cohort empty --negative-class Normal", 2, "'Normal' is not a class of cohort; it has: LUAD, LUSC."),
    # Evidence and measurements
    ("explain gce --slide nsclc-0001-s1.svs", 2, "cohort/slides.csv has no slide 'nsclc-0001-s1.svs'. Did you mean nsclc-0001-s1? …"),
    ("diagnose gce --only snrr", 2, "Unknown diagnostic 'snrr'. Did you mean snr? Choose from: snr, budget, posthoc, …"),
    ("audit cohort --model abmil --out new.json", 2, "--model 'abmil' is neither a run folder nor a callable of yours, which is written package.module:callable or folder/file.py:callable."),
    ("audit cohort --model my_lab:predict --out new.json", 2, "--model 'my_lab:predict': module 'my_lab' cannot be imported (No module named 'my_lab'). It is searched for among the installed packages and in the working folder."),
    ("audit cohort --model gce --budget 5 --out new.json", 2, f"Invalid value for '--budget': Input should be less than or equal to 1. {HELP.format('audit')}"),
    ("adopt missing.pt --host abmil --cohort cohort --out new", 1, "missing.pt does not exist. Give the file of weights that your training wrote."),
    ("anchors fit-bridge unsplit", 1, "unsplit/anchors.h5 does not exist. Make it with 'gcemil anchors embed FAMILY --out unsplit'."),
    ("repack nowhere", 1, "nowhere does not exist. Give a feature file, or a folder of them."),
    ("tables nowhere", 1, "nowhere does not exist. Give the results folder of 'gcemil benchmark'."),
]  # fmt: skip


@pytest.fixture(scope="module")
def world(classification_runs, tmp_path_factory):
    """A working folder as people have it: a cohort, a run, features of another tool, tables, and what is none of these."""
    root = tmp_path_factory.mktemp("world")
    (root / "cohort").symlink_to(classification_runs.cohort)
    (root / "gce").symlink_to(classification_runs.gce)
    for index in range(6):
        trident_features(root / "trident", f"P{index // 2}-{index % 2}", grid(8, 512))
    cases = [(f"P{index // 2}", f"P{index // 2}-{index % 2}", index // 2 % 2) for index in range(6)]
    write_table(
        root / "labels.csv",
        "slide_id,case_id,label,stage",
        *(f"{s},{c},{v},I" for c, s, v in cases),
    )
    write_table(
        root / "many.csv", "case_id,slide_id,grade,stage", *(f"{c},{s},{v},I" for c, s, v in cases)
    )
    write_table(root / "others.csv", "case_id,label", "X1,a", "X2,b")
    (root / "settings.yaml").write_text("lr: 0.1\n")
    (root / "notes.txt").write_text("bring the slides\n")
    (root / "empty").mkdir()
    write_bare_cohort(root / "unsplit", n_cases=12)
    write_bare_cohort(root / "few", n_cases=6)
    shutil.copytree(root / "few", root / "badcard")
    with (root / "badcard" / "cohort.yaml").open("a") as card:
        card.write("patchsize: 256\n")
    return root


def write_bare_cohort(folder, n_cases):
    """Tables of a cohort without features."""
    write_table(
        folder / "slides.csv",
        "slide_id,case_id,label",
        *(f"s{i},c{i},{'ab'[i % 2]}" for i in range(n_cases)),
    )
    card = {"name": "bare", "task": "classification", "classes": ["a", "b"], "feature_dim": 8}
    (folder / "cohort.yaml").write_text(yaml.safe_dump(card))


@pytest.fixture
def answer(world, monkeypatch, capsys):
    """Exit code, what was printed, and what was said about a command typed in that folder."""
    monkeypatch.chdir(world)

    def type_(command):
        for variable in main.ANYWHERE.values():
            monkeypatch.setenv(variable, "0")
        monkeypatch.setattr(sys, "argv", ["gcemil", *shlex.split(command)])
        with pytest.raises(SystemExit) as left:
            main.main()
        printed = capsys.readouterr()
        return left.value.code or 0, printed.out, printed.err

    return type_


@pytest.mark.parametrize(
    ("typed", "code", "answered"), MISTAKES, ids=[typed for typed, _, _ in MISTAKES]
)
def test_a_mistake_is_answered_in_one_sentence(
    answer, world, classification_runs, typed, code, answered
):
    before = sorted(path.name for path in world.iterdir())
    ended, printed, said = answer(typed)
    assert ended == code, said
    assert sorted(path.name for path in world.iterdir()) == before
    if answered is None:
        # 'validate' lists its findings in a table.
        assert "patchsize" in printed
        return
    said = said.replace(str(classification_runs.cohort), "cohort")
    assert said.startswith("gcemil: ")
    assert said.count("\n") == 1
    sentence = said.removeprefix("gcemil: ").rstrip("\n")
    if answered.endswith("…"):
        assert sentence.startswith(answered.rstrip("…").rstrip()), sentence
    else:
        assert sentence == answered
    assert not re.search(r"Error\b|Traceback|replace=True|NoneType|TrainSettings|\bself\b", said)


def test_the_longer_of_two_names_is_the_patient(answer, tmp_path):
    for slide in ("P1-2-A", "P1-A", "P10-A"):
        trident_features(tmp_path / "job", slide, grid(4, 512))
    write_table(tmp_path / "patients.csv", "case_id,label", "P1,a", "P1-2,b")
    assert (
        answer(
            f"import {tmp_path / 'job'} --labels {tmp_path / 'patients.csv'} --out {tmp_path / 'made'}"
        )[0]
        == 0
    )
    found = {row.slide_id: row.case_id for row in Cohort.load(tmp_path / "made").slides}
    assert found == {"P1-2-A": "P1-2", "P1-A": "P1"}


def test_features_with_a_leading_one_are_squeezed(answer, tmp_path):
    folder = tmp_path / "job" / "20x_256px_0px_overlap" / "features_uni_v1"
    folder.mkdir(parents=True)
    for index in range(4):
        with h5py.File(folder / f"Q{index}.h5", "w") as file:
            file["features"], file["coords"] = rows(8, seed=index)[None], grid(8, 512)[None]
    table = write_table(tmp_path / "labels.csv", "slide_id,label", "Q0,a", "Q1,b", "Q2,a", "Q3,b")
    code, printed, said = answer(
        f"import {tmp_path / 'job'} --labels {table} --out {tmp_path / 'made'}"
    )
    assert code == 0, said
    assert "Slides stored as (1, patches, dimension) lose the 1" in printed
    cohort = Cohort.load(tmp_path / "made")
    bag = cohort.read_bag(cohort.bags[1])
    assert (bag.features == rows(8, seed=1)).all()
    assert bag.coords.tolist() == grid(8, 512).tolist()


def test_a_published_test_set_is_kept_and_validation_comes_out_of_training(answer, tmp_path):
    source = torchmil_set(
        tmp_path / "set", {f"b{i:02d}": (grid(4, 512), i // 2 % 2, [0, 0, 1, 0]) for i in range(40)}
    )
    code, printed, said = answer(f"import {source} --out {tmp_path / 'made'}")
    assert code == 0, said
    assert (
        "splits.csv names no validation slides: 2 of its training slides validate in fold 0"
        in printed
    )
    cohort = Cohort.load(tmp_path / "made")
    fold = read_fold(cohort, 0)
    assert fold.slides("test") == [f"b{i:02d}" for i in range(1, 40, 2)]
    label = {row.slide_id: row.label for row in cohort.slides}
    assert sorted(label[slide] for slide in fold.slides("val")) == ["0", "1"]
    assert len(fold.slides("train")) == 18


def test_quiet_and_verbose_may_stand_behind_the_command(answer, world):
    assert "checking slides" not in answer("validate cohort --quiet")[2]
    assert "checking slides: 24/24" in answer("validate cohort --verbose")[2]
