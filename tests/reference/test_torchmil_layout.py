"""torchmil's own reader opens the folder our builder lays out and finds what our importer finds."""

import numpy as np
from torchmil.datasets import ProcessedMILDataset

from builders.foreign import grid, torchmil_set
from gcemil.bags import store
from gcemil.bags.cohort import Cohort
from gcemil.bags.foreign.cohort_import import import_cohort


def test_torchmil_and_the_importer_read_the_same_bag(tmp_path):
    root = torchmil_set(
        tmp_path / "root",
        {"a": (grid(8, 512), 1, [1, 0, 0, 0, 0, 0, 0, 1]), "b": (grid(4, 512), 0, [0] * 4)},
    )
    import_cohort(root, tmp_path / "c")
    cohort = Cohort.load(tmp_path / "c")
    ours = cohort.read_bag(cohort.bags[0])
    base = root / "patches_512"
    theirs = ProcessedMILDataset(
        features_path=str(base / "features" / "features_UNI"),
        labels_path=str(base / "labels"),
        inst_labels_path=str(base / "patch_labels"),
        coords_path=str(base / "coords"),
        bag_names=["a"],
        bag_keys=["X", "Y", "y_inst", "coords"],
    )[0]
    assert np.array_equal(ours.features, theirs["X"].numpy())
    assert np.array_equal(ours.coords, theirs["coords"].numpy())
    assert cohort.bags[0].target == int(theirs["Y"])
    assert store.read(cohort.truth_file("a"), "evidence").tolist() == theirs["y_inst"].tolist()
