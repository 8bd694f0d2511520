"""What the endpoints share: runs, the engine, a worker for whole computations, limits and metrics."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fastapi import Request as HttpRequest

from chainrule.limits import LARGEST_SEED
from chainrule.serving.chat import ChatTemplate
from chainrule.serving.engine import Engine, EngineLimits
from chainrule.serving.failures import ApiError, as_api_error
from chainrule.serving.metrics import ServerMetrics
from chainrule.serving.registry import Registry
from chainrule.serving.requests import EngineClosed, Listener, Request, Ticket, Token
from chainrule.serving.worker import Worker
from chainrule.tasks import Run
from chainrule.tasks.base import RunT

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class ServerLimits:
    """What a request may ask for."""

    body_bytes: int = 4 << 20
    prompt_tokens: int = 8192
    max_tokens: int = 4096
    timeout: float = 300.0  # seconds for one request
    waiting_computations: int = 16  # translations, scores and others that wait for the worker
    engine: EngineLimits = field(default_factory=EngineLimits)


class Service:
    """The state of a server: everything that its endpoints use."""

    def __init__(
        self, registry: Registry, limits: ServerLimits | None = None, chat_template: ChatTemplate | None = None
    ) -> None:
        self.registry = registry
        self.limits = limits or ServerLimits()
        self.chat_template = chat_template
        self.engine = Engine(self.limits.engine)
        self.metrics = ServerMetrics(self.engine)
        self._worker = Worker("chainrule-worker")
        self._computing = 0
        self._mailroom: Mailroom | None = None

    def close(self, *, seconds: float | None = None) -> None:
        """Finish what runs, for at most so many seconds."""
        began = time.monotonic()
        self.engine.close(seconds=seconds)
        self._worker.close(None if seconds is None else max(0.0, seconds - (time.monotonic() - began)))

    # Runs

    async def run(self, name: str, kind: type[RunT]) -> RunT:
        """A served run that must be of a kind; it may have to be loaded first."""
        found = await self.any_run(name)
        if not isinstance(found, kind):
            raise mismatch(name, found, kind.does)
        return found

    async def any_run(self, name: str) -> Run:
        recent = self.registry.recent(name)
        return await asyncio.to_thread(self.registry.get, name) if recent is None else recent

    # Whole computations

    async def compute(self, work: Callable[[], Result]) -> Result:
        """Carry out work that is not decoded token by token, one at a time, in a thread of its own."""
        if not self.engine.is_open:
            raise EngineClosed("the server is shutting down and takes no more requests; try another one")
        if self._computing >= self.limits.waiting_computations:
            raise too_many(f"{self._computing} computations are waiting already; try again later")
        self._computing += 1
        try:
            return await asyncio.wait_for(asyncio.wrap_future(self._worker.submit(work)), self.limits.timeout)
        except TimeoutError:
            raise ApiError(
                408, f"not finished within {self.limits.timeout:g} seconds; send less", code="timeout"
            ) from None
        finally:
            self._computing -= 1

    async def compute_for(self, request: HttpRequest, work: Callable[[], Result]) -> Result:
        """The same for a client; if it hangs up before its turn comes, nothing is computed."""
        return await unless_disconnected(request, self.compute(work))

    # Generation

    def check_sizes(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> None:
        """Raise ApiError for requests beyond the limits."""
        longest = max(map(len, prompts))
        if longest > self.limits.prompt_tokens:
            raise ApiError(
                400,
                f"the prompt has {longest:,} tokens; the limit is {self.limits.prompt_tokens:,}: send less",
                param="prompt",
                code="context_length_exceeded",
            )
        if max_tokens > self.limits.max_tokens:
            raise ApiError(
                400,
                f"max_tokens is {max_tokens:,}; the limit is {self.limits.max_tokens:,}: ask for less",
                param="max_tokens",
                code="invalid_value",
            )

    def tokens(self, requests: Sequence[Request]) -> Streams:
        """Submit requests together; if one is refused, none remains."""
        if self._mailroom is None or self._mailroom.loop is not asyncio.get_running_loop():
            self._mailroom = Mailroom(asyncio.get_running_loop())
        return Streams(self, self._mailroom, requests)


def mismatch(name: str, run: Run, wanted: str) -> ApiError:
    """The error for a run that does something else than is asked for; it does not say where the run is stored."""
    about = f"run {name!r} is a {run.config.family}, which {run.does}"
    return ApiError(400, f"{about}; choose a run that {wanted}", param="model", code="wrong_model")


def too_many(message: str) -> ApiError:
    """The error for a server that has enough to do."""
    error = ApiError(429, message, code="queue_full")
    error.headers["Retry-After"] = "1"
    return error


def random_seed() -> int:
    return secrets.randbelow(LARGEST_SEED)


class Mailroom:
    """Carries tokens from the thread of the engine to an event loop: one wake-up for all that has arrived."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._arrived: deque[tuple[asyncio.Queue[Any], Any]] = deque()
        self._woken = False

    def listener(self, inbox: asyncio.Queue[Any], index: int) -> Listener:
        def receive(what: list[Token] | Exception) -> None:
            self._arrived.append((inbox, (index, what)))
            if not self._woken:
                self._woken = True
                with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
                    self.loop.call_soon_threadsafe(self._deliver)

        return receive

    def _deliver(self) -> None:
        self._woken = False
        while self._arrived:
            inbox, what = self._arrived.popleft()
            inbox.put_nowait(what)


class Streams:
    """The tokens of several requests as they arrive; leaving the block cancels what is not finished."""

    def __init__(self, service: Service, mailroom: Mailroom, requests: Sequence[Request]) -> None:
        self.service = service
        self._inbox: asyncio.Queue[tuple[int, list[Token] | Exception]] = asyncio.Queue()
        self.tickets: list[Ticket] = []
        try:
            for index, request in enumerate(requests):
                self.tickets.append(service.engine.submit(request, mailroom.listener(self._inbox, index)))
        except Exception:
            self.cancel()
            raise

    def cancel(self) -> None:
        for ticket in self.tickets:
            self.service.engine.cancel(ticket)

    async def __aiter__(self) -> AsyncIterator[list[tuple[int, list[Token]]]]:
        """All that has arrived since the last time: the index of a request and its new tokens."""
        open_requests = len(self.tickets)
        try:
            while open_requests:
                received = [await self._inbox.get()]
                while not self._inbox.empty():
                    received.append(self._inbox.get_nowait())
                batch: list[tuple[int, list[Token]]] = []
                for index, what in received:
                    if isinstance(what, Exception):
                        raise as_api_error(what)
                    self.service.metrics.tokens_arrived(self.tickets[index], len(what))
                    open_requests -= what[-1].finished is not None
                    batch.append((index, what))
                yield batch
        finally:
            self.cancel()


async def unless_disconnected(request: HttpRequest, work: Awaitable[Result]) -> Result:
    """The result of some work, which is cancelled when the client hangs up."""

    async def hang_up() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task, watch = asyncio.ensure_future(work), asyncio.ensure_future(hang_up())
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ApiError(499, "the client has closed the connection")
        return task.result()
    finally:
        for one in (task, watch):
            one.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await one
