"""The HTTP application: OpenAI's endpoints, those of the other tasks, and the page."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import HTMLResponse, Response

from chainrule.serving import completions, failures, inspection, verbs
from chainrule.serving.chat import ChatTemplate
from chainrule.serving.failures import ApiError
from chainrule.serving.gate import Gate
from chainrule.serving.page import PageFiles
from chainrule.serving.reference import reference_page
from chainrule.serving.registry import Registry, UnknownRun
from chainrule.serving.service import ServerLimits, Service

WEB = Path(__file__).parent / "web"


def create_app(
    registry: Registry,
    *,
    limits: ServerLimits | None = None,
    chat_template: ChatTemplate | None = None,
    api_key: str | None = None,
    cors: Sequence[str] = (),
    shutdown_seconds: float | None = 30.0,
) -> FastAPI:
    """The application over some runs.

    Its state has the `registry`, the `engine` and the `service` that has all the rest. With an `api_key`, all but the
    page, /health and /ready needs it. `cors` are the origins whose pages may use the server. When it is shut down, what
    runs is finished, for at most `shutdown_seconds`.
    """
    service = Service(registry, limits, chat_template)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        threading.Thread(target=registry.preload, name="chainrule-preload", daemon=True).start()
        yield
        await asyncio.to_thread(service.close, seconds=shutdown_seconds)

    app = FastAPI(title="chainrule", version=version("chainrule"), docs_url=None, redoc_url=None, lifespan=lifespan)
    app.state.registry, app.state.service, app.state.engine = registry, service, service.engine
    failures.install(app)
    app.add_middleware(Gate, metrics=service.metrics, api_key=api_key, body_bytes=service.limits.body_bytes)
    if cors:
        app.add_middleware(CORSMiddleware, allow_origins=list(cors), allow_methods=["*"], allow_headers=["*"])
    _add_status(app)
    app.include_router(completions.router)
    app.include_router(verbs.router)
    app.include_router(inspection.router)
    app.mount("/", PageFiles(directory=WEB, html=True), name="web")
    return app


def _add_status(app: FastAPI) -> None:
    @app.get("/health", tags=["status"], summary="Whether the process answers")
    def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/ready", tags=["status"], summary="Whether requests are accepted")
    def ready(request: Request) -> dict[str, Any]:
        names = request.app.state.registry.names()
        if not request.app.state.engine.is_open:
            raise ApiError(503, "the server is shutting down; use another one", code="shutting_down")
        if not names:
            raise ApiError(503, "no run is served yet; wait until one is trained", code="not_ready")
        return {"status": "ready", "models": len(names)}

    @app.get("/metrics", tags=["status"], summary="Metrics in the format of Prometheus", response_class=Response)
    def metrics(request: Request) -> Response:
        return Response(request.app.state.service.metrics.text(), media_type="text/plain; version=0.0.4")

    @app.get("/docs", include_in_schema=False)
    def reference() -> HTMLResponse:
        return HTMLResponse(reference_page(app.openapi()))

    @app.get("/v1/models", tags=["models"], summary="The runs that are served")
    def models(request: Request) -> dict[str, Any]:
        registry: Registry = request.app.state.registry
        folders = registry.folders()
        return {"object": "list", "data": [model_object(name, folders[name].path) for name in registry.names()]}

    @app.get("/v1/models/{name}", tags=["models"], summary="One of the runs")
    def model(name: str, request: Request) -> dict[str, Any]:
        registry: Registry = request.app.state.registry
        if name not in registry.names():
            raise UnknownRun(f"no run {name!r} is served; GET /v1/models lists the runs")
        return model_object(name, registry.folders()[name].path)


def model_object(name: str, path: Path) -> dict[str, Any]:
    """A run as OpenAI's clients describe models."""
    from chainrule.training.checkpoint import RunFolder

    config = RunFolder(path).config()
    created = int((path / "config.toml").stat().st_mtime)
    return {"id": name, "object": "model", "created": created, "owned_by": "chainrule", "family": config.family}
