"""`chainrule serve`: runs behind an HTTP interface, and the page."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from chainrule.cli.options import Device, Threads, errors, importing_torch
from chainrule.errors import MissingExtra, RunError


def serve(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run folders, or folders of runs.", show_default=False)
    ],
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0: all networks.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: a free one.")] = 8000,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Serve runs: an HTTP interface for OpenAI's clients, and a page in the browser.

    A folder of runs is watched: new runs appear without a restart. For example

        chainrule serve runs/first

        chainrule serve runs --port 9000
    """
    if find_spec("fastapi") is None or find_spec("uvicorn") is None:
        raise MissingExtra("the server", "serve")
    for path in runs:
        if not path.is_dir():
            raise RunError(f"no run and no folder of runs at {str(path)!r}; check the path")
    with importing_torch(threads):
        import uvicorn

        from chainrule.serving.app import create_app
        from chainrule.serving.registry import Registry
    registry = Registry(runs, device=device)
    errors.print(f"http://{host}:{port} serves {', '.join(registry.names()) or 'no run yet'}", highlight=False)
    uvicorn.run(create_app(registry), host=host, port=port, log_level="warning")
