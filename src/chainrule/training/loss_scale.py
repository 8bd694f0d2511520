"""Loss scaling for float16, whose smallest numbers are larger than many gradients (Micikevicius et al. 2018)."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

FIRST = 2.0**16
LOWEST = 2.0**-8  # below it, gradients overflow for another reason
GROWTH_STEPS = 2000  # without an overflow, after which the factor is doubled


class LossScale:
    """The factor of the loss. It is a power of two, so that scaling changes no digit; 1 if nothing is scaled."""

    def __init__(self, *, enabled: bool) -> None:
        self.enabled = enabled
        self.factor = FIRST if enabled else 1.0
        self.steps = 0  # since the last overflow

    def unscale(self, parameters: Iterable[nn.Parameter]) -> None:
        """Divide the gradients by the factor."""
        if self.enabled:
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.grad.div_(self.factor)

    def overflowed(self) -> bool:
        """Gradients were not finite: halve the factor; return whether the step can be left out."""
        if not self.enabled or self.factor / 2 < LOWEST:
            return False
        self.factor, self.steps = self.factor / 2, 0
        return True

    def succeeded(self) -> None:
        """Gradients were finite."""
        self.steps += 1
        if self.enabled and self.steps == GROWTH_STEPS:
            self.factor, self.steps = self.factor * 2, 0
