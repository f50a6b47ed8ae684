"""The web application: one page, one slide at a time, and the bench behind it.

  GET  /  /static/<name>                            the page
  GET  /api/slides                                  the test slides of the fold
  GET  /api/slides/{slide}                          frame, layers, the set the model chose, marks
  GET  /api/slides/{slide}/patches | subsets        typed arrays (bench.py)
  GET  /api/slides/{slide}/tiles/{level}/{column}_{row}
  POST /api/slides/{slide}/judge                    bits of S and P in, predictions and certificate out (bench.py)
  POST /api/slides/{slide}/evidence.json | .geojson bits of S in, a file out
  PUT  /api/slides/{slide}/review                   marks in, agreement out
  PUT  /api/slides/{slide}/review.geojson           marks of QuPath in; all marks of the slide, and what was left out
  GET  /api/agreement                               all reviews of the fold

A slide is looked up among the slides of the fold; Starlette serves the static files and keeps to their folder.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from gcemil.errors import GcemilError, InputError, UsageError
from gcemil.files import parse_json, without_nan
from gcemil.records import certify
from gcemil.report.slide_view import rank_anchors
from gcemil.viewer import bench, overview, reviews
from gcemil.viewer.security import Entry, Guard
from gcemil.viewer.session import OpenedSlide, ViewerSession

STATIC = Path(__file__).parent / "static"
BYTES = "application/octet-stream"
JSON = "application/json"

T = TypeVar("T")


class _JsonAnswer(JSONResponse):
    """JSON that any number and any name can be part of: NaN becomes null, half a character its escape."""

    def render(self, content: Any) -> bytes:
        """The content as ASCII bytes."""
        return json.dumps(without_nan(content), allow_nan=False, separators=(",", ":")).encode(
            "ascii"
        )


class _ViewerApi:
    """The handlers. Those that use the network queue for one thread, so that all others are answered meanwhile."""

    def __init__(self, session: ViewerSession) -> None:
        self._session = session

    def routes(self) -> list[BaseRoute]:
        """Every address of the viewer."""
        slide = "/api/slides/{slide}"
        return [
            Route("/", lambda _: FileResponse(STATIC / "index.html")),
            Route("/favicon.ico", lambda _: FileResponse(STATIC / "icon.svg")),
            Mount("/static", StaticFiles(directory=STATIC)),
            Route("/api/slides", self.slides),
            Route("/api/agreement", self.agreement),
            Route(slide, self.slide),
            Route(f"{slide}/patches", self.patches),
            Route(f"{slide}/subsets", self.subsets),
            Route(f"{slide}/tiles/{{level:int}}/{{column:int}}_{{row:int}}", self.tile),
            Route(f"{slide}/judge", self.judge, methods=["POST"]),
            Route(f"{slide}/evidence.json", self.export, methods=["POST"]),
            Route(f"{slide}/evidence.geojson", self.export, methods=["POST"]),
            Route(f"{slide}/review", self.review, methods=["PUT"]),
            Route(f"{slide}/review.geojson", self.import_review, methods=["PUT"]),
        ]

    async def slides(self, request: Request) -> Response:
        """The test slides of the fold, the one to open first, and what may be claimed of the run."""
        return _JsonAnswer(await run_in_threadpool(overview.describe_run, self._session))

    async def slide(self, request: Request) -> Response:
        """Everything about one slide but its patches."""
        slide = await self._slide(request)
        marked = await run_in_threadpool(reviews.describe_marks, self._session, slide)
        return _JsonAnswer({**await self._ask_network(_describe_slide, slide), **marked})

    async def patches(self, request: Request) -> Response:
        """Corners and layers of a slide as bytes."""
        slide = await self._slide(request)
        return Response(await self._ask_network(bench.patch_arrays, slide), media_type=BYTES)

    async def subsets(self, request: Request) -> Response:
        """Disjoint sufficient subsets, one number per patch."""
        slide = await self._slide(request)
        groups = await self._ask_network(bench.subset_groups, slide)
        return Response(groups.tobytes(), media_type=BYTES)

    async def tile(self, request: Request) -> Response:
        """One square of the slide's picture."""
        slide = await self._slide(request)
        level, column, row = (request.path_params[name] for name in ("level", "column", "row"))
        try:
            picture = await run_in_threadpool(slide.tile, level, column, row)
        except UsageError as error:
            raise HTTPException(404, str(error)) from error
        return Response(
            picture, media_type="image/jpeg" if slide.tiles.shows_pixels else "image/png"
        )

    async def judge(self, request: Request) -> Response:
        """The live prediction and the certificate of two sets."""
        slide, body = await self._slide(request), await read_body(request, BYTES)
        selected, present = bench.read_masks(body, n_patches=len(slide.bench), count=2)
        tolerances = self._session.tolerances
        return _JsonAnswer(
            await self._ask_network(bench.judge_set, slide, selected, present, tolerances)
        )

    async def export(self, request: Request) -> Response:
        """The set as JSON, or as GeoJSON for QuPath.

        Streamed, and made without the network: at 200,000 patches it is hundreds of megabytes.
        """
        encode = (
            bench.export_evidence if request.url.path.endswith(".json") else bench.export_geojson
        )
        slide, body = await self._slide(request), await read_body(request, BYTES)
        (selected,) = bench.read_masks(body, n_patches=len(slide.bench), count=1)
        blocks = await run_in_threadpool(encode, slide, selected.numpy()[slide.rows])
        return StreamingResponse(blocks, media_type=JSON)

    async def review(self, request: Request) -> Response:
        """Save the marks of one slide."""
        slide, content = await self._slide(request), await _read_json(request, "The review")
        saved = await self._ask_network(reviews.save_review, self._session, slide, content)
        return _JsonAnswer(saved.to_json())

    async def import_review(self, request: Request) -> Response:
        """Add the marks of a GeoJSON file to those of one slide."""
        slide, content = await self._slide(request), await _read_json(request, "The file")
        return _JsonAnswer(
            await self._ask_network(reviews.import_marks, self._session, slide, content)
        )

    async def agreement(self, request: Request) -> Response:
        """How far reviewers and evidence agree."""
        return _JsonAnswer(await run_in_threadpool(reviews.agreements, self._session))

    async def _slide(self, request: Request) -> OpenedSlide:
        slide_id = request.path_params["slide"]
        if slide_id not in self._session.specs:
            raise HTTPException(404, "The fold tests no such slide.")
        opened = self._session.opened.get(slide_id)
        return (
            opened if opened is not None else await self._ask_network(self._session.slide, slide_id)
        )

    async def _ask_network(self, question: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(
            self._session.network, question, *args
        )


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
        "layers": [layer.describe() for layer in bench.slide_layers(slide)],
        "rule": slide.rule,
        "chosen": np.flatnonzero(slide.chosen.numpy()).tolist(),
        "regions": bench.region_numbers(slide),
        "prompts": [] if evidence is None else list(evidence.prompts),
        "anchors": [
            {"index": index, "name": name, "counts": counts} for index, name, counts in ranked
        ],
        "verdict": None if evidence is None else certify(evidence.verdict, slide.model_warning),
        "is_no_evidence": evidence is not None and evidence.is_no_evidence,
    }


async def read_body(request: Request, media_type: str) -> bytes:
    """The body, in the content type of our page; a form of another page cannot send it without permission."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != media_type:
        raise HTTPException(415, f"This request needs a body of {media_type}.")
    return await request.body()


async def _read_json(request: Request, what: str) -> Any:
    """A body of JSON, which a message calls `what`."""
    body = await read_body(request, JSON)
    try:
        return parse_json(body.decode(), what)
    except (InputError, UnicodeDecodeError) as error:
        raise UsageError(str(error)) from error


def create_app(
    session: ViewerSession,
    *,
    entry: Entry,
    port: int,
    on_refused: Callable[[], None] = lambda: None,
) -> Guard:
    """The application behind its guard."""
    handlers: dict[Any, Any] = {
        GcemilError: _answer_error,
        HTTPException: _answer_refusal,
        ClientDisconnect: _answer_closed_page,
    }
    app = Starlette(routes=_ViewerApi(session).routes(), exception_handlers=handlers)
    # A path with one slash too many is another path.
    app.router.redirect_slashes = False
    return Guard(app, entry=entry, port=port, on_refused=on_refused)


async def _answer_error(request: Request, error: Exception) -> Response:
    return _JsonAnswer({"error": str(error)}, 400 if isinstance(error, UsageError) else 500)


async def _answer_refusal(request: Request, error: HTTPException) -> Response:
    return _JsonAnswer({"error": error.detail}, error.status_code, headers=error.headers)


async def _answer_closed_page(request: Request, error: Exception) -> Response:
    """The page was closed during its request; nobody reads the answer."""
    return Response(status_code=400)
