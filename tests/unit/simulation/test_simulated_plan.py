"""Labels follow from concepts, risk from coverage, and time from risk."""

import numpy as np
import pytest

from gcemil.simulation.plan import (
    Region,
    choose_concepts,
    class_counts,
    corrupt_labels,
    draw_labels,
    draw_outcomes,
    draw_sites,
    log_risk,
    plan_cases,
    share_of_concepts,
    true_label,
)
from gcemil.simulation.profile import Dials, load_profile

BRACS = load_profile("bracs")
N, PB, UDH, FEA, ADH, DCIS, IC = range(7)


@pytest.mark.parametrize(
    ("present", "label"),
    [
        ((), N),
        (("benign ducts", "ink"), N),
        (("gland formation",), UDH),
        (("nuclear pleomorphism",), FEA),
        (("gland formation", "nuclear pleomorphism"), ADH),
        (("necrosis",), DCIS),
        (("mitotic activity",), DCIS),
        (("mimic of invasive epithelial nests",), N),
        (("gland formation", "invasive epithelial nests"), IC),
    ],
)
def test_bracs_rule(present, label):
    assert true_label(present, BRACS) == label


def test_class_counts_keep_the_balance_and_add_up():
    counts = class_counts(load_profile("brca"), 150)
    assert sum(counts) == 150
    assert counts[0] / 150 == pytest.approx(0.8, abs=0.01)


def test_label_noise_replaces_exactly_its_share_by_other_classes():
    labels = np.arange(40) % 4
    noisy = corrupt_labels(labels, 4, 0.25, np.random.default_rng(0))
    assert (noisy != labels).sum() == 10
    assert set(noisy.tolist()) <= {0, 1, 2, 3}


def test_redundancy_of_one_shows_two_causes_where_there_are_two():
    generator = np.random.default_rng(0)
    sure, never = Dials(redundancy=1), Dials(redundancy=0)
    assert set(choose_concepts(BRACS, sure, DCIS, generator)) == {"necrosis", "mitotic activity"}
    assert len(choose_concepts(BRACS, never, DCIS, generator)) == 1
    assert len(choose_concepts(BRACS, sure, IC, generator)) == 1


def cases_of(name, **dials):
    return plan_cases(
        load_profile(name), Dials(**dials), prefix=name, n_slides=400, patches=(200, 400), seed=0
    )


def presence(cases, concept, label):
    slides = [regions for case in cases if case.target == label for regions in case.regions]
    return np.mean([any(region.concept == concept for region in regions) for regions in slides])


def test_distractors_go_with_their_classes_without_deciding_them():
    cases = cases_of("nsclc", distractor_rate=0.3, distractor_correlation=0.4)
    with_lusc, with_luad = (presence(cases, "carbon pigment", label) for label in (1, 0))
    assert with_lusc == pytest.approx(0.58, abs=0.08)
    assert with_luad == pytest.approx(0.18, abs=0.08)


def test_slides_of_one_case_share_the_label_and_some_cases_have_several():
    cases = cases_of("brca", slides_per_case=1.5)
    assert sum(len(case.n_patches) for case in cases) == 400
    assert max(len(case.n_patches) for case in cases) > 1
    assert len(cases) == pytest.approx(400 / 1.5, rel=0.1)


def test_the_noise_of_a_value_is_the_share_of_its_variance_that_the_dial_says():
    values = np.random.default_rng(0).normal(3, 2, size=20000)
    labels = np.array(draw_labels(values, Dials(label_noise=0.2), np.random.default_rng(1)))
    assert np.corrcoef(values, labels)[0, 1] ** 2 == pytest.approx(0.8, abs=0.01)
    assert draw_labels(values[:3], Dials(), np.random.default_rng(1)) == pytest.approx(
        values[:3], abs=1e-4
    )


def test_confounded_sites_follow_the_class_and_others_do_not():
    labels = np.repeat([0, 1], 500)
    for confounding, share in ((0.0, 0.5), (0.5, 0.75), (1.0, 1.0)):
        dials = Dials(sites=2, site_confounding=confounding)
        sites = draw_sites(labels, dials, np.random.default_rng(0), is_ranked=False)
        assert (sites == labels).mean() == pytest.approx(share, abs=0.05)


def test_log_risk_by_hand():
    dials = Dials(risk_effect=2, dose_exponent=0.5, evidence_max=0.04)
    factors = {"solid growth": 1.0, "lepidic-like regions": -0.5}
    shares = {"solid growth": 0.01, "lepidic-like regions": 0.09, "ink": 0.2}
    assert log_risk(shares, factors, dials) == pytest.approx(2 * (1.0 * 0.5 - 0.5 * 1.0))


def test_coverage_is_over_all_slides_of_the_case_and_ignores_bystanders():
    first = (Region("a", "evidence", 10), Region("a", "bystander", 50))
    second = (Region("a", "evidence", 5), Region("b", "evidence", 30))
    assert share_of_concepts((first, second), 300) == pytest.approx({"a": 0.05, "b": 0.1})


@pytest.mark.parametrize("censoring", [0.0, 0.3, 0.84])
def test_share_of_events_is_the_one_asked_for(censoring):
    seen = draw_outcomes(np.zeros(200), Dials(censoring=censoring), np.random.default_rng(0))
    assert sum(event for _, event in seen) == round(200 * (1 - censoring))
    assert min(time for time, _ in seen) > 0


def test_median_time_is_that_of_a_case_without_risk():
    seen = draw_outcomes(
        np.zeros(4000), Dials(censoring=0, median_time=30), np.random.default_rng(2)
    )
    assert np.median([time for time, _ in seen]) == pytest.approx(30, rel=0.06)
