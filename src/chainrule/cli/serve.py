"""`chainrule serve`: runs behind an HTTP interface, and the page."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from chainrule.cli.options import Device, Threads, Weights, check_weights, errors, importing_torch
from chainrule.errors import ConfigError, MissingExtra, RunError

KEY = "CHAINRULE_API_KEY"
MEGABYTE = 1 << 20
SWITCH_SECONDS = 0.0005  # that the engine waits for the event loop, or the reverse, where both need Python's lock


def serve(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run folders, or folders of runs.", show_default=False)
    ],
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0: all networks.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: a free one.")] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar=KEY, help="Key that clients must send as a bearer token. Default: none.", show_default=False
        ),
    ] = None,
    chat_template: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Jinja template of chats, for runs without a chat_template.jinja.", show_default=False
        ),
    ] = None,
    rows: Annotated[int, typer.Option(min=1, max=1024, help="Requests that are decoded at once.")] = 32,
    queue: Annotated[int, typer.Option(min=0, help="Requests that may wait; more get status 429.")] = 256,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Longest prompt, in tokens.")] = 8192,
    max_tokens: Annotated[int, typer.Option(min=1, help="Largest max_tokens of a request.")] = 4096,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for one request.")] = 300.0,
    prefix_cache: Annotated[int, typer.Option(min=0, help="Memory of the prefix cache, in MB.")] = 256,
    cors: Annotated[
        list[str] | None,
        typer.Option(help="Origin whose pages may use the server; repeatable. Default: none.", show_default=False),
    ] = None,
    weights: Weights = "float32",
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Serve runs: an HTTP interface for OpenAI's clients, and a page in the browser.

    A folder of runs is watched: new runs appear without a restart. For example

        chainrule serve runs/first

        chainrule serve runs --port 9000
    """
    if any(find_spec(name) is None for name in ("fastapi", "uvicorn", "prometheus_client", "orjson")):
        raise MissingExtra("the server", "serve")
    if log_level not in ("debug", "info", "warning", "error"):
        raise ConfigError(f"--log-level is {log_level!r}; choose debug, info, warning or error")
    if api_key is not None and not api_key.strip():
        raise ConfigError(f"the API key is empty; give one, or remove --api-key and {KEY}")
    stored = check_weights(weights)
    for path in runs:
        if not path.is_dir():
            raise RunError(f"no run and no folder of runs at {str(path)!r}; check the path")
    with importing_torch(threads):
        import uvicorn

        from chainrule.serving.app import create_app
        from chainrule.serving.chat import ChatTemplate
        from chainrule.serving.engine import EngineLimits
        from chainrule.serving.gate import log_as_json
        from chainrule.serving.registry import Registry
        from chainrule.serving.service import ServerLimits
    engine = EngineLimits(rows=rows, queue=queue, prefix_cache_bytes=prefix_cache * MEGABYTE)
    registry = Registry(runs, device=device, weights=stored)
    template = None if chat_template is None else ChatTemplate.read(chat_template)
    listening = _listen(host, port)
    app = create_app(
        registry,
        limits=ServerLimits(prompt_tokens=prompt_tokens, max_tokens=max_tokens, timeout=timeout, engine=engine),
        chat_template=template,
        api_key=None if api_key is None else api_key.strip(),
        cors=cors or (),
    )
    log_as_json(log_level)
    sys.setswitchinterval(SWITCH_SECONDS)
    names = registry.names()
    address = f"http://{'127.0.0.1' if host == '0.0.0.0' else host}:{listening.getsockname()[1]}"
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    errors.print(f"{address}  the page\n{address}/docs  the endpoints", highlight=False)
    errors.print(f"serving {shown or 'no run yet: the folder is watched'}; Ctrl-C stops", highlight=False)
    if host not in ("127.0.0.1", "localhost", "::1") and api_key is None:
        errors.print("everyone on the network can use this server; --api-key protects it", style="yellow")
    config = uvicorn.Config(app, log_config=None, access_log=False, server_header=False, timeout_graceful_shutdown=30)
    with contextlib.suppress(KeyboardInterrupt):  # raised again by uvicorn after it has shut down: nothing is lost
        uvicorn.Server(config).run(sockets=[listening])


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens there; an error in one line if that is not possible."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        reason = error.strerror or os.strerror(error.errno or 0) or str(error)
        raise ConfigError(f"cannot listen on {host}:{port}: {reason}; choose another --port or --host") from None
    return listening
