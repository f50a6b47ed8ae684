"""How responses become coverage: each statistic is read by a head that is fitted in the same way.

  noisy-OR      1 - prod_i (1 - r_im), r as in Eq. 2
  calibrated    the same, with responses calibrated on training patches
  mean          mean of the calibrated r_im over the slide
  attention     sum_i a_i r_im, a the attention of the host
  top           mean of the largest responses: the coverage of the evidence head

The weights are fitted on the training slides as those of the evidence head are. Macro-F1 and AUC
are those of the head alone on the test slides of fold 0.

  python benchmarks/pooling.py RUN [RUN ...]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from gcemil.bags.cohort import SampleRule, load_bags
from gcemil.diagnostics.trained_fold import TrainedFold
from gcemil.evidence.coverage import anchor_coverage
from gcemil.evidence.head import ClassLikelihood
from gcemil.explanation import bag_tensors
from gcemil.hosts.host import embedded_bag


@torch.no_grad()
def read_statistics(fold: TrainedFold, part: str) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Coverage by every statistic, a row per slide, and the labels."""
    model, rows, labels = fold.model, [], []
    for spec, bag in load_bags(fold.cohort, fold.specs(part), rule=SampleRule()):
        features, coords = bag_tensors(bag)
        scores = model.host.aggregate(embedded_bag(model.host, features), coords).scores
        responses, is_open = model.responses(features), torch.ones(len(features))
        paper = torch.sigmoid(8 * (model.bridge.cosines(features, model.anchors) - 0.15))
        rows.append(
            {
                "noisy-OR": anchor_coverage(is_open, paper),
                "calibrated": anchor_coverage(is_open, responses),
                "mean": responses.mean(dim=0),
                "attention": torch.softmax(scores, dim=0) @ responses,
                "top": model.head.coverage(model.head.responses(features), len(features)),
            }
        )
        labels.append(spec.target)
    return {
        name: torch.stack([row[name] for row in rows]).double().numpy() for name in rows[0]
    }, np.array(labels)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path, nargs="+", help="Runs with prompts or examples.")
    torch.set_num_threads(1)
    lines = []
    for run in parser.parse_args().runs:
        fold = TrainedFold.open(run, 0)
        train, train_labels = read_statistics(fold, "train")
        test, labels = read_statistics(fold, "test")
        for name in train:
            weights, bias = ClassLikelihood.fit_weights(
                train[name], train_labels, fold.task.n_outputs
            )
            logits = torch.from_numpy(test[name] @ weights.T + bias)
            metrics = fold.task.metrics(torch.from_numpy(labels), fold.task.prediction(logits))
            lines += [
                {"run": run.name, "coverage": name, "metric": one, "value": metrics[one]}
                for one in ("macro_f1", "auc")
            ]
    table = pd.DataFrame(lines).pivot(index="coverage", columns=["run", "metric"], values="value")
    print(table.round(3).to_string())


if __name__ == "__main__":
    main()
