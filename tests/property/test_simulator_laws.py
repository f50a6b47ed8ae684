"""Laws of every simulated slide, whatever the profile, the seed and the dials."""

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage
from scipy.stats import spearmanr

from gcemil.bags.tables import check_slide_id
from gcemil.resources import shipped_names
from gcemil.simulation.layout import draw_layout
from gcemil.simulation.plan import draw_outcomes, plan_cases, true_label
from gcemil.simulation.profile import Dials, load_profile
from gcemil.simulation.simulate import simulate

PROFILES = {name: load_profile(name) for name in shipped_names("simulator")}
CLASSIFIED = sorted(name for name, profile in PROFILES.items() if profile.task == "classification")
SEEDS = st.integers(0, 10_000)
DIALS = st.fixed_dictionaries(
    {
        "border_mixing": st.sampled_from([0.0, 0.2, 0.49]),
        "redundancy": st.sampled_from([0.0, 1.0]),
        "comorbidity": st.sampled_from([0.0, 1.0]),
        "decoy_rate": st.sampled_from([0.0, 1.0]),
        "mimic_rate": st.sampled_from([0.0, 1.0]),
        "pieces_max": st.integers(1, 6),
    }
)


def cases_of(name, seed, dials, n_slides=8):
    profile = PROFILES[name]
    resolved = Dials.model_validate({**profile.dials, **dials})
    return resolved, plan_cases(
        profile, resolved, prefix=name, n_slides=n_slides, patches=(150, 500), seed=seed
    )


def slides_of(name, seed, dials):
    """Every planned slide with its layout."""
    resolved, cases = cases_of(name, seed, dials)
    generator = np.random.default_rng(seed)
    for case in cases:
        for n_patches, regions in zip(case.n_patches, case.regions, strict=True):
            yield (
                resolved,
                case,
                regions,
                draw_layout(PROFILES[name], resolved, n_patches, regions, generator),
            )


def components(cells, chosen, structure):
    grid = np.zeros(cells.max(axis=0) + 1, dtype=bool)
    grid[tuple(cells[chosen].T)] = True
    labelled, count = ndimage.label(grid, structure)
    return labelled[tuple(cells.T)], count


@settings(max_examples=25, deadline=None)
@given(name=st.sampled_from(sorted(PROFILES)), seed=SEEDS, dials=DIALS)
def test_evidence_is_within_bounds_in_connected_regions_that_do_not_touch(name, seed, dials):
    for resolved, case, _, layout in slides_of(name, seed, dials):
        n_regions = int(layout.region.max())
        if (
            PROFILES[name].task == "classification"
            and not PROFILES[name].classes[int(case.target)].causes
        ):
            assert not layout.evidence.any()
            continue
        assert resolved.evidence_min <= layout.evidence.mean() <= resolved.evidence_max
        assert 1 <= n_regions <= resolved.regions_max
        by_sides, count_by_sides = components(layout.cells, layout.evidence, None)
        _, count_by_corners = components(layout.cells, layout.evidence, np.ones((3, 3)))
        assert count_by_sides == count_by_corners == n_regions
        assert (
            len(set(zip(by_sides.tolist(), layout.region.tolist(), strict=True)) - {(0, 0)})
            == n_regions
        )


@settings(max_examples=25, deadline=None)
@given(name=st.sampled_from(sorted(PROFILES)), seed=SEEDS, dials=DIALS)
def test_overlap_is_a_share_and_exceeds_one_half_exactly_on_evidence(name, seed, dials):
    for _, _, _, layout in slides_of(name, seed, dials):
        assert ((layout.overlap >= 0) & (layout.overlap <= 1)).all()
        assert np.array_equal(layout.overlap > 0.5, layout.evidence)
        assert np.allclose(layout.composition.sum(axis=1), 1)
        assert np.array_equal(layout.composition.argmax(axis=1), layout.concept)


@settings(max_examples=25, deadline=None)
@given(name=st.sampled_from(CLASSIFIED), seed=SEEDS, dials=DIALS)
def test_concepts_on_a_slide_cause_its_noiseless_label(name, seed, dials):
    names = [concept.name for concept in PROFILES[name].concepts]
    for _, case, _, layout in slides_of(name, seed, dials):
        present = {names[index] for index in np.unique(layout.concept)}
        assert true_label(present, PROFILES[name]) == case.target


@settings(max_examples=25, deadline=None)
@given(name=st.sampled_from(CLASSIFIED), seed=SEEDS, dials=DIALS)
def test_evidence_alone_is_sufficient_and_without_it_the_label_is_lost(name, seed, dials):
    profile = PROFILES[name]
    names = np.array([concept.name for concept in profile.concepts])
    for _, case, _, layout in slides_of(name, seed, dials):
        if not layout.evidence.any():
            continue
        assert true_label(set(names[layout.concept[layout.evidence]]), profile) == case.target
        assert true_label(set(names[layout.concept[~layout.evidence]]), profile) != case.target


@settings(max_examples=20, deadline=None)
@given(name=st.sampled_from(sorted(PROFILES)), seed=SEEDS, dials=DIALS)
def test_layout_realises_its_plan_to_the_patch(name, seed, dials):
    names = [concept.name for concept in PROFILES[name].concepts]
    for _, _, regions, layout in slides_of(name, seed, dials):
        for concept in {region.concept for region in regions}:
            planned = sum(region.n_patches for region in regions if region.concept == concept)
            assert (layout.concept == names.index(concept)).sum() == planned


@settings(max_examples=15, deadline=None)
@given(name=st.sampled_from(["luad", "stad", "ucec", "kirp", "kirc"]), seed=SEEDS)
def test_risk_and_time_run_in_opposite_directions(name, seed):
    dials, cases = cases_of(
        name, seed, {"slides_per_case": 1.5, "risk_effect": 6.0, "censoring": 0.3}, n_slides=200
    )
    risks = np.array([case.target for case in cases])
    seen = draw_outcomes(risks, dials, np.random.default_rng(seed))
    with_event = np.array([event == 1 for _, event in seen])
    times = np.array([time for time, _ in seen])
    assert spearmanr(risks[with_event], times[with_event]).statistic < -0.3
    assert risks[with_event].mean() > risks[~with_event].mean()


@settings(max_examples=3, deadline=None)
@given(name=st.sampled_from(sorted(PROFILES)), seed=SEEDS)
def test_equal_seeds_give_equal_files_and_ids_are_plain(name, seed):
    with tempfile.TemporaryDirectory() as folder:
        first, second = Path(folder) / "a", Path(folder) / "b"
        cohorts = [
            simulate(name, out, size="tiny", seed=seed, slides=8, dials={"pairs": 40})
            for out in (first, second)
        ]
        assert cohorts[0].slides == cohorts[1].slides
        for row in cohorts[0].slides:
            assert check_slide_id(row.slide_id, first) == row.slide_id
            for kind in ("features", "truth"):
                name_of_file = f"{kind}/{row.slide_id}.h5"
                assert (first / name_of_file).read_bytes() == (second / name_of_file).read_bytes()
