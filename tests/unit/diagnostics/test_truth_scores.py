import pytest
import torch

from builders import make_cohort
from gcemil.bags import store
from gcemil.diagnostics.truth import (
    artifact_concepts,
    average_precision,
    oracle_scores,
    true_evidence,
    truth_column,
    truth_figures,
)
from gcemil.errors import UsageError
from gcemil.simulation.simulate import simulate


def mask(text):
    return torch.tensor([char == "x" for char in text])


def test_figures_of_a_subset_by_hand():
    truth, regions = mask("xxx..."), torch.tensor([1, 1, 2, 0, 0, 0])
    scores = torch.tensor([0.9, 0.1, 0.2, 0.8, 0.7, 0.0])
    # Down the ranking: x . . x x . with precision 1, 2/4 and 3/5 at the three true patches.
    assert truth_figures(mask("x..x.."), scores, truth, regions) == pytest.approx(
        {
            "precision": 0.5,
            "recall": 1 / 3,
            "average_precision": (1 + 2 / 4 + 3 / 5) / 3,
            "region_coverage": 0.5,
        }
    )


@pytest.mark.parametrize("truth", [None, mask("......")])
def test_without_true_evidence_there_is_no_figure(truth):
    assert set(truth_figures(mask("x....."), torch.arange(6.0), truth, None).values()) == {None}


def test_patches_of_one_score_share_their_rank():
    # All four at once: one threshold, precision 1/4.
    assert average_precision(torch.zeros(4), mask("..x.")) == pytest.approx(0.25)


def test_the_oracle_visits_every_region_before_it_returns_to_one():
    truth, regions = mask("xxxx.."), torch.tensor([1, 1, 1, 2, 0, 0])
    attention = torch.tensor([5.0, 6.0, 4.0, 1.0, 9.0, 2.0])
    order = oracle_scores(truth, regions, attention).argsort(descending=True)
    # First of region 1, first of region 2, the rest of region 1 by attention, then what is not true
    # by attention.
    assert order.tolist() == [1, 3, 0, 2, 4, 5]


def test_the_oracle_without_regions_is_truth_by_attention():
    order = oracle_scores(mask("x.x"), None, torch.tensor([1.0, 9.0, 2.0])).argsort(descending=True)
    assert order.tolist() == [2, 0, 1]


def test_truth_of_a_simulated_bag_is_what_its_files_say(tmp_path):
    cohort = simulate("nsclc", tmp_path, size="tiny", slides=4)
    bag = cohort.read_bag(cohort.bags[0])
    truth, concepts = true_evidence(cohort, bag), truth_column(cohort, bag, "concept")
    assert len(truth) == len(concepts) == len(bag)
    names = cohort.card.provenance["concepts"]
    artifacts = artifact_concepts(cohort)
    assert [names[number] for number in artifacts] == ["artifact", "carbon pigment"]
    # What causes a label is no artifact.
    assert not torch.isin(concepts[truth], torch.tensor(artifacts)).any()
    assert artifact_concepts(cohort, ["fat"]) == (names.index("fat"),)


def test_a_concept_that_the_cohort_does_not_name_is_refused(tmp_path):
    cohort = simulate("nsclc", tmp_path, size="tiny", slides=4)
    with pytest.raises(UsageError, match="names no concept 'pen', only: tumor bulk, stroma"):
        artifact_concepts(cohort, ["pen"])


def test_a_truth_file_without_the_column_knows_nothing_of_it(tmp_path):
    cohort = make_cohort(tmp_path, n_cases=2)
    bag = cohort.read_bag(cohort.bags[0])
    evidence = torch.zeros(len(bag), dtype=torch.uint8).numpy()
    store.write(cohort.truth_file(bag.slide_ids[0]), {"evidence": evidence})
    assert not true_evidence(cohort, bag).any()
    assert truth_column(cohort, bag, "concept") is None
