"""The web application: one page, one slide at a time, and the bench behind it.

  GET  /  /static/<name>                            the page
  GET  /api/slides                                  the test slides of the fold
  GET  /api/slides/{slide}                          frame, layers, the set the model chose, marks
  GET  /api/slides/{slide}/patches | subsets        typed arrays (bench.py)
  GET  /api/slides/{slide}/tiles/{level}/{column}_{row}
  POST /api/slides/{slide}/judge                    bits of S and P in, predictions out (bench.py)
  POST /api/slides/{slide}/evidence.json | .geojson bits of S in, a file out
  PUT  /api/slides/{slide}/review                   marks in, agreement out
  PUT  /api/slides/{slide}/review.geojson           marks of QuPath in; all marks of the slide out
  GET  /api/agreement                               all reviews of the fold

Handlers run in threads; those that use the network queue for one thread of their own.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from gcemil.errors import GcemilError, InputError, UsageError
from gcemil.files import parse_json, without_nan
from gcemil.records import certify
from gcemil.report.slide_view import rank_anchors
from gcemil.viewer import bench, overview, reviews
from gcemil.viewer.session import OpenedSlide, ViewerSession

STATIC = Path(__file__).parent / "static"
BYTES = "application/octet-stream"

T = TypeVar("T")


class _JsonAnswer(JSONResponse):
    """JSON of any number and any name: NaN becomes null, a lone surrogate its escape."""

    def render(self, content: Any) -> bytes:
        return json.dumps(without_nan(content), separators=(",", ":")).encode("ascii")


class _ViewerApi:
    """The handlers; those of a request with a body get the body too."""

    def __init__(self, session: ViewerSession) -> None:
        self._session = session

    def routes(self) -> list[BaseRoute]:
        slide = "/api/slides/{slide}"
        return [
            Route("/", lambda _: FileResponse(STATIC / "index.html")),
            Route("/favicon.ico", lambda _: FileResponse(STATIC / "icon.svg")),
            Mount("/static", StaticFiles(directory=STATIC)),
            Route("/api/slides", lambda _: _JsonAnswer(overview.describe_run(self._session))),
            Route("/api/agreement", lambda _: _JsonAnswer(reviews.agreements(self._session))),
            Route(slide, self.slide),
            Route(f"{slide}/patches", self.patches),
            Route(f"{slide}/subsets", self.subsets),
            Route(f"{slide}/tiles/{{level:int}}/{{column:int}}_{{row:int}}", self.tile),
            Route(f"{slide}/judge", _with_body(self.judge), methods=["POST"]),
            Route(f"{slide}/evidence.json", _with_body(self.export), methods=["POST"]),
            Route(f"{slide}/evidence.geojson", _with_body(self.export), methods=["POST"]),
            Route(f"{slide}/review", _with_body(self.review), methods=["PUT"]),
            Route(f"{slide}/review.geojson", _with_body(self.import_review), methods=["PUT"]),
        ]

    def slide(self, request: Request) -> Response:
        """Everything about one slide but its patches."""
        slide = self._slide(request)
        marks = reviews.describe_marks(self._session, slide)
        return _JsonAnswer({**self._ask_network(_describe_slide, slide), **marks})

    def patches(self, request: Request) -> Response:
        """Corners and layers of a slide as bytes."""
        slide = self._slide(request)
        return Response(self._ask_network(bench.patch_arrays, slide), media_type=BYTES)

    def subsets(self, request: Request) -> Response:
        """Disjoint sufficient subsets, one number per patch."""
        groups = self._ask_network(bench.subset_groups, self._slide(request))
        return Response(groups.tobytes(), media_type=BYTES)

    def tile(self, request: Request) -> Response:
        """One square of the slide's picture."""
        slide, at = self._slide(request), request.path_params
        try:
            picture = slide.tile(at["level"], at["column"], at["row"])
        except UsageError as error:
            raise HTTPException(404, str(error)) from error
        kind = "image/jpeg" if slide.tiles.shows_pixels else "image/png"
        return Response(picture, media_type=kind)

    def judge(self, request: Request, body: bytes) -> Response:
        """The live prediction and the certificate of two sets."""
        slide = self._slide(request)
        sets = bench.read_masks(body, n_patches=len(slide.bench), count=2)
        tolerances = self._session.tolerances
        return _JsonAnswer(self._ask_network(bench.judge_set, slide, *sets, tolerances))

    def export(self, request: Request, body: bytes) -> Response:
        """The set as JSON, or as GeoJSON for QuPath; streamed, since it may be large."""
        is_json = request.url.path.endswith(".json")
        encode = bench.export_evidence if is_json else bench.export_geojson
        slide = self._slide(request)
        (selected,) = bench.read_masks(body, n_patches=len(slide.bench), count=1)
        blocks = encode(slide, selected.numpy()[slide.rows])
        return StreamingResponse(blocks, media_type="application/json")

    def review(self, request: Request, body: bytes) -> Response:
        """Save the marks of one slide."""
        slide, content = self._slide(request), _parse_body(body, "The review")
        saved = self._ask_network(reviews.save_review, self._session, slide, content)
        return _JsonAnswer(saved.to_json())

    def import_review(self, request: Request, body: bytes) -> Response:
        """Add the marks of a GeoJSON file to those of one slide."""
        slide, content = self._slide(request), _parse_body(body, "The file")
        marks = self._ask_network(reviews.import_marks, self._session, slide, content)
        return _JsonAnswer(marks)

    def _slide(self, request: Request) -> OpenedSlide:
        slide_id = request.path_params["slide"]
        if slide_id not in self._session.specs:
            raise HTTPException(404, "The fold tests no such slide.")
        opened = self._session.opened.get(slide_id)
        return opened or self._ask_network(self._session.slide, slide_id)

    def _ask_network(self, function: Callable[..., T], *args: Any) -> T:
        return self._session.network.submit(function, *args).result()


def _with_body(handler: Callable[[Request, bytes], Response]) -> Callable[[Request], Any]:
    async def answer(request: Request) -> Response:
        return await run_in_threadpool(handler, request, await request.body())

    return answer


def _parse_body(body: bytes, what: str) -> Any:
    """A body of JSON, which a message calls `what`."""
    try:
        return parse_json(body, what)
    except InputError as error:
        raise UsageError(str(error)) from error


def _describe_slide(slide: OpenedSlide) -> dict[str, Any]:
    """Everything about a slide except its arrays."""
    frame, rows, evidence, model = slide.tiles.frame, slide.rows, slide.evidence, slide.fold.model
    ranked: list[tuple[int, str, bool]] = []
    if evidence is not None and model is not None:
        ranked = rank_anchors(evidence, model.settings.recovery.min_weight_share)
    return {
        "slide_id": slide.slide_id,
        "bag_id": slide.bench.spec.bag_id,
        "bag_slides": list(slide.bench.bag.slide_ids),
        "n_bag": len(slide.bench),
        "start": rows.start,
        "stop": rows.stop,
        "frame": {**vars(frame), "min_level": slide.tiles.min_level, "max_level": frame.max_level},
        "shows_pixels": slide.tiles.shows_pixels,
        "patch_size": slide.patch_size,
        "has_coords": slide.has_coords,
        "note": slide.note,
        "mpp": slide.mpp,
        "layers": [about for about, _ in bench.slide_layers(slide)],
        "rule": slide.rule,
        "chosen": np.flatnonzero(slide.chosen.numpy()).tolist(),
        "regions": bench.region_numbers(slide),
        "prompts": [] if evidence is None else list(evidence.prompts),
        "anchors": [
            {"index": index, "name": name, "counts": counts} for index, name, counts in ranked
        ],
        "verdict": None if evidence is None else certify(evidence.verdict, slide.model_warning),
        "predictions": bench.compare_predictions(slide),
        "is_no_evidence": evidence is not None and evidence.is_no_evidence,
    }


def create_app(session: ViewerSession) -> Starlette:
    handlers: dict[Any, Any] = {GcemilError: _answer_error, HTTPException: _answer_refusal}
    app = Starlette(routes=_ViewerApi(session).routes(), exception_handlers=handlers)
    # A path with one slash too many is another path.
    app.router.redirect_slashes = False
    return app


async def _answer_error(request: Request, error: Exception) -> Response:
    return _JsonAnswer({"error": str(error)}, 400 if isinstance(error, UsageError) else 500)


async def _answer_refusal(request: Request, error: HTTPException) -> Response:
    return _JsonAnswer({"error": error.detail}, error.status_code, headers=error.headers)
