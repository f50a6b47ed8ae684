"""A fold whose evidence decides everything, and a host written by hand that reads it and nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from builders import grid_coords, write_slide
from gcemil.bags import store
from gcemil.bags.cohort import Cohort, CohortCard, SlideRow
from gcemil.config import TrainSettings
from gcemil.diagnostics.snr import RiskScale
from gcemil.diagnostics.trained_fold import TrainedFold
from gcemil.hosts.abmil import Abmil
from gcemil.runs.folder import FoldParts
from gcemil.tasks.task import ClassificationTask

N_PATCHES = 20
CLASSES = ("left", "right")


def planted_host() -> Abmil:
    """Attention 4 tanh|h|; the logit of 'left' pools the negative parts of h, that of 'right' the positive ones."""
    host = Abmil(1, 2, width=2, hidden=1).eval()
    with torch.no_grad():
        for parameter in host.parameters():
            parameter.zero_()
        host.project[0].weight.copy_(torch.tensor([[-1.0], [1.0]]))
        host.attention.content.weight.fill_(1.0)
        host.attention.score.weight.fill_(8.0)
        host.head.weight.copy_(torch.eye(2))
    return host


def planted_fold(folder: Path, *, n_slides: int = 12) -> TrainedFold:
    """Twenty patches a slide, all 0 but two neighbours: -3 in a slide 'left', 3 in a slide 'right'."""
    rows = []
    for slide in range(n_slides):
        label = slide % 2
        values, truth = np.zeros((N_PATCHES, 1), np.float32), np.zeros(N_PATCHES, np.uint8)
        first = (5 * slide) % (N_PATCHES - 1)
        values[first : first + 2], truth[first : first + 2] = 6.0 * label - 3.0, 1
        name = f"s{slide:02d}"
        write_slide(folder, name, values, grid_coords(N_PATCHES, width=N_PATCHES))
        store.write(
            folder / "truth" / f"{name}.h5", {"evidence": truth, "region": truth.astype(np.int64)}
        )
        rows.append(SlideRow(name, name, label=CLASSES[label]))
    card = CohortCard(name="planted", task="classification", classes=CLASSES, feature_dim=1)
    cohort = Cohort(folder, card, tuple(rows))
    cohort.save()
    return TrainedFold(
        run=folder,
        fold=0,
        cohort=cohort,
        task=ClassificationTask(CLASSES),
        settings=TrainSettings(evidence=None),
        parts=FoldParts((), (), cohort.bags),
        host=planted_host(),
        model=None,
        plain=None,
        scale=RiskScale(),
        plain_scale=RiskScale(),
    )
