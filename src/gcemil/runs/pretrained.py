"""A trained fold as a folder for others, opened without its run and its cohort.

  config.json         network (runs/checkpoint.py), training data, measured figures, licence
  model.safetensors   its weights
  README.md           the model card: the same for people, and what the model must not be used for

Nothing is executed when such a folder is opened; a host that is not part of gcemil needs the same
consent as in a run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml

from gcemil import __version__
from gcemil.bags.cohort import Cohort
from gcemil.bags.fingerprint import content_hash
from gcemil.bags.folds import read_fold
from gcemil.errors import InputError, UsageError
from gcemil.files import atomic_folder, write_json, write_text
from gcemil.findings import Finding, read_finding
from gcemil.metrics import METRICS, TASKS
from gcemil.model import GceMil
from gcemil.records import MODE_WORDS
from gcemil.rules import find_rule
from gcemil.runs.checkpoint import PRETRAINED_FORMAT, LoadedNetwork, load_network, save_tensors
from gcemil.runs.folder import PRETRAINED_CONFIG, PRETRAINED_WEIGHTS, Run, RunFold
from gcemil.tables import format_metric

UNKNOWN_LICENSE = "unknown"
FULL_KEPT = (
    "evidence_fraction",
    "evidence_sufficiency",
    "keep_only_drop",
    "complement_degradation",
    "sufficient_share",
    "necessary_share",
)
SOFT_KEPT = ("cd_gap", "recoverable_share")
LIMITS = """\
- Research software, not a medical device: no diagnosis may rest on it.
- It was judged on the test slides named above and on no others. On another scanner, stain, hospital
  or disease its predictions and its evidence have to be measured again.
- It reads features of one encoder at one patch size. Features of another encoder of the same width
  are accepted by their shape and mean nothing.
- Evidence that is sufficient and necessary for the model shows what the model uses, not that the
  model is right.
"""
CARD = """\
---
{head}
---

# {title}

{facts}

{simulated}## Figures of the test slides

{task}

## Is the evidence sufficient, necessary and recoverable?

{snr}

## Limits

{limits}
## Use

```python
import gcemil

model = gcemil.load("THIS_FOLDER")
# features (n, width), coords (n, 2) in level-0 pixels
bag = gcemil.slide_bag("S-17", features, coords)
evidence = gcemil.explain(model, bag)
```
"""

Record = dict[str, Any]


def save_pretrained(
    fold: Path | str, folder: Path | str, *, license_name: str = UNKNOWN_LICENSE
) -> Path:
    """Write a trained fold as a folder for others, with a model card.

    Args:
        fold: RUN/fold_<k>, or RUN for its first fold.
        folder: A new folder.
        license_name: The licence of the model card.

    Returns:
        The folder, which `from_pretrained` opens.

    Raises:
        RunError: The fold is not trained.
        UsageError: The folder is not empty.

    Example:
        >>> import gcemil, pathlib, tempfile
        >>> from gcemil.bags.folds import make_folds, write_folds
        >>> from gcemil.simulation.simulate import simulate
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> cohort = simulate("nsclc", folder / "cohort", size="tiny", slides=24)
        >>> write_folds(cohort, make_folds(cohort))
        >>> settings = gcemil.TrainSettings(epochs=1, evidence=None)
        >>> _ = gcemil.train_run(cohort.folder, folder / "run", settings, folds=[0], jobs=1)
        >>> exported = gcemil.save_pretrained(folder / "run", folder / "model", license_name="MIT")
        >>> sorted(path.name for path in exported.iterdir())
        ['README.md', 'config.json', 'model.safetensors']
    """
    fold, folder = Path(fold), Path(folder)
    source = Run(fold).trained_folds()[0] if Run(fold).is_begun else RunFold(fold)
    loaded, network = load_network(source.checkpoint)
    snr = source.finding("snr")
    config: Record = {
        "format": PRETRAINED_FORMAT,
        "gcemil": __version__,
        "network": network,
        "license": license_name,
        "data": _describe_data(source, network),
        "measured": {
            "task": source.read_metrics().modes,
            "snr": _pick_snr(read_finding(snr)) if snr.is_file() else None,
        },
        "provenance": {
            "fold": source.number,
            "checkpoint_sha256": content_hash(source.checkpoint),
            "settings_hash": source.run.card.settings.hash,
        },
    }
    return write_folder(folder, loaded, config)


def write_folder(folder: Path, loaded: LoadedNetwork, config: Record) -> Path:
    """Write weights, config.json and the model card into a new folder."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} exists and is not empty. Give a new folder.")
    with atomic_folder(folder) as temporary:
        save_tensors(temporary / PRETRAINED_WEIGHTS, loaded.network.state_dict(), {})
        write_json(temporary / PRETRAINED_CONFIG, config)
        write_text(temporary / "README.md", write_card(config))
    return folder


def from_pretrained(folder: Path | str, device: torch.device | str = "cpu") -> GceMil:
    """Open the wrapped model of an exported fold.

    Args:
        folder: A folder that `save_pretrained` wrote.
        device: Where the model is put.

    Returns:
        The model in evaluation mode, ready for `explain_slide`.

    Raises:
        RunError: The folder is damaged or is not an exported fold.
        UsageError: It holds a plain host.

    Example:
        >>> import gcemil, tempfile, torch
        >>> bags = [torch.randn(20, 8) + number % 2 for number in range(12)]
        >>> folder = gcemil.fit(bags, [0, 1] * 6, epochs=1).save(tempfile.mkdtemp())
        >>> model = gcemil.from_pretrained(folder)
        >>> bag = gcemil.slide_bag("S-17", bags[0].numpy())
        >>> gcemil.explain_slide(model, bag).gates.shape
        (20,)
    """
    loaded, _ = load_network(Path(folder), device)
    if loaded.model is None:
        raise UsageError(
            f"{folder} holds a plain host, which has no evidence. Open it with "
            f"gcemil.load_network('{folder}')."
        )
    return loaded.model


def _describe_data(fold: RunFold, network: Mapping[str, Any]) -> Record:
    """What the cohort was; its counts are None where it no longer lies where it lay in training."""
    run = fold.run.card
    facts: Record = {
        "cohort": run.cohort.name,
        "cohort_fingerprint": run.cohort_fingerprint,
        "encoder": network["encoder"],
        "feature_width": network["in_dim"],
        "patch_size_level0": network["patch_size_level0"],
        "slides": None,
        "simulated": None,
    }
    try:
        cohort = Cohort.load(run.cohort)
        parts = list(read_fold(cohort, fold.number).part_of.values())
    except InputError:
        return facts
    counts = {part: parts.count(part) for part in ("train", "val", "test")}
    return {**facts, "slides": counts, "simulated": "simulator" in cohort.card.provenance}


def _pick_snr(finding: Finding) -> list[Record]:
    """Evidence, attention and random patches over all classes."""
    rows: dict[tuple[str, str], Record] = {}
    for row in finding.rows:
        if row.labels.get("class") != "all":
            continue
        key = row.labels["rule"], row.labels["network"]
        wanted = FULL_KEPT if row.labels.get("comparison") == "full-kept" else SOFT_KEPT
        rows.setdefault(key, {"rule": key[0], "network": key[1]}).update(
            {name: row.values[name] for name in wanted if row.values.get(name) is not None}
        )
    return list(rows.values())


def write_card(config: Mapping[str, Any]) -> str:
    """The model card as Markdown."""
    network, data, measured = config["network"], config["data"], config["measured"]
    settings, bank = network["settings"], network.get("bank")
    head = {
        "license": config["license"],
        "library_name": "gcemil",
        "tags": [
            "pathology",
            "whole-slide-imaging",
            "multiple-instance-learning",
            settings["host"]["name"],
        ],
    }
    slides = data["slides"]
    counts = "not known: the cohort was not at hand"
    if slides is not None:
        counts = (
            f"{slides['train']} for training, {slides['val']} for validation, {slides['test']} for "
            "the figures below"
        )
    facts = {
        "task": network["task"],
        "classes": ", ".join(network["classes"]) or TASKS[network["task"]].number,
        "host": settings["host"]["name"]
        + (" with evidence (GCE-MIL)" if bank else ", without evidence"),
        "encoder": data["encoder"],
        "feature width": data["feature_width"],
        "patch size, level-0 pixels": data["patch_size_level0"] or "differs between slides",
        "anchors": f"{len(bank['prompts'])}, {bank['provenance']}" if bank else "none",
        "anchor names": "; ".join(bank["prompts"]) if bank else "none",
        "cohort": f"{data['cohort']}, fold {config['provenance']['fold']}",
        "slides": counts,
        "licence": config["license"],
    }
    simulated = (
        "**The slides were simulated. They are not tissue.**\n\n" if data["simulated"] else ""
    )
    return CARD.format(
        head=yaml.safe_dump(head, sort_keys=False).rstrip(),
        title=f"{settings['host']['name']} on {data['cohort']}",
        facts=_markdown_table(("", ""), facts.items()),
        simulated=simulated,
        task=_task_table(measured["task"]),
        snr=_snr_table(measured["snr"]),
        limits=LIMITS,
    )


def _task_table(modes: Mapping[str, Mapping[str, float | None]]) -> str:
    if not modes:
        return "Not measured."
    names = list(dict.fromkeys(name for figures in modes.values() for name in figures))
    rows = ((MODE_WORDS[mode], *_cells(figures, names)) for mode, figures in modes.items())
    return _markdown_table(("bag", *map(_label, names)), rows)


def _snr_table(rows: list[Record] | None) -> str:
    if rows is None:
        return "Not measured: `gcemil diagnose RUN --only snr` before the export adds it."
    names = [name for name in (*FULL_KEPT, *SOFT_KEPT) if any(name in row for row in rows)]
    lines = ((find_rule(row["rule"]).label, row["network"], *_cells(row, names)) for row in rows)
    return _markdown_table(("patches chosen by", "predicted by", *map(_label, names)), lines)


def _cells(figures: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    values = ((name, figures.get(name)) for name in names)
    return ["-" if value is None else format_metric(name, value) for name, value in values]


def _label(name: str) -> str:
    metric = METRICS.get(name)
    return name if metric is None else f"{metric.label} {metric.arrow}".strip()


def _markdown_table(header: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(_plain, line))} |" for line in lines)


def _plain(cell: object) -> str:
    """Text of a table cell: names of a cohort may hold Markdown."""
    text = json.dumps(str(cell), ensure_ascii=False)[1:-1]
    return text.replace("|", "/").replace("<", "&lt;").replace("`", "'")
