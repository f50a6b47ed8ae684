from dataclasses import replace

import pytest

from gcemil.exports.certificate import Judgement, Verdict, describe_direction

HOLDS = Judgement(
    {
        "sufficient": Verdict(True, 0.02, 0.05),
        "necessary": Verdict(True, 0.65, 0.05),
        "recoverable": Verdict(False, 0.005, 0.001),
    }
)
NO_EVIDENCE = "no evidence: without these patches the prediction stays as it is"


def changed(**verdicts):
    return replace(HOLDS, verdicts={**HOLDS.verdicts, **verdicts})


def test_the_headline_says_every_verdict_with_its_numbers():
    assert HOLDS.headline == (
        "sufficient: change 0.020, at most 0.05; necessary: change 0.650, at least 0.05; "
        "not recoverable: change 0.005, at most 0.001"
    )
    assert changed(necessary=Verdict(False, 0.01, 0.05)).headline.startswith(
        f"{NO_EVIDENCE}; sufficient"
    )


@pytest.mark.parametrize(
    ("judgement", "text", "short_text", "is_evidence"),
    [
        (HOLDS, "sufficient and necessary", "confirmed, sufficient and necessary", True),
        (changed(necessary=Verdict(False, 0.01, 0.05)), NO_EVIDENCE, "no evidence", False),
        # A whole bag leaves nothing to compare with.
        (changed(necessary=Verdict(False, None, 0.05)), "not checked", "not checked", True),
        (
            changed(sufficient=Verdict(False, 0.3, 0.05)),
            "necessary, not sufficient alone",
            "necessary, not sufficient alone",
            True,
        ),
        (
            replace(HOLDS, is_confirmed=False),
            "no evidence of a lesion: slides without one show as much",
            "no evidence of a lesion",
            False,
        ),
        (
            replace(HOLDS, model_warning="The model is at chance."),
            "not certified: the model has not learned",
            "not certified",
            False,
        ),
    ],
)
def test_only_evidence_that_holds_is_called_confirmed(judgement, text, short_text, is_evidence):
    shown = (judgement.text, judgement.short_text, judgement.is_evidence)
    assert shown == (text, short_text, is_evidence)


def test_the_direction_names_changes_of_phi_and_of_the_class():
    predictions = {
        name: {"values": {"prob_normal": 1 - phi, "prob_tumour": phi}, "output": phi}
        for name, phi in {"full": 0.9, "kept": 0.88, "removed": 0.25}.items()
    }
    assert describe_direction(predictions) == (
        "Phi is 0.900, from the patches alone 0.880 (-0.020, the class stays), "
        "and without them 0.250 (-0.650, the class becomes normal)."
    )
    whole = describe_direction({**predictions, "removed": None})
    assert whole == "Phi is 0.900, from the patches alone 0.880 (-0.020, the class stays)."
