"""The vote benchmark on small trained runs: figures exist, and those that are known by reasoning have their value."""

import json
import math
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from benchmarks import vote
from sklearn.metrics import f1_score

from gcemil.diagnostics.snr import OutputScale, RiskScale
from gcemil.diagnostics.trained_fold import TrainedFold
from gcemil.hosts.abmil import Abmil
from gcemil.hosts.host import Embedded, HostOutput
from gcemil.outputs import ClassOutput, Tolerances
from gcemil.search import Search

RULES = {"evidence", "attention", "contribution", "occlusion", "random", "oracle"}


@pytest.fixture(scope="module")
def classes(classification_runs):
    """A run that is judged by itself."""
    fold = TrainedFold.open(classification_runs.gce, 0)
    slides, rules = vote.measure_slides(fold, classification_runs.gce)
    return slides, rules, vote.summarise(fold, slides, rules)


@pytest.fixture(scope="module")
def risks(survival_runs):
    fold = TrainedFold.open(survival_runs.gce, 0)
    slides, rules = vote.measure_slides(fold)
    return slides, rules, vote.summarise(fold, slides, rules)


@pytest.mark.parametrize("task", ["classes", "risks"])
def test_every_rule_has_every_figure(request, task):
    slides, rules, _ = request.getfixturevalue(task)
    assert set(rules["rule"]) == RULES | {f"{rule} searched" for rule in RULES - {"oracle"}}
    assert (rules.groupby("rule").size() == len(slides)).all()
    always = [
        "size",
        "kept",
        "removed",
        "odds kept",
        "odds removed",
        "transplant",
        "F kept",
        "F removed",
    ]
    along = ["aukc", "removal", "msk", *(f"keep {share}" for share in vote.SHARES)]
    assert np.isfinite(rules[always]).all(axis=None)
    assert np.isfinite(rules.loc[rules["rule"].isin(RULES), along]).all(axis=None)
    assert np.isfinite(slides[["host", "head", "gce", "F", "F oracle", "riders"]]).all(axis=None)


@pytest.mark.parametrize("task", ["classes", "risks"])
def test_rules_have_the_size_of_the_evidence_unless_they_are_searched(request, task):
    _, rules, _ = request.getfixturevalue(task)
    sizes = rules[rules["rule"].isin(RULES)].groupby("slide")["size"]
    assert (sizes.nunique() == 1).all()


def test_a_run_that_judges_itself_transfers_and_repeats_its_own_evidence(classes):
    _, rules, summary = classes
    for name in ("kept", "removed"):
        assert np.allclose(rules[f"transfer F {name}"], rules[name])
    jaccard = summary["jaccard"]
    assert (jaccard["evidence"], jaccard["sets"], jaccard["attention"]) == (1, 1, 1)
    assert 0 < jaccard["chance"] < 1


class LargestPatch(Abmil):
    """Two classes; the logit of the second is ten times the largest value of the bag."""

    def aggregate(self, embedded, coords, **options):
        logits = torch.stack([torch.tensor(5.0), 10 * embedded.tokens.max()])
        return HostOutput(logits, torch.zeros(1), torch.zeros(1))


@pytest.fixture
def judge():
    tokens = torch.zeros(20, 1)
    tokens[3] = tokens[4] = 1.0
    return vote.Judge(
        LargestPatch(1, 2).eval(), Embedded(tokens), None, OutputScale(2, RiskScale())
    )


def test_replacing_by_background_removes_what_the_patches_show(judge):
    both = torch.zeros(20, dtype=torch.bool)
    both[3] = both[4] = True
    one = both.clone()
    one[4] = False
    background, generator = torch.arange(5, 20), torch.Generator().manual_seed(0)
    assert judge.whole == pytest.approx(1 / (1 + math.exp(-5)))
    assert judge.replace(one, background, generator) == pytest.approx(0)
    assert judge.replace(both, background, generator) == pytest.approx(judge.remove(both))
    assert math.isnan(judge.replace(torch.ones(20, dtype=torch.bool), background, generator))


def test_the_search_takes_the_smallest_prefix(judge):
    order = torch.tensor([3, 4, *range(3), *range(5, 20)])
    scores = torch.zeros(20)
    scores[order] = torch.arange(20, 0, -1).float()
    assert vote.search_prefix(
        Search(judge.ask, judge.full, ClassOutput(2), Tolerances(0.02, 0.125)), scores
    ).nonzero().flatten().tolist() == [3, 4]


def test_macro_f1_is_that_of_scikit_learn():
    generator = np.random.default_rng(0)
    labels, answers = generator.integers(4, size=50), generator.integers(5, size=50)
    columns = {"target": labels, "event": np.full(50, np.nan), "said": answers.astype(float)}
    assert vote.metric(columns, "said") == pytest.approx(f1_score(labels, answers, average="macro"))


def test_the_command_writes_json_and_a_table(classification_runs, tmp_path, monkeypatch, capsys):
    files = ["--json", str(tmp_path / "v.json"), "--csv", str(tmp_path / "v.csv.gz")]
    monkeypatch.setattr(sys, "argv", ["vote.py", str(classification_runs.gce), *files])
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    vote.main()
    table, summary = (
        pd.read_csv(tmp_path / "v.csv.gz"),
        json.loads((tmp_path / "v.json").read_text()),
    )
    assert json.loads(capsys.readouterr().out) == summary
    assert len(table) == summary["slides"] * len(summary["rules"])
    assert not table.duplicated(["slide", "rule"]).any()
