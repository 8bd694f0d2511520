"""A point in time by which work has to end. Long work asks how much time remains and ends early, with what it has."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Deadline:
    """A point on a monotonic clock, which all processes of a machine share; infinity is no deadline."""

    end: float = math.inf
    clock: Callable[[], float] = time.monotonic

    @property
    def remaining(self) -> float:
        """Seconds until the deadline; negative after it."""
        return self.end - self.clock()

    @property
    def passed(self) -> bool:
        return self.remaining <= 0

    def earlier(self, seconds: float) -> Deadline:
        """The deadline that leaves these seconds for what comes afterwards."""
        return replace(self, end=self.end - seconds)

    def after(self, seconds: float) -> Deadline:
        """In so many seconds from now."""
        return replace(self, end=self.clock() + seconds)

    def within(self, seconds: float) -> Deadline:
        """In so many seconds from now, but not after this deadline."""
        return min(self, self.after(seconds), key=lambda one: one.end)

    def share(self, fraction: float) -> Deadline:
        """The end of the first `fraction` of the time that remains."""
        return self if self.end == math.inf else self.within(fraction * max(0.0, self.remaining))


NO_DEADLINE = Deadline()
