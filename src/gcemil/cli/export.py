"""gcemil export: a trained fold as a folder for others, and evidence for other tools."""

from __future__ import annotations

from pathlib import Path

import typer

from gcemil.cli.options import TRUST_HOST


def export(
    run: Path = typer.Argument(help="A run folder."),
    pretrained: Path | None = typer.Option(
        None, help="Write config.json, model.safetensors and a model card into this new folder."
    ),
    wsidata: Path | None = typer.Option(
        None,
        help="Write <slide>.zarr of every test slide into this folder: SpatialData, as LazySlide and wsidata read it.",
    ),
    fold: int | None = typer.Option(
        None, min=0, help="One fold; by default the first that is trained, for --wsidata all."
    ),
    license_name: str = typer.Option(
        "unknown", "--license", help="The licence of the model, as the card shall name it."
    ),
    trust_host: list[str] = TRUST_HOST,
    as_json: bool = typer.Option(False, "--json", help="Print what was written as JSON."),
) -> None:
    """Give a model away without its run and cohort, or its evidence to tools that read SpatialData.

    A folder of --pretrained is opened by gcemil.from_pretrained and taken by 'gcemil predict' in place of a run.

    Example: gcemil export runs/bracs_abmil --pretrained models/bracs_abmil --fold 0
    """
    from gcemil.cli.console import print_json, say
    from gcemil.errors import UsageError
    from gcemil.runs.folder import RunFolder

    if pretrained is None and wsidata is None:
        raise UsageError("Say what to export: --pretrained FOLDER, --wsidata FOLDER, or both.")
    written: dict[str, list[str]] = {}
    if pretrained is not None:
        from gcemil.runs.pretrained import save_pretrained

        chosen = RunFolder(run).trained_folds()[0] if fold is None else RunFolder(run).fold(fold)
        written["pretrained"] = [str(save_pretrained(chosen.path, pretrained, license_name=license_name))]
    if wsidata is not None:
        from gcemil.exports.wsidata import write_wsidata

        written["wsidata"] = [str(path) for path in write_wsidata(run, wsidata, fold=fold)]
    if as_json:
        print_json(written)
        return
    for path in (path for paths in written.values() for path in paths):
        say(f"wrote {path}")
