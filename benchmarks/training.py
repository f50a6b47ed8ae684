"""An epoch of our loop and of torchmil's own trainer on the same bags, for bench.py.

Bags of 512 x 1024 float32 on disk (HDF5 for us, .npy as torchmil stores them, both uncompressed),
ABMIL of the same sizes without dropout, one bag per step, loading included.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from gcemil.bags import store
from gcemil.bags.cohort import Cohort, CohortCard, SlideRow
from gcemil.config import HostSettings, TrainSettings
from gcemil.features.loaders import repair_torchvision
from gcemil.hosts.host import Stage
from gcemil.runs.folder import FoldParts
from gcemil.tasks.task import create_task
from gcemil.training.epochs import train_epoch
from gcemil.training.fold import create_network
from gcemil.training.optimizer import create_optimizer

PATCHES, DIM = 512, 1024


def write_bags(folder: Path, n_bags: int) -> Cohort:
    """The same bags for both: a cohort folder, and torchmil's parallel folders."""
    generator = np.random.default_rng(0)
    coords = np.stack(np.divmod(np.arange(PATCHES), 32), axis=1).astype(np.int64) * 256
    rows = []
    for index in range(n_bags):
        name, label = f"bag_{index:04d}", index % 2
        features = generator.normal(size=(PATCHES, DIM)).astype(np.float32) + label * 0.05
        store.write(
            folder / "cohort" / "features" / f"{name}.h5", {"features": features, "coords": coords}
        )
        for kind, values in {
            "features": features,
            "labels": np.array(label),
            "coords": coords,
        }.items():
            path = folder / "torchmil" / kind / f"{name}.npy"
            path.parent.mkdir(parents=True, exist_ok=True)
            np.save(path, values)
        rows.append(SlideRow(name, name, label=str(label)))
    card = CohortCard(
        name="bench",
        task="classification",
        classes=("0", "1"),
        feature_dim=DIM,
        patch_size_level0=256,
    )
    cohort = Cohort(folder / "cohort", card, tuple(rows))
    cohort.save()
    return cohort


def gcemil_epoch(cohort: Cohort):
    settings = TrainSettings(
        host=HostSettings(options={"dropout": 0.0}), evidence=None, bags_per_step=1, epochs=100
    )
    parts = FoldParts(cohort.bags, (), ())
    loaded = create_network(cohort, parts.train, settings, torch.device("cpu"))
    optimizer = create_optimizer(loaded.network, 2e-4, settings)
    task = create_task(cohort, settings)

    def run(epoch: int) -> None:
        train_epoch(
            loaded, None, cohort, parts, task, settings, optimizer,
            stage=Stage("train"), stage_number=0, epoch=epoch, n_epochs=settings.epochs,
        )  # fmt: skip

    return run


def torchmil_epoch(folder: Path):
    from torch.utils.data import DataLoader, Subset

    # torchmil imports torchvision, of which only a CUDA build may be installed.
    repair_torchvision()
    from torchmil.data import collate_fn
    from torchmil.datasets import ProcessedMILDataset
    from torchmil.models import ABMIL
    from torchmil.utils import Trainer

    dataset = ProcessedMILDataset(
        features_path=str(folder / "features"),
        labels_path=str(folder / "labels"),
        coords_path=str(folder / "coords"),
        bag_keys=["X", "Y", "coords"],
        load_at_init=False,
    )
    loader = DataLoader(dataset, batch_size=1, shuffle=True, collate_fn=collate_fn)
    # Its trainer validates after every epoch, on the training bags unless told otherwise; one bag
    # keeps that out.
    one_bag = DataLoader(Subset(dataset, [0]), batch_size=1, collate_fn=collate_fn)
    embed = torch.nn.Sequential(torch.nn.Linear(DIM, 512), torch.nn.ReLU())
    model = ABMIL(in_shape=(DIM,), att_dim=128, att_act="tanh", gated=True, feat_ext=embed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, weight_decay=1e-5)
    trainer = Trainer(model, optimizer, device="cpu", verbose=False, disable_pbar=True)

    def run(epoch: int) -> None:
        trainer.train(max_epochs=1, train_dataloader=loader, val_dataloader=one_bag)

    return run
