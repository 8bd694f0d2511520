"""Runs that the tests of the server share, and a server on a real port."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI

from chainrule.api import train
from chainrule.serving.app import create_app
from chainrule.serving.registry import Registry
from tests.conftest import LINES
from tests.serving.served import make_served


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tiny runs of every task, a report and a running training."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CHAINRULE_CACHE", str(tmp_path_factory.mktemp("cache")))
        return make_served(tmp_path_factory.mktemp("served") / "runs")


@pytest.fixture(scope="session")
def registry(served: Path) -> Registry:
    return Registry([served])


@pytest.fixture(scope="session")
def served_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs: an n-gram model, a GPT with a chat template, and a GPT of subwords."""
    folder = tmp_path_factory.mktemp("served")
    text = folder / "text.txt"
    text.write_text("".join(LINES[(index * 7 + index // 3) % 4] for index in range(120)), encoding="utf-8")
    runs = folder / "runs"
    small = ["model.width=16", "model.layers=1", "model.heads=2", "model.context=64", "train.steps=3"]
    train("ngram", data=str(text), out=str(runs / "ngram"), progress=False, scored=False)
    train("gpt", data=str(text), out=str(runs / "gpt"), overrides=small, progress=False, scored=False)
    bytewise = [*small, "tokenizer=bytes"]
    train("gpt", data=str(text), out=str(runs / "bytes"), overrides=bytewise, progress=False, scored=False)
    template = (
        '{# stop: "\\nuser:" #}{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}'
        "{% if add_generation_prompt %}assistant:{% endif %}"
    )
    (runs / "bytes" / "chat_template.jinja").write_text(template, encoding="utf-8")
    return runs


class Server:
    """A running server."""

    def __init__(self, app: FastAPI, url: str, server: uvicorn.Server, thread: threading.Thread) -> None:
        self.app, self.url, self._server, self._thread = app, url, server, thread
        self.engine = app.state.engine

    def stop(self) -> None:
        """Stop as SIGTERM does."""
        self._server.should_exit = True
        self._thread.join(30)


Start = Callable[..., Server]


@contextmanager
def running(app: FastAPI) -> Iterator[Server]:
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    end = time.monotonic() + 20
    while not server.started:
        assert time.monotonic() < end
        time.sleep(0.01)
    opened = Server(app, f"http://127.0.0.1:{listening.getsockname()[1]}", server, thread)
    try:
        yield opened
    finally:
        opened.stop()
        listening.close()


@pytest.fixture(scope="session")
def server(served_runs: Path) -> Iterator[Server]:
    with running(create_app(Registry([served_runs]))) as opened:
        yield opened


@pytest.fixture
def start(served_runs: Path) -> Iterator[Start]:
    """Start a server with other settings."""
    with ExitStack() as stack:

        def begin(**settings: Any) -> Server:
            return stack.enter_context(running(create_app(Registry([served_runs]), **settings)))

        yield begin
