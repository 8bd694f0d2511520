"""What the engine is asked for, and what it answers."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from chainrule.decoding.drafts import Drafter
from chainrule.decoding.generation import Finish, Stop
from chainrule.decoding.sampling import Sampling
from chainrule.errors import ChainruleError
from chainrule.interface.base import AutoregressiveModel
from chainrule.types import Sequences


class QueueFull(ChainruleError):
    """More requests are waiting than the engine accepts."""


class EngineClosed(ChainruleError):
    """The engine is shutting down."""


class DeadlineExceeded(ChainruleError):
    """A request was not finished in time."""


class Cancelled(ChainruleError):
    """A request was cancelled by whoever made it."""


SAMPLING = Sampling()


@dataclass(frozen=True, kw_only=True)
class Request:
    """The continuation of one prompt."""

    model: AutoregressiveModel
    prompt: Sequence[int]
    max_tokens: int
    sampling: Sampling = SAMPLING
    seed: int = 0
    eos: int | None = None  # ends the text
    suppress: tuple[int, ...] = ()  # ids that are never chosen
    stop: Stop | None = None
    alternatives: int = 0  # number of most probable tokens to report at each position
    source: Sequences | None = None  # one row, for models of a target given a source
    draft: Drafter | None = None  # for speculative decoding
    client: str = ""  # requests of different clients take turns in the queue
    timeout: float | None = None  # seconds from submission


class Alternative(NamedTuple):
    """A token that could have been chosen."""

    id: int
    log_prob: float


class Token(NamedTuple):
    """A generated token."""

    id: int
    log_prob: float  # under the model's distribution
    finished: Finish | None  # None: the text continues
    alternatives: tuple[Alternative, ...] = ()


Listener = Callable[["list[Token] | Exception"], None]
"""Receives new tokens, or the error that ended the request; called by the thread of the engine."""

_numbers = itertools.count()


@dataclass(eq=False)
class Ticket:
    """A submitted request. Its listener hears of every token, or of an error, until the request is over."""

    request: Request
    listener: Listener
    number: int = field(default_factory=lambda: next(_numbers))
    submitted: float = field(default_factory=time.monotonic)
    first_token: float | None = None  # when it was delivered
    cached_tokens: int = 0  # tokens of the prompt that were not read again
    cancelled: bool = False
    over: threading.Event = field(default_factory=threading.Event)

    def cancel(self) -> None:
        """End the request before the next step; its listener hears nothing more."""
        self.cancelled = True

    def is_late(self, now: float) -> bool:
        timeout = self.request.timeout
        return timeout is not None and now - self.submitted > timeout
