"""γ, the weight of the second of two branches in their mixture: fixed, learned, or gated by the context."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from chainrule.kernels.instructions import SIGMOID, Vector
from chainrule.kernels.program import ProgramBuilder

GammaName: TypeAlias = Literal["fixed", "learned", "gated"]


class Gamma(nn.Module, ABC):
    """The mixture weight γ ∈ [0, 1] of every prediction."""

    @abstractmethod
    def forward(self, vectors: Tensor) -> Tensor:
        """Vectors of both branches, (..., D), to γ, (...)."""

    @abstractmethod
    def describe(self, program: ProgramBuilder, vectors: Vector) -> Vector:
        """`forward` in a compiled step."""


class FixedGamma(Gamma):
    """A constant."""

    def __init__(self, share: float, width: int) -> None:
        super().__init__()
        self.share = share

    def forward(self, vectors: Tensor) -> Tensor:
        return vectors.new_full(vectors.shape[:-1], self.share)

    def describe(self, program: ProgramBuilder, vectors: Vector) -> Vector:
        return program.constant(torch.tensor([self.share], dtype=torch.float64))

    def extra_repr(self) -> str:
        return f"{self.share:g}"


class LearnedGamma(Gamma):
    """σ(c): one number for all predictions."""

    def __init__(self, share: float, width: int) -> None:
        super().__init__()
        self.score = nn.Parameter(torch.tensor(_logit(share)))

    def forward(self, vectors: Tensor) -> Tensor:
        return self.score.sigmoid().expand(vectors.shape[:-1])

    def describe(self, program: ProgramBuilder, vectors: Vector) -> Vector:
        return program.activate(program.constant(self.score), SIGMOID, out=program.new(1))


class GatedGamma(Gamma):
    """σ(w · v + c) with v the vectors of both branches; w is initialised to zero."""

    def __init__(self, share: float, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))
        self.bias = nn.Parameter(torch.tensor(_logit(share)))

    def forward(self, vectors: Tensor) -> Tensor:
        return torch.sigmoid(vectors @ self.weight + self.bias)

    def describe(self, program: ProgramBuilder, vectors: Vector) -> Vector:
        return program.activate(program.linear(vectors, self.weight[None], self.bias[None]), SIGMOID)


def _logit(share: float) -> float:
    return math.log(share / (1 - share))


GAMMAS: dict[GammaName, Callable[[float, int], Gamma]] = {
    "fixed": FixedGamma,
    "learned": LearnedGamma,
    "gated": GatedGamma,
}


def log_shares(gamma: Tensor) -> Tensor:
    """(...) to (..., 2): log (1 − γ) and log γ.

    No share is below the smallest number there is, e⁻⁸⁷ in single precision, so that neither a logarithm nor its
    derivative is infinite. Beside a share of 1 that is nothing.
    """
    shares = torch.stack([1 - gamma, gamma], -1)
    return shares.clamp(min=torch.finfo(shares.dtype).tiny).log()


def mixed(first: Tensor, second: Tensor, shares: Tensor) -> Tensor:
    """From log P₁ and log P₂, (..., V) each, and `log_shares` (..., 2) to log ((1 − γ) P₁ + γ P₂)."""
    return torch.logaddexp(first + shares[..., :1], second + shares[..., 1:])
