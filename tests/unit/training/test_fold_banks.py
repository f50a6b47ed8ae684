"""Which anchors a fold takes, given what its cohort has and what its bridge needs."""

import numpy as np
import torch

from builders import make_cohort
from gcemil.bags.arrays import write_anchors
from gcemil.config import PAPER, EvidenceSettings
from gcemil.training.fold import create_bank


def test_a_text_bank_without_pairs_is_kept_under_a_free_bridge(tmp_path):
    cohort = make_cohort(tmp_path)
    write_anchors(tmp_path / "anchors.h5", np.eye(3, 6, dtype=np.float32), ["a", "b", "c"])
    patches = torch.randn(30, 8)
    kept = create_bank(cohort, PAPER, patches, seed=0)
    assert (kept.kind, kept.n_anchors, kept.prompts) == ("text", 3, ("a", "b", "c"))
    assert create_bank(cohort, EvidenceSettings(), patches, seed=0).kind == "prototypes"
