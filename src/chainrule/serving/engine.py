"""The engine: decodes many requests at once (continuous batching). It needs no HTTP.

    with Engine() as engine:
        for token in engine.stream(request):
            ...

A thread of its own repeats: take waiting requests into free rows, read a few chunks of prompts, decode one step of all
rows, deliver the tokens. Requests join and leave between steps. The text of a request is what it would be alone, to the
last bit: see `rows`.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import torch

from chainrule.decoding.generation import Generation
from chainrule.serving.prefix_cache import PrefixCache
from chainrule.serving.queueing import FairQueue
from chainrule.serving.requests import (
    Cancelled,
    DeadlineExceeded,
    EngineClosed,
    Listener,
    QueueFull,
    Request,
    Ticket,
    Token,
)
from chainrule.serving.rows import CHUNK, CompiledSteps, Row, StepRow, compiled_steps, row_for

log = logging.getLogger(__name__)

PREFILL_TOKENS = 2 * CHUNK  # of prompts, between two steps of the rows that generate
SECONDS_PER_CALL = 0.02  # of a compiled step: requests that arrive meanwhile wait so long
MAX_TOKENS_PER_CALL = 16
MIN_ROWS_PER_THREAD = 8


@dataclass(frozen=True, kw_only=True)
class EngineLimits:
    """Sizes that bound the memory and the waiting time of an engine."""

    rows: int = 32  # requests that are decoded at once
    queue: int = 256  # requests that wait; more are refused
    prefix_cache_bytes: int = 256 << 20


@dataclass
class EngineStats:
    """Counts since the start."""

    submitted: int = 0
    refused: int = 0
    finished: int = 0
    cancelled: int = 0
    failed: int = 0
    prompt_tokens: int = 0  # read
    cached_tokens: int = 0  # of prompts, found in the prefix cache
    generated_tokens: int = 0
    steps: int = 0


class Engine:
    """Decodes requests in a thread of its own until it is closed."""

    def __init__(self, limits: EngineLimits | None = None) -> None:
        self.limits = limits or EngineLimits()
        self.stats = EngineStats()
        self.prefix_cache = PrefixCache(CHUNK, self.limits.prefix_cache_bytes)
        self._queue = FairQueue()
        self._rows: list[Row] = []
        self._condition = threading.Condition()
        self._closing = False
        self._aborting = False
        self._seconds_per_token = SECONDS_PER_CALL
        threads = torch.get_num_threads()
        self._helpers = ThreadPoolExecutor(threads - 1, "chainrule-step") if threads > 1 else None
        self._threads = threads
        self._thread = threading.Thread(target=self._run, name="chainrule-engine", daemon=True)
        self._thread.start()

    # For callers; from any thread

    def submit(self, request: Request, listener: Listener) -> Ticket:
        """Queue a request. Raises QueueFull or EngineClosed."""
        ticket = Ticket(request, listener)
        with self._condition:
            if self._closing or not self._thread.is_alive():
                raise EngineClosed("the engine is shutting down and takes no more requests; try another server")
            if len(self._queue) >= self.limits.queue:
                self.stats.refused += 1
                raise QueueFull(f"{len(self._queue)} requests are waiting already; try again later")
            self.stats.submitted += 1
            self._queue.put(ticket)
            self._condition.notify()
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """End a request before the next step."""
        ticket.cancel()
        with self._condition:
            self._condition.notify()

    def stream(self, request: Request) -> Iterator[Token]:
        """Submit a request and yield its tokens; leaving the loop cancels it."""
        inbox: queue.SimpleQueue[list[Token] | Exception] = queue.SimpleQueue()
        ticket = self.submit(request, inbox.put)
        try:
            while True:
                received = inbox.get()
                if isinstance(received, Exception):
                    raise received
                yield from received
                if received[-1].finished is not None:
                    return
        finally:
            self.cancel(ticket)

    def generate(self, request: Request) -> Generation:
        """Submit a request and wait for its whole text."""
        tokens = list(self.stream(request))
        ended = tokens[-1].finished or "length"
        ids = [token.id for token in tokens if token.finished != "eos"]
        return Generation(ids, sum(token.log_prob for token in tokens), ended)

    @property
    def running(self) -> int:
        """Requests that are being decoded."""
        return len(self._rows)

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def is_open(self) -> bool:
        """Whether requests are accepted."""
        return not self._closing and self._thread.is_alive()

    def close(self, *, seconds: float | None = None) -> None:
        """Refuse new requests and finish those that are queued or run; after so many seconds, end them."""
        with self._condition:
            self._closing = True
            self._condition.notify()
        self._thread.join(seconds)
        if self._thread.is_alive():
            with self._condition:
                self._aborting = True
                self._condition.notify()
            self._thread.join()
        if self._helpers is not None:
            self._helpers.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(seconds=0.0 if kind is not None else None)

    # The thread of the engine

    @torch.inference_mode()
    def _run(self) -> None:
        while True:
            with self._condition:
                while not (self._queue or self._rows or self._closing):
                    self._condition.wait()
                if self._closing and not (self._queue or self._rows):
                    return
            self._drop()
            self._admit()
            self._read_prompts()
            self._step()

    def _drop(self) -> None:
        """Remove requests that were cancelled, are late, or are ended by `close`."""
        now = time.monotonic()

        def is_over(ticket: Ticket) -> bool:
            return ticket.cancelled or self._aborting or ticket.is_late(now)

        with self._condition:
            removed = self._queue.remove(is_over)
        removed += [row.ticket for row in self._rows if is_over(row.ticket)]
        self._rows = [row for row in self._rows if not is_over(row.ticket)]
        for ticket in removed:
            if ticket.cancelled:
                self.stats.cancelled += 1
                ticket.over.set()
            elif self._aborting:
                self._fail(ticket, EngineClosed("the server has shut down before the text was finished"))
            else:
                self._fail(
                    ticket,
                    DeadlineExceeded(
                        f"the text was not finished within {ticket.request.timeout:g} seconds; ask for fewer tokens"
                    ),
                )

    def _admit(self) -> None:
        """Give waiting requests the free rows."""
        while len(self._rows) < self.limits.rows:
            with self._condition:
                if not self._queue:
                    return
                ticket = self._queue.take()
            try:
                row = row_for(ticket, self.prefix_cache)
            except Exception as error:
                self._fail(ticket, error)
                continue
            self.stats.cached_tokens += ticket.cached_tokens
            self._rows.append(row)

    def _read_prompts(self) -> None:
        """Read chunks of prompts in turn, a few at a time, so that rows that generate do not wait for long."""
        budget = PREFILL_TOKENS
        reading = [row for row in self._rows if isinstance(row, StepRow) and row.is_reading]
        while reading and budget > 0:
            row = reading.pop(0)
            try:
                count, tokens = row.read()
            except Exception as error:
                self._fail_row(row, error)
                continue
            budget -= max(count, 1)
            self.stats.prompt_tokens += count
            self._deliver(row, tokens)
            if row.is_reading and row in self._rows:
                reading.append(row)

    def _step(self) -> None:
        """Decode one step of every row that has read its prompt."""
        groups: dict[tuple[int, tuple[int, ...]], list[StepRow]] = {}
        for row in [row for row in self._rows if not row.is_reading]:
            if isinstance(row, StepRow) and row.is_compiled:
                groups.setdefault((id(row.request.model), row.request.suppress), []).append(row)
            else:
                try:
                    self._deliver(row, row.advance())
                except Exception as error:
                    self._fail_row(row, error)
        for rows in groups.values():
            self._step_together(rows)
        self.stats.steps += 1

    def _step_together(self, rows: Sequence[StepRow]) -> None:
        count = self._tokens_per_call(rows)
        began = time.perf_counter()
        try:
            parts = self._in_threads(rows, count)
        except Exception as error:
            for row in rows:
                self._fail_row(row, error)
            return
        self._seconds_per_token = (time.perf_counter() - began) / count
        for part in parts:
            for index, row in enumerate(part.rows):
                try:
                    tokens = row.accept(part.choices, index, part.logits)
                except Exception as error:
                    self._fail_row(row, error)
                    continue
                self._deliver(row, tokens)

    def _tokens_per_call(self, rows: Sequence[StepRow]) -> int:
        """Number of tokens that are generated before control returns; one if something waits for the next step."""
        if any(row.request.alternatives for row in rows) or self._queue or len(rows) < len(self._rows):
            return 1
        room = min(row.room for row in rows)
        remaining = max(row.remaining for row in rows)
        return int(max(1, min(SECONDS_PER_CALL / self._seconds_per_token, MAX_TOKENS_PER_CALL, room, remaining)))

    def _in_threads(self, rows: Sequence[StepRow], count: int) -> list[CompiledSteps]:
        """`compiled_steps`, the rows divided among the threads: no row depends on which others it is computed with."""
        parts = min(self._threads, len(rows) // MIN_ROWS_PER_THREAD)
        if parts < 2 or self._helpers is None:
            return [compiled_steps(rows, count)]
        size = -(-len(rows) // parts)
        own, *others = [rows[first : first + size] for first in range(0, len(rows), size)]
        pending = [self._helpers.submit(_in_inference_mode, part, count) for part in others]
        return [compiled_steps(own, count), *(one.result() for one in pending)]

    # Results

    def _deliver(self, row: Row, tokens: list[Token]) -> None:
        if not tokens:
            return
        ticket = row.ticket
        self.stats.generated_tokens += len(tokens)
        if ticket.first_token is None:
            ticket.first_token = time.monotonic()
        if tokens[-1].finished is not None:
            self._rows.remove(row)
            self.stats.finished += 1
        _tell(ticket, tokens)
        if tokens[-1].finished is not None:
            ticket.over.set()

    def _fail_row(self, row: Row, error: Exception) -> None:
        if row in self._rows:
            self._rows.remove(row)
        self._fail(row.ticket, error)

    def _fail(self, ticket: Ticket, error: Exception) -> None:
        if not isinstance(error, Cancelled | DeadlineExceeded | EngineClosed):
            log.debug("request %d failed: %s", ticket.number, error)
        self.stats.failed += 1
        _tell(ticket, error)
        ticket.over.set()


def _in_inference_mode(rows: Sequence[StepRow], count: int) -> CompiledSteps:
    with torch.inference_mode():  # a setting of each thread
        return compiled_steps(rows, count)


def _tell(ticket: Ticket, what: list[Token] | Exception) -> None:
    """Call the listener; one that is broken must not stop the others' requests."""
    if ticket.cancelled:
        return
    try:
        ticket.listener(what)
    except Exception:
        log.exception("the listener of request %d failed", ticket.number)
        ticket.cancel()
