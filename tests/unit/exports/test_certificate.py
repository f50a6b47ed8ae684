import json
from dataclasses import replace

import pytest

from gcemil.errors import RunError
from gcemil.exports.certificate import (
    AnchorCoverage,
    Certificate,
    Prediction,
    Predictions,
    Subject,
    Verdict,
    read_certificate,
    write_certificate,
)


def prediction(probability):
    return Prediction({"prob_normal": 1 - probability, "prob_tumour": probability}, probability)


SUBJECT = Subject(
    "a", "a", ("a",), "test", n_patches=40, n_selected=2, slide_n_patches=40, slide_n_selected=2
)
CERTIFICATE = Certificate(
    subject=SUBJECT,
    rule="recovered evidence",
    output_name="probability of tumour",
    predictions=Predictions(prediction(0.9), prediction(0.875), prediction(0.88), prediction(0.25)),
    verdicts={
        "sufficient": Verdict(True, 0.02, 0.05),
        "necessary": Verdict(True, 0.65, 0.05),
        "recoverable": Verdict(False, 0.005, 0.001),
    },
    stop_reason="covered",
    anchors=(AnchorCoverage("necrosis", 0.97, 0.95, 1.0), AnchorCoverage("mucin", 0.2, 0.0, 0.1)),
    settings={"budget": 0.05},
    provenance={"fold": 0},
    notes=("one more thing",),
)


def test_the_headline_says_every_verdict_with_its_numbers():
    assert CERTIFICATE.headline == (
        "sufficient: change 0.020, at most 0.05; necessary: change 0.650, at least 0.05; "
        "not recoverable: change 0.005, at most 0.001"
    )


def test_that_there_is_no_evidence_comes_first():
    necessary = {"necessary": Verdict(False, 0.01, 0.05)}
    none = replace(CERTIFICATE, verdicts={**CERTIFICATE.verdicts, **necessary})
    assert none.headline.startswith(
        "no evidence: without these patches the prediction stays as it is; sufficient"
    )
    assert none.to_json()["verdict"].startswith("no evidence")
    assert CERTIFICATE.to_json()["verdict"] == "sufficient and necessary"
    # A whole bag leaves nothing to compare with, which is another thing.
    whole = replace(
        CERTIFICATE, verdicts={**CERTIFICATE.verdicts, "necessary": Verdict(False, None, 0.05)}
    )
    assert whole.headline.startswith("sufficient")


def test_only_evidence_that_holds_is_called_confirmed():
    unlearned = replace(CERTIFICATE, model_warning="The model is at chance.")
    unconfirmed = replace(CERTIFICATE, is_confirmed=False)
    alone = replace(
        CERTIFICATE, verdicts={**CERTIFICATE.verdicts, "sufficient": Verdict(False, 0.3, 0.05)}
    )
    cases = [(CERTIFICATE, "confirmed, sufficient and necessary", True), (unlearned, "not certified", False),
             (unconfirmed, "no evidence of a lesion", False), (alone, "necessary, not sufficient alone", True)]  # fmt: skip
    for made, words, is_evidence in cases:
        assert (made.short_verdict, made.is_evidence) == (words, is_evidence)


def test_a_certificate_is_read_as_it_was_written(tmp_path):
    path = write_certificate(tmp_path / "c.json", CERTIFICATE)
    assert read_certificate(path) == CERTIFICATE
    value = json.loads(path.read_text())
    assert value["headline"] == CERTIFICATE.headline
    assert value["subject"]["fraction"] == 0.05
    assert [anchor["covered"] for anchor in value["anchors"]] == [True, None]


def test_of_a_case_it_says_that_it_is_about_the_case(tmp_path):
    case = replace(
        SUBJECT, bag_id="case-1", bag_slides=("a", "b"), slide_n_patches=10, slide_n_selected=1
    )
    (note,) = case.notes
    assert note.startswith("Case 'case-1' has 2 slides, which form one bag")
    assert "1 of its 2 selected patches lie on slide 'a'" in note
    written = write_certificate(tmp_path / "c.json", replace(CERTIFICATE, subject=case))
    assert read_certificate(written).subject == case
    assert json.loads(written.read_text())["notes"] == [note, "one more thing"]


def test_a_slide_the_model_has_seen_is_said_to_be_seen():
    assert replace(SUBJECT, part="train").notes == (
        "The model is not new to this slide: it is in the train part of the fold.",
    )
    assert SUBJECT.notes == ()


@pytest.mark.parametrize("text", ["no json", "{}", '{"subject": {"fraction": 1}}', "[]"])
def test_another_file_is_no_certificate(tmp_path, text):
    (tmp_path / "c.json").write_text(text)
    with pytest.raises(RunError, match=r"c\.json is not .*is no certificate of gcemil"):
        read_certificate(tmp_path / "c.json")
