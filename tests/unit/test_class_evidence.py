"""Evidence for a class that is asked about, and why one class and not another."""

import pytest
import torch

import gcemil
from gcemil.errors import UsageError
from gcemil.outputs import AskedOutput, ClassQuestion, Tolerances, judge

A, B, NOTHING = 0, 1, 3
"""Which class a patch votes for; the last column is read by nothing."""


def make_votes(*votes):
    """One patch per vote, and a model whose logits are six times the mean vote, with a class c in the lead of nobody."""
    bag = torch.eye(4)[torch.tensor(votes)]
    model = gcemil.wrap(
        lambda rows: 6 * rows.mean(dim=0)[:3], 2, patches=torch.eye(4).repeat(10, 1)
    )
    return model, bag


def logits(*values):
    return torch.tensor(values, dtype=torch.float32)


def test_a_class_against_another_is_its_share_of_both():
    asked = AskedOutput(3, target=0, against=2)
    found = asked.phi(logits(0, 0, 0), torch.stack([logits(1, 9, 1), logits(2, 9, 0)]))
    assert found.tolist() == pytest.approx([0.5, 1 / (1 + torch.e**-2)])


def test_of_a_class_asked_about_only_a_fall_counts():
    asked = AskedOutput(2, target=1)
    full, surer, gone = logits(1, 0), logits(0, 3), logits(5, 0)
    verdict = judge(asked, full, surer, gone, Tolerances())
    assert verdict.is_sufficient
    assert verdict.is_necessary
    assert verdict.keeps_class
    assert judge(asked, full, gone, surer, Tolerances()).is_sufficient is False


def test_patches_that_speak_for_a_class_are_found_though_another_is_predicted():
    model, bag = make_votes(A, A, A, A, A, B, B, B, NOTHING, NOTHING)
    predicted, asked = gcemil.explain(model, bag), gcemil.explain(model, bag, target="1")
    assert max(predicted.prediction, key=predicted.prediction.get) == "0"
    assert set(asked.indices) <= {5, 6, 7}
    assert asked.verdict == "sufficient and necessary"


def test_why_a_and_not_b_ends_with_the_set_whose_removal_turns_the_prediction():
    model, bag = make_votes(A, A, A, A, A, B, B, B, NOTHING, NOTHING)
    found = gcemil.explain(model, bag, target=0, against=1)
    assert set(found.indices) <= {0, 1, 2, 3, 4}
    (turning,) = [one for one in found.further if one.name == "removal turns it into 1"]
    # Five votes against three: without three of the five, B has three against two.
    assert len(turning.patches) == 3
    assert set(turning.patches) <= {0, 1, 2, 3, 4}
    assert turning.removed_class == "1"
    assert turning.necessary
    assert turning.removed < 0.5 < turning.kept


def test_against_alone_asks_about_the_predicted_class():
    model, bag = make_votes(A, A, A, A, B, B)
    assert set(gcemil.explain(model, bag, against="1").indices) <= {0, 1, 2, 3}


def test_alternatives_share_no_patch_and_each_keeps_the_class():
    model, bag = make_votes(*[A] * 60, *[NOTHING] * 60)
    found = gcemil.explain(model, bag)
    names = [one.name for one in found.further]
    assert names == ["alternative 2", "alternative 3"]
    sets = [set(found.indices), *(set(one.patches) for one in found.further)]
    assert sum(map(len, sets)) == len(set().union(*sets))
    assert {one.kept_class for one in found.further} == {"0"}
    full = found.prediction["0"]
    assert all(one.kept >= full - model.tolerances.sufficiency for one in found.further)


@pytest.mark.parametrize(
    ("names", "target", "against", "words"),
    [
        (("benign", "tumour"), "tumor", None, "no class 'tumor'.* Did you mean tumour"),
        (("benign", "tumour"), 2, None, "no class '2'"),
        (("benign", "tumour"), "benign", 0, "against itself"),
        (("risk",), "risk", None, "one number and has no classes"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused(names, target, against, words):
    with pytest.raises(UsageError, match=words):
        ClassQuestion.read(names, target, against)


def test_the_predicted_class_against_itself_is_refused():
    with pytest.raises(UsageError, match="'b' is the predicted class"):
        ClassQuestion.read(("a", "b"), None, "b").ask(logits(0, 1))
