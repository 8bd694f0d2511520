"""A thread for whole computations, such as a beam search, which are carried out one at a time."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

Result = TypeVar("Result")


class Worker:
    """Unlike an executor of one thread, it can be closed while it computes: what takes too long is left behind."""

    def __init__(self, name: str) -> None:
        self._waiting: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], Result]) -> Future[Result]:
        """Queue some work; it is dropped if its future is cancelled before it begins."""
        future: Future[Result] = Future()
        self._waiting.put((future, work))
        return future

    def close(self, seconds: float | None = None) -> None:
        """Drop what waits, and let what is being computed finish, for at most so many seconds."""
        self._closed = True
        self._waiting.put(None)
        self._thread.join(seconds)

    def _run(self) -> None:
        while (item := self._waiting.get()) is not None:
            future, work = item
            if self._closed:
                future.cancel()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)
            del future, work, item  # nothing of it is kept while the next is awaited
