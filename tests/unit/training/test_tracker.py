"""Curves for TensorBoard, written at once."""

from gcemil.training.epochs import Tracker

RECORD = {"epoch": 3, "stage": "train", "val": 0.5, "terms": {"task": 0.25}, "warnings": []}


def test_numbers_of_an_epoch_are_read_back_by_tensorboard_before_the_tracker_ends(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tracker = Tracker(tmp_path)
    tracker.add(RECORD, step=3)
    curves = EventAccumulator(str(tmp_path)).Reload()
    found = {
        name: [(point.step, point.value) for point in curves.Scalars(name)]
        for name in curves.Tags()["scalars"]
    }
    assert found == {"epoch": [(3, 3.0)], "val": [(3, 0.5)], "terms/task": [(3, 0.25)]}
    tracker.close()
