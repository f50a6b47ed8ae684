"""The web application: one page, one slide at a time, and the bench behind it.

  GET  /  /static/<name>                            the page; names come from a table, never from the disk
  GET  /api/slides                                  the test slides of the fold
  GET  /api/slides/{slide}                          frame, layers, the set the model chose, marks
  GET  /api/slides/{slide}/patches | subsets        typed arrays (layers.py)
  GET  /api/slides/{slide}/tiles/{level}/{column}_{row}
  POST /api/slides/{slide}/judge                    bits of S and P in, predictions and certificate out (bench_api.py)
  POST /api/slides/{slide}/evidence.json | .geojson bits of S in, a file out
  PUT  /api/slides/{slide}/review                   marks in, agreement out
  GET  /api/agreement                               all reviews of the fold

A slide is looked up among the slides of the fold; no path is ever made of a request.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from importlib import resources
from typing import Any

import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gcemil.errors import GcemilError, UsageError
from gcemil.viewer import bench_api, exports, layers, reviews
from gcemil.viewer.security import LOOPBACK, Guard, new_token
from gcemil.viewer.session import OpenedSlide, ViewerSession

STATIC = {
    "viewer.js": "text/javascript",
    "overlay.js": "text/javascript",
    "bench.js": "text/javascript",
    "controls.js": "text/javascript",
    "viewer.css": "text/css",
    "icon.svg": "image/svg+xml",
    "openseadragon/openseadragon.min.js": "text/javascript",
    "openseadragon/LICENSE.txt": "text/plain",
}
BYTES = "application/octet-stream"


class ViewerApi:
    """The answers; each is made on a worker thread, one slide network at a time."""

    def __init__(self, session: ViewerSession) -> None:
        self._session = session

    def routes(self) -> list[Route]:
        slide = "/api/slides/{slide}"
        return [
            Route("/", self.page),
            Route("/static/{name:path}", self.static),
            Route("/api/slides", self.slides),
            Route("/api/agreement", self.agreement),
            Route(slide, self.described),
            Route(f"{slide}/patches", self.patches),
            Route(f"{slide}/subsets", self.subsets),
            Route(f"{slide}/tiles/{{level:int}}/{{column:int}}_{{row:int}}", self.tile),
            Route(f"{slide}/judge", self.judge, methods=["POST"]),
            Route(f"{slide}/evidence.json", self.evidence, methods=["POST"]),
            Route(f"{slide}/evidence.geojson", self.geojson, methods=["POST"]),
            Route(f"{slide}/review", self.review, methods=["PUT"]),
        ]

    def page(self, request: Request) -> Response:
        return Response(static_bytes("index.html"), media_type="text/html")

    def static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in STATIC:
            raise HTTPException(404, "There is no such file.")
        return Response(static_bytes(name), media_type=STATIC[name])

    def slides(self, request: Request) -> Response:
        fold = self._session.fold
        return JSONResponse(
            {
                "run": fold.run.resolve().name,
                "fold": fold.fold,
                "host": fold.settings.host.name,
                "wrapped": fold.model is not None,
                "slides": list(self._session.specs),
            }
        )

    def described(self, request: Request) -> Response:
        slide = self._slide(request)
        frame, rows = slide.tiles.frame, slide.rows
        with self._session.lock:
            shown = [layer.described() for layer in layers.slide_layers(slide)]
        return JSONResponse(
            {
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
                "layers": shown,
                "rule": slide.rule,
                "chosen": np.flatnonzero(slide.chosen.numpy()).tolist(),
                "prompts": [] if slide.evidence is None else list(slide.evidence.prompts),
                "marks": reviews.read_marks(self._session, slide.slide_id),
            }
        )

    def patches(self, request: Request) -> Response:
        slide = self._slide(request)
        with self._session.lock:
            return Response(layers.patch_arrays(slide), media_type=BYTES)

    def subsets(self, request: Request) -> Response:
        slide = self._slide(request)
        with self._session.lock:
            return Response(layers.subset_groups(slide).tobytes(), media_type=BYTES)

    def tile(self, request: Request) -> Response:
        slide, at = self._slide(request), request.path_params
        try:
            found = slide.tile(at["level"], at["column"], at["row"])
        except UsageError as error:
            raise HTTPException(404, str(error)) from error
        return Response(found, media_type="image/jpeg" if slide.tiles.shows_pixels else "image/png")

    async def judge(self, request: Request) -> Response:
        body = await request.body()

        def answer(slide: OpenedSlide) -> Response:
            selected, present = bench_api.masks(body, n_patches=len(slide.bench), count=2)
            return JSONResponse(bench_api.judged(slide, selected, present, self._session.tolerances))

        return await self._locked(request, answer)

    async def evidence(self, request: Request) -> Response:
        return await self._export(request, exports.edited_evidence)

    async def geojson(self, request: Request) -> Response:
        return await self._export(request, exports.edited_geojson)

    async def review(self, request: Request) -> Response:
        body = await request.body()

        def answer(slide: OpenedSlide) -> Response:
            try:
                given = json.loads(body)
            except ValueError as error:
                raise UsageError(f"A review is JSON ({error}).") from error
            return JSONResponse(reviews.save_review(self._session, slide, given).to_json())

        return await self._locked(request, answer)

    def agreement(self, request: Request) -> Response:
        return JSONResponse(reviews.agreements(self._session))

    async def _export(self, request: Request, made: Callable[..., dict[str, Any]]) -> Response:
        body = await request.body()

        def answer(slide: OpenedSlide) -> Response:
            (selected,) = bench_api.masks(body, n_patches=len(slide.bench), count=1)
            text = json.dumps(made(slide, selected.numpy()[slide.rows]), allow_nan=False, ensure_ascii=False)
            return Response(text, media_type="application/json")

        return await self._locked(request, answer)

    async def _locked(self, request: Request, answer: Callable[[OpenedSlide], Response]) -> Response:
        def locked() -> Response:
            slide = self._slide(request)
            with self._session.lock:
                return answer(slide)

        return await run_in_threadpool(locked)

    def _slide(self, request: Request) -> OpenedSlide:
        slide_id = request.path_params["slide"]
        if slide_id not in self._session.specs:
            raise HTTPException(404, "The fold tests no such slide.")
        return self._session.slide(slide_id)


def viewer_app(session: ViewerSession, *, token: str, port: int) -> Guard:
    """The application behind its guard."""
    handlers: dict[Any, Any] = {GcemilError: told, HTTPException: refused}
    return Guard(
        Starlette(routes=ViewerApi(session).routes(), exception_handlers=handlers), token=token, port=port
    )


def serve(session: ViewerSession, *, port: int = 0, on_ready: Callable[[str], None] | None = None) -> None:
    """Listen on loopback until interrupted; `on_ready` is told the address with its token."""
    token = new_token()
    with listening(port) as listener:
        found = int(listener.getsockname()[1])
        if on_ready is not None:
            on_ready(f"http://{LOOPBACK}:{found}/?token={token}")
        try:
            viewer_server(session, token=token, port=found).run(sockets=[listener])
        finally:
            session.close()


def listening(port: int) -> socket.socket:
    """A loopback socket; a browser that is faster than the server waits in its queue instead of being refused."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((LOOPBACK, port))
        listener.listen()
    except OSError as error:
        listener.close()
        raise UsageError(
            f"Port {port} cannot be used ({error.strerror}). Leave --port out for any free one."
        ) from error
    return listener


def viewer_server(session: ViewerSession, *, token: str, port: int) -> uvicorn.Server:
    # No access log: it would hold the token.
    config = uvicorn.Config(
        viewer_app(session, token=token, port=port),
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="off",
        ws="none",
    )
    return uvicorn.Server(config)


def static_bytes(name: str) -> bytes:
    return (resources.files("gcemil.viewer") / "static" / name).read_bytes()


async def told(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error)}, 400 if isinstance(error, UsageError) else 500)


async def refused(request: Request, error: Exception) -> Response:
    code = error.status_code if isinstance(error, HTTPException) else 500
    return JSONResponse({"error": getattr(error, "detail", str(error))}, code)
