"""A simulated cohort on disk: complete, valid, reproducible, and silent about its truth."""

import numpy as np
import pytest

from gcemil.bags import store
from gcemil.bags.cohort import Cohort
from gcemil.errors import UsageError
from gcemil.families import load_family
from gcemil.resources import shipped_names
from gcemil.simulation.plan import log_risk
from gcemil.simulation.profile import Dials, load_profile, plain_words
from gcemil.simulation.simulate import simulate

FEW_PAIRS = {"pairs": 100}


@pytest.mark.parametrize("name", shipped_names("simulator"))
def test_every_profile_makes_a_cohort_that_loads(name, tmp_path):
    written = simulate(name, tmp_path, size="tiny", dials=FEW_PAIRS)
    cohort = Cohort.load(tmp_path)
    assert cohort.slides == written.slides
    assert len(cohort.slides) == 24
    for spec in cohort.bags:
        bag = cohort.read_bag(spec)
        assert np.isfinite(bag.features).all()
        assert bag.features.dtype == np.float16
        assert (bag.coords % 512 == 0).all()


def test_files_hold_what_the_contract_says(tmp_path):
    cohort = simulate("luad", tmp_path, size="tiny", dials=FEW_PAIRS)
    slide = cohort.slides[0].slide_id
    layouts = store.describe(cohort.feature_file(slide))
    n_patches = layouts["features"].shape[0]
    assert layouts["features"].shape[1] == 48
    assert (layouts["coords"].shape, layouts["coords"].dtype) == ((n_patches, 2), np.int64)
    truth = {
        name: (item.shape, item.dtype.name)
        for name, item in store.describe(cohort.truth_file(slide)).items()
    }
    assert truth == {
        "evidence": ((n_patches,), "uint8"),
        "concept": ((n_patches,), "uint8"),
        "region": ((n_patches,), "uint16"),
        "overlap": ((n_patches,), "float32"),
    }
    pairs = store.describe(tmp_path / "anchor_pairs.h5")
    assert (pairs["features"].shape, pairs["anchor_space"].shape) == ((100, 48), (100, 32))
    for bank in ("anchors", "anchors_generic", "anchors_unrelated"):
        embeddings, prompts = store.read_anchors(tmp_path / f"{bank}.h5")
        assert embeddings.shape == (8, 32)
        assert len(set(prompts)) == 8


def test_log_risk_follows_from_the_truth_of_all_slides_of_the_case(tmp_path):
    cohort = simulate("luad", tmp_path, size="tiny", dials={**FEW_PAIRS, "slides_per_case": 2.0})
    profile, names = load_profile("luad"), cohort.card.provenance["concepts"]
    dials = Dials.model_validate(cohort.card.provenance["dials"])
    for spec in cohort.bags:
        files = [cohort.truth_file(slide_id) for slide_id in spec.slide_ids]
        concept = np.concatenate([store.read(file, "concept") for file in files])
        shares = {name: float((concept == names.index(name)).mean()) for name in profile.factors}
        expected = log_risk(shares, profile.factors, dials)
        assert [store.attributes(file)["log_risk"] for file in files] == pytest.approx(
            [expected] * len(files)
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": "huge"}, "Unknown size 'huge'. Choose one of: tiny, default, wide, full"),
        ({"seed": -1}, "A seed is 0 or more, got -1"),
        ({"slides": 0}, "at least one slide, got 0"),
        ({"dim": 4}, "at least 8 dimensions, got 4"),
        ({"dials": {"latent": 3}}, "'latent'"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_written(arguments, message, tmp_path):
    with pytest.raises(UsageError, match=message):
        simulate("bracs", tmp_path, **arguments)
    assert not any(tmp_path.iterdir())


def fitted_bridge(folder, width):
    """Centred ridge regression from features to anchor space, and the mean feature."""
    features, images = (
        store.read(folder / "anchor_pairs.h5", key).astype(float)
        for key in ("features", "anchor_space")
    )
    centred = features - features.mean(axis=0)
    moments = centred.T @ centred + 10 * np.eye(width)
    return np.linalg.solve(moments, centred.T @ (images - images.mean(axis=0))), features.mean(
        axis=0
    )


def normalised(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_bridge_fitted_on_pairs_makes_prompts_see_their_concept_on_other_slides(tmp_path):
    cohort = simulate("bracs", tmp_path, size="tiny", dim=64, dials={"evidence_strength": 6.0})
    bridge, origin = fitted_bridge(tmp_path, 64)
    embeddings, _ = store.read_anchors(tmp_path / "anchors.h5")
    prompts = normalised(embeddings - embeddings.mean(axis=0))
    named = [
        plain_words(prompt.concept) for prompt in load_family(load_profile("bracs").family).prompts
    ]
    concepts = [plain_words(concept) for concept in cohort.card.provenance["concepts"]]
    above = []
    for row in cohort.slides:
        concept = store.read(cohort.truth_file(row.slide_id), "concept")
        evidence = store.read(cohort.truth_file(row.slide_id), "evidence") == 1
        features = store.read(cohort.feature_file(row.slide_id), "features").astype(float)
        cosine = normalised((features - origin) @ bridge) @ prompts.T
        for index in np.unique(concept[evidence]):
            seen = cosine[:, named.index(concepts[index])]
            above.append((seen[evidence & (concept == index)][:, None] > seen[~evidence]).mean())
    assert np.mean(above) > 0.8


SMALL = {"size": "tiny", "slides": 6, "dials": {"pairs": 8}}


def test_a_simulation_that_was_stopped_goes_on_with_the_slides_it_lacks(tmp_path):
    whole = simulate("nsclc", tmp_path / "whole", **SMALL)

    def stop(done, total):
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate("nsclc", tmp_path / "again", replace_files=False, on_slide=stop, **SMALL)
    kept = sorted((tmp_path / "again" / "features").iterdir())
    assert len(kept) == 3
    written = [path.stat().st_mtime_ns for path in kept]
    again = simulate("nsclc", tmp_path / "again", replace_files=False, **SMALL)
    assert [path.stat().st_mtime_ns for path in kept] == written
    assert again.slides == whole.slides
    files = [path for path in whole.folder.rglob("*") if path.is_file()]
    assert len(files) == sum(path.is_file() for path in again.folder.rglob("*"))
    for path in files:
        assert (again.folder / path.relative_to(whole.folder)).read_bytes() == path.read_bytes()


def test_a_cohort_that_is_whole_is_not_made_again(tmp_path):
    cohort = simulate("kirc", tmp_path, **SMALL)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    again = simulate("kirc", tmp_path, replace_files=False, **SMALL)
    assert (again.card, again.slides) == (cohort.card, cohort.slides)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.parametrize("changes", [{"seed": 1}, {"slides": 7}, {"dim": 16}])
def test_another_simulation_is_not_mixed_into_one_that_was_stopped(tmp_path, changes):
    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate("nsclc", tmp_path, on_slide=stop, **SMALL)
    with pytest.raises(UsageError, match="is not empty and holds something else"):
        simulate("nsclc", tmp_path, replace_files=False, **(SMALL | changes))
