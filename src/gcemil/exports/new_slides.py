"""Slides outside the cohort through a trained run: files, folders or patterns to predictions.csv.

OUT/predictions.csv        one line per slide: prediction, mode, verdict, status, reason
OUT/<slide>.h5             the evidence; OUT/<slide>/ has all files of an explanation
OUT/records/<slide>.json   the result, and the key under which it was made

The key is a hash of the input, of the checkpoints of all folds, and of all options. A slide whose
record has this key, and whose files exist, is skipped. A slide that fails is a line with
its reason; the others are done.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from gcemil import __version__
from gcemil.bags.bag import Bag
from gcemil.bags.fingerprint import content_hash, file_fingerprint
from gcemil.bags.foreign.source import plain_id
from gcemil.config import Precision
from gcemil.device import one_thread, pick_device
from gcemil.errors import GcemilError, RunError, UsageError, describe_failure
from gcemil.exports.evidence import ExplainedSlide
from gcemil.exports.explain import ExplainOptions, explain_new_slide
from gcemil.exports.overlay import read_feature_place, read_slide_place
from gcemil.features.loaders import WeightSource
from gcemil.files import lock_folder, read_record, write_json, write_table
from gcemil.prefilter.slide_files import (
    FileMode,
    SlideFilePrediction,
    SlidePredictor,
    is_slide_file,
)
from gcemil.prefilter.student import PREFILTER_FILE
from gcemil.processes import run_jobs
from gcemil.records import certify, write_evidence
from gcemil.runs.checkpoint import join_hashes
from gcemil.runs.folder import Run, RunFold, SeenSlides, SlidePart, main_mode
from gcemil.runs.predict import (
    FoldModel,
    SlidePrediction,
    available_modes,
    load_fold_models,
    predict_new_bag,
    read_new_slide,
    value_names,
)
from gcemil.slides.reader import ANY_EXTENSIONS, IMAGE_EXTENSIONS, join_series, name_slide

FEATURE_EXTENSIONS = (".h5", ".hdf5", ".pt")
"""In the order of preference where a slide has several."""
KNOWN_FILES = f"Known are files that end in {', '.join((*FEATURE_EXTENSIONS, *ANY_EXTENSIONS))}."
LAST_COLUMNS = (
    *("spread", "folds", "part", "mode", "verdict"),
    *("n_patches", "n_selected", "n_encoded", "status", "reason"),
)


class FoundInputs(NamedTuple):
    """The files of a command, by slide id, and what was left out."""

    files: dict[str, Path]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class PredictOptions:
    """How every slide is predicted and explained."""

    mode: FileMode | None = None
    """None is the main prediction: host and evidence together, or a plain or given host alone."""
    folds: tuple[int, ...] | None = None
    """None is the mean over all."""
    mpp: float | None = None
    explain: ExplainOptions | None = None
    heatmaps: tuple[str, ...] = ()
    all_patches: bool = False
    precision: Precision | None = None
    """For encoding and embedding; None is float32, and on a GPU the encoder's own."""

    def __post_init__(self) -> None:
        if self.explain is not None and self.mode == "prefilter":
            raise UsageError(
                "An explanation keeps and removes patches of the whole slide, which --mode "
                "prefilter does not encode. Use --mode discrete with --explain."
            )


@dataclass(frozen=True)
class NewPrediction:
    """The result of one slide: a record, and a line of predictions.csv."""

    slide_id: str
    file: str
    mode: str
    status: Literal["done", "already done", "failed"]
    values: dict[str, float] = field(default_factory=dict)
    """Mean over the folds of prob_<class>, risk or value; then of host and evidence alone."""
    per_fold: list[list[float]] = field(default_factory=list)
    spread: float | None = None
    """Deviation over the folds of the probability of the predicted class, or of the number."""
    folds: list[int] = field(default_factory=list)
    part: SlidePart = "new"
    """Whether these folds have seen the slide."""
    verdict: str = ""
    evidence: list[int] | None = None
    """Rows of the feature file or of the slide's grid; None without the wrapper."""
    evidence_coords: list[list[int]] | None = None
    n_patches: int | None = None
    n_encoded: int | None = None
    """None for a feature file."""
    certified: bool | None = None
    """Whether what a prefilter kept sufficed; None where nothing was filtered."""
    seconds: dict[str, float] = field(default_factory=dict)
    reason: str = ""
    """Why it failed, or a warning."""
    files: dict[str, str] = field(default_factory=dict)
    """Below the folder of predictions.csv."""
    key: str = ""

    def to_row(self) -> dict[str, Any]:
        """The line of predictions.csv."""
        row = {name: getattr(self, name) for name in ("slide_id", "file", *LAST_COLUMNS)}
        row |= {**self.values, "status": "failed" if self.status == "failed" else "done"}
        row["folds"] = "|".join(map(str, self.folds))
        return {name: "" if value is None else value for name, value in row.items()}

    @property
    def n_selected(self) -> int | None:
        """Patches of the evidence; None without the wrapper."""
        return None if self.evidence is None else len(self.evidence)


def find_inputs(sources: Sequence[Path], *, out: Path | None = None) -> FoundInputs:
    """The slides and feature files of paths, folders (or the folders below) and patterns.

    If a slide has several files, features come before the slide and HDF5 before a tensor. Files
    below `out` are not inputs.
    """
    taken: dict[str, Path] = {}
    beside: list[Path] = []
    for name, path in join_series(file for source in sources for file in _expand(source, out)):
        slide_id = plain_id(name)
        other = taken.setdefault(slide_id, path)
        if other.resolve() == path.resolve():
            continue
        if _preference(other) == _preference(path):
            raise UsageError(
                f"{other} and {path} would both be slide '{slide_id}'. Name one of them, or the "
                "folder of one."
            )
        taken[slide_id], worse = sorted((other, path), key=_preference)
        beside.append(worse)
    notes = []
    if beside:
        notes.append(
            f"{len(beside)} files lie beside better ones of the same slide and were left out "
            f"('{beside[0]}')."
        )
    return FoundInputs(dict(sorted(taken.items())), tuple(notes))


def _expand(source: Path, out: Path | None) -> list[Path]:
    """The inputs that a file, a folder or a pattern stands for, sorted."""

    def is_known(path: Path) -> bool:
        return path.name.lower().endswith(FEATURE_EXTENSIONS) or is_slide_file(path)

    def select(paths: Iterable[Path]) -> list[Path]:
        files = sorted(
            one
            for one in paths
            if is_known(one)
            and not one.name.startswith(".")
            and one.is_file()
            and (out is None or out.resolve() not in one.resolve().parents)
        )
        # Beside slides and features a picture is a thumbnail or a mask.
        return [one for one in files if not one.name.lower().endswith(IMAGE_EXTENSIONS)] or files

    if source.is_dir():
        if files := select(source.iterdir()) or select(source.rglob("*")):
            return files
        raise UsageError(f"{source} holds neither slides nor features. {KNOWN_FILES}")
    if source.exists():
        if is_known(source):
            return [source]
        raise UsageError(f"{source} is neither a slide nor a feature file. {KNOWN_FILES}")
    if not set(str(source)) & set("*?["):
        raise UsageError(
            f"{source} does not exist. Give slides, feature files, folders of them, or a pattern."
        )
    root = Path(source.anchor or ".")
    if files := select(root.glob(str(source.relative_to(source.anchor)))):
        return files
    raise UsageError(f"The pattern '{source}' matches neither a slide nor a feature file.")


def _preference(path: Path) -> int:
    """0 for HDF5, 1 for a tensor, 2 for a slide."""
    return {".h5": 0, ".hdf5": 0, ".pt": 1}.get(path.suffix.lower(), 2)


@dataclass(eq=False)
class NewSlides:
    """A run opened for slides outside its cohort."""

    run: Path
    models: tuple[FoldModel, ...]
    options: PredictOptions
    source: WeightSource | None = None
    """Where the encoder's weights are, for slide files."""
    model_warning: str | None = None
    """Why evidence of this run is not certified."""
    seen: SeenSlides = field(default_factory=SeenSlides)
    """The slides that the run was made with."""
    device: str = "cpu"

    @classmethod
    def open(
        cls,
        run: Path,
        options: PredictOptions,
        *,
        source: WeightSource | None = None,
        device: str = "cpu",
    ) -> NewSlides:
        """The folds are loaded now, the encoder with the first slide file."""
        models = load_fold_models(
            run,
            folds=options.folds,
            needs_evidence=options.mode not in (None, "full"),
            device=device,
            precision=options.precision or "32",
        )
        if options.mode is None:
            main = main_mode(available_modes(models[0].loaded.network))
            options = replace(options, mode="gce" if main == "gce" else "full")
        opened = Run(run)
        seen = SeenSlides.of_run(opened, [RunFold(one.folder) for one in models])
        return cls(run, models, options, source, opened.model_warning, seen, device)

    @property
    def mode(self) -> FileMode:
        """How every slide is predicted."""
        return self.options.mode or "full"

    def predict(
        self,
        files: dict[str, Path],
        out: Path,
        *,
        again: bool = False,
        jobs: int = 1,
        device: str = "cpu",
        cluster: str | None = None,
        on_slide: Callable[[int, int], None] | None = None,
    ) -> list[NewPrediction]:
        """Predict every slide that is not done and write predictions.csv.

        The error of a single slide is raised. With `jobs` workers, or on a Ray cluster, each worker
        opens the run on `device` for itself.
        """
        predictions: list[NewPrediction] = []
        with lock_folder(out):
            if len(files) == 1:
                ((slide_id, path),) = files.items()
                results: Iterable[NewPrediction] = [
                    self._predict_unless_done(slide_id, path, out, again)
                ]
            elif jobs > 1 or cluster is not None:
                opening = (self.run.resolve(), self.options, self.source, device)
                work = partial(_predict_in_worker, opening, out.resolve(), again)
                resolved = [(name, path.resolve()) for name, path in files.items()]
                ended = run_jobs(work, resolved, jobs, cluster=cluster, gpus=1)
                results = (replace(result, file=str(files[name])) for (name, _), result in ended)
            else:
                results = (self.try_predict(*file, out, again) for file in files.items())
            for result in results:
                predictions.append(result)
                if on_slide:
                    on_slide(len(predictions), len(files))
            predictions.sort(key=lambda one: one.slide_id)
            columns = ("slide_id", "file", *value_names(self.models, self.mode), *LAST_COLUMNS)
            rows = [one.to_row() for one in predictions]
            write_table(out / "predictions.csv", columns, rows)
        return predictions

    def try_predict(self, slide_id: str, path: Path, out: Path, again: bool) -> NewPrediction:
        """One slide of several; one that fails is a line with its reason."""
        try:
            return self._predict_unless_done(slide_id, path, out, again)
        # A format can break a library in ways no list foresees; the others must be done.
        except Exception as error:
            reason = describe_failure(error, path)
            return NewPrediction(slide_id, str(path), self.mode, "failed", reason=reason)

    def explain(self, path: Path, options: ExplainOptions) -> ExplainedSlide:
        """One slide under the folds that are open, as far as they have not seen it."""
        _, models = self._least_seen(path)
        return self._explain_bag(path, self._answer(path, models)[0], options, models)

    def _least_seen(self, path: Path) -> tuple[SlidePart, tuple[FoldModel, ...]]:
        """The folds that used a slide least in training, and its part in them."""
        folders = [one.folder for one in self.models]
        part, folders = self.seen.least_seen(folders, plain_id(name_slide(path)), path)
        return part, tuple(one for one in self.models if one.folder in folders)

    def _predict_unless_done(
        self, slide_id: str, path: Path, out: Path, again: bool
    ) -> NewPrediction:
        record, key = out / "records" / f"{slide_id}.json", self._key(path)
        known = None if again else _read_finished(record, key, out)
        if known is not None:
            # The file may have been moved since; its content is the same.
            return replace(known, file=str(path), status="already done")
        prediction = self._predict(path, out, key)
        write_json(record, asdict(prediction))
        return prediction

    def _predict(self, path: Path, out: Path, key: str) -> NewPrediction:
        part, models = self._least_seen(path)
        bag, answer, note = self._answer(path, models)
        files = self._write_files(path, bag, answer, out, models)
        verdict, rows, coords = "", None, None
        if (evidence := answer.evidence) is not None:
            verdict = certify(evidence.verdict, self.model_warning)
            rows = evidence.indices.tolist()
            if evidence.coords is not None:
                coords = evidence.coords[evidence.indices].tolist()
        facts: dict[str, Any] = {"n_patches": len(bag or ()), "evidence": rows}
        if isinstance(answer, SlideFilePrediction):
            names = ("n_patches", "n_encoded", "certified", "seconds")
            facts |= {name: getattr(answer, name) for name in names}
            facts["evidence"] = None if evidence is None else answer.evidence_rows
        return NewPrediction(
            slide_id=answer.slide_id,
            file=str(path),
            mode=self.mode,
            status="done",
            values={name: answer.values[name] for name in value_names(models, self.mode)},
            per_fold=answer.per_fold,
            spread=answer.spread,
            folds=[number for one in models if (number := one.number) is not None],
            part=part,
            verdict=verdict,
            evidence_coords=coords,
            reason=note,
            files={name: str(file.relative_to(out)) for name, file in files.items()},
            key=key,
            **facts,
        )

    def _answer(
        self, path: Path, models: tuple[FoldModel, ...]
    ) -> tuple[Bag | None, SlidePrediction, str]:
        """The bag if all of it is encoded, its prediction, and a note on the file."""
        if is_slide_file(path):
            if isinstance(self._predictor, GcemilError):
                raise self._predictor
            prediction = self._predictor.use_folds(models).predict(path, mpp=self.options.mpp)
            return prediction.bag, prediction, ""
        if self.mode == "prefilter":
            raise UsageError(
                f"{path} is not a slide file: its patches are encoded already, and there is "
                "nothing to filter. Give the slide itself, or predict with --mode discrete."
            )
        bag, note = read_new_slide(path, models[0].meta, mpp=self.options.mpp)
        return bag, predict_new_bag(models, bag, self.mode), note

    @cached_property
    def _predictor(self) -> SlidePredictor | GcemilError:
        """The encoder, loaded once; if that fails every slide file fails for the same reason."""
        try:
            return SlidePredictor.open(
                self.run,
                mode=self.mode,
                source=self.source,
                folds=self.models,
                device=str(pick_device(self.device)),
                precision=self.options.precision,
            )
        except GcemilError as error:
            return error

    def _write_files(
        self,
        path: Path,
        bag: Bag | None,
        answer: SlidePrediction,
        out: Path,
        models: tuple[FoldModel, ...],
    ) -> dict[str, Path]:
        options = self.options
        if options.explain is not None:
            return self._explain_bag(path, bag, options.explain, models).write_files(
                out / answer.slide_id, all_patches=options.all_patches, heatmaps=options.heatmaps
            )
        if answer.evidence is None:
            return {}
        target = out / f"{answer.slide_id}.h5"
        write_evidence(target, answer.evidence, _hash_inputs(path, models))
        return {"hdf5": target}

    def _explain_bag(
        self, path: Path, bag: Bag | None, options: ExplainOptions, models: tuple[FoldModel, ...]
    ) -> ExplainedSlide:
        if bag is None:
            raise RunError(
                f"{path}: not all patches were encoded, so nothing can be kept and removed."
            )
        read_place = read_slide_place if is_slide_file(path) else read_feature_place
        place = read_place(path, mpp=self.options.mpp)
        hashes = _hash_inputs(path, models)
        del hashes["model"]
        with one_thread():
            return explain_new_slide(models, bag, place, hashes, options)

    def _key(self, path: Path) -> str:
        """A hash of everything that the result depends on."""
        networks = [content_hash(one.checkpoint) for one in self.models]
        if self.mode == "prefilter":
            fitted = (one.folder / PREFILTER_FILE for one in self.models)
            networks += [content_hash(path) for path in fitted if path.is_file()]
        parts = {
            "input": _hash_inputs(path, self.models),
            "networks": networks,
            "options": asdict(self.options),
            "gcemil": __version__,
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _hash_inputs(path: Path, models: Sequence[FoldModel]) -> dict[str, str]:
    """Fingerprints of the networks and of the slide or its features."""
    hashes = {"model": join_hashes([content_hash(one.checkpoint) for one in models])}
    if is_slide_file(path):
        return {**hashes, "slide": file_fingerprint(path)}
    return {**hashes, "features": content_hash(path)}


def write_joined_predictions(out: Path, answers: Mapping[str, Sequence[NewPrediction]]) -> Path:
    """OUT/predictions.csv of several targets: per slide the probability and evidence of each."""
    rows: dict[str, dict[str, Any]] = {}
    for target, predictions in answers.items():
        for one in predictions:
            row = rows.setdefault(
                one.slide_id, {"slide_id": one.slide_id, "file": one.file, "status": "done"}
            )
            row |= {
                f"prob_{target}": one.values.get(f"prob_{target}", ""),
                f"n_selected_{target}": "" if one.n_selected is None else one.n_selected,
                f"verdict_{target}": one.verdict,
            }
            row["status"] = "failed" if one.status == "failed" else row["status"]
    columns = dict.fromkeys(name for row in rows.values() for name in row)
    return write_table(out / "predictions.csv", columns, rows.values())


@lru_cache(maxsize=1)
def _open_in_worker(
    run: Path, options: PredictOptions, source: WeightSource | None, device: str
) -> NewSlides:
    """The run, opened once by every worker."""
    return NewSlides.open(run, options, source=source, device=device)


def _predict_in_worker(
    opening: tuple[Path, PredictOptions, WeightSource | None, str],
    out: Path,
    again: bool,
    file: tuple[str, Path],
) -> NewPrediction:
    """One slide in a worker process."""
    with one_thread():
        return _open_in_worker(*opening).try_predict(*file, out, again)


def _read_finished(path: Path, key: str, out: Path) -> NewPrediction | None:
    """The record of a slide that was done under this key; a damaged one is none."""
    if not path.is_file():
        return None
    try:
        record = read_record(path, NewPrediction, error=RunError, remedy="")
    except GcemilError:
        return None
    is_whole = all((out / name).is_file() for name in record.files.values())
    return record if record.key == key and is_whole else None
