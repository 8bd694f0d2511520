"""The HTTP application: OpenAI's endpoints, those of the other tasks, and the page."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request

from chainrule.serving import failures, inspection
from chainrule.serving.failures import ApiError
from chainrule.serving.page import PageFiles
from chainrule.serving.registry import Registry, UnknownRun

WEB = Path(__file__).parent / "web"


def create_app(registry: Registry) -> FastAPI:
    """The application over some runs; `app.state.registry` has them."""
    app = FastAPI(title="chainrule", version=version("chainrule"), docs_url=None, redoc_url=None)
    app.state.registry = registry
    failures.install(app)
    _add_status(app)
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
        if not names:
            raise ApiError(503, "no run is served yet; wait until one is trained", code="not_ready")
        return {"status": "ready", "models": len(names)}

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
