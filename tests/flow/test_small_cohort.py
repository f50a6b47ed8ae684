"""Thirty training slides of width 1024: the default recipe does as well as a plain loop that anybody would write."""

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import nn

from builders import grid_coords, write_slide
from gcemil.bags.cohort import Cohort, CohortCard, SlideRow
from gcemil.bags.folds import make_parts, read_fold, write_folds
from gcemil.config import TrainSettings
from gcemil.runs.folder import fold_parts
from gcemil.training.run import train_run

WIDTH, PARTS, PATCHES = 1024, (30, 15, 60), 120


def planted_cohort(folder):
    """Two classes; 3 to 8 % of the patches of a tumour slide are shifted along one direction."""
    generator = np.random.default_rng(3)
    direction = generator.normal(size=WIDTH) / np.sqrt(WIDTH)
    rows = []
    for number in range(sum(PARTS)):
        label = number % 2
        features = generator.normal(size=(PATCHES, WIDTH)).astype(np.float32)
        if label:
            features[: round(PATCHES * generator.uniform(0.03, 0.08))] += 8 * direction
        write_slide(folder, f"s{number:03d}", generator.permutation(features), grid_coords(PATCHES))
        rows.append(SlideRow(f"s{number:03d}", f"c{number:03d}", label=("normal", "tumour")[label]))
    card = CohortCard(name="planted", task="classification", classes=("normal", "tumour"), feature_dim=WIDTH, patch_size_level0=256)  # fmt: skip
    cohort = Cohort(folder, card, tuple(rows))
    cohort.save()
    write_folds(
        cohort, [make_parts(cohort, PARTS, generator=np.random.default_rng(0))], kind="official"
    )
    return cohort


class GatedAttention(nn.Module):
    """Twenty lines of gated attention."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(WIDTH, 256), nn.ReLU())
        self.content, self.gate, self.score = (
            nn.Linear(256, 128),
            nn.Linear(256, 128),
            nn.Linear(128, 1),
        )
        self.head = nn.Linear(256, 2)

    def forward(self, features):
        tokens = self.embed(features)
        scores = self.score(torch.tanh(self.content(tokens)) * torch.sigmoid(self.gate(tokens)))
        return self.head(torch.softmax(scores, dim=0).T @ tokens)


def plain_loop_auc(cohort):
    """AdamW 2e-4, one bag a step, twenty epochs, the last one taken."""
    parts = fold_parts(cohort, read_fold(cohort, 0))

    def bags(specs):
        return [
            (torch.from_numpy(cohort.read_bag(one).features.astype(np.float32)), one.target)
            for one in specs
        ]

    torch.manual_seed(0)
    model = GatedAttention()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    train = bags(parts.train)
    for epoch in range(20):
        for index in np.random.default_rng(epoch).permutation(len(train)):
            features, label = train[index]
            loss = nn.functional.cross_entropy(model(features), torch.tensor([label]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        found = [
            (label, float(model(features).softmax(1)[0, 1])) for features, label in bags(parts.test)
        ]
    return roc_auc_score(*zip(*found, strict=True))


@pytest.mark.slow
def test_the_default_is_within_two_points_of_a_plain_loop(tmp_path):
    cohort = planted_cohort(tmp_path / "cohort")
    summary = train_run(
        cohort.folder, tmp_path / "run", TrainSettings(evidence=None), folds=[0], jobs=1
    )
    assert summary["model_warning"] is None
    ours, plain = summary["full"]["auc"]["mean"], plain_loop_auc(cohort)
    assert plain > 0.8, "the plain loop itself has to learn"
    assert ours >= plain - 0.02, (ours, plain)
