"""Optimizers: AdamW, Muon for matrices, and means of the weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby
from typing import Any, cast, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from chainrule.config import TrainConfig
from chainrule.interface.base import Trainable

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # a, b, c
LONG = 1.5  # sides of a matrix, one to the other, from which on it pays to leave it out of the iteration


class Muon(Optimizer):
    """Momentum whose update is replaced by the nearest orthogonal matrix (Jordan et al. 2024).

    With momentum M, the update of a matrix (R, C) is  W ← W − η √(max(R, C) / min(R, C)) · NS(M),  where NS is a
    Newton–Schulz iteration that moves all singular values of M towards 1; the factor does not depend on which side of
    a matrix is its input, since families store them either way. It runs in float32 unless the device computes
    bfloat16 in hardware, and on all matrices of one shape at once, since a small one cannot fill a core.
    """

    def __init__(
        self, matrices: Iterable[nn.Parameter], learning_rate: float, momentum: float = 0.95, weight_decay: float = 0.0
    ) -> None:
        super().__init__(
            list(matrices), {"lr": learning_rate, "peak": learning_rate, "momentum": momentum, "decay": weight_decay}
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            used = [matrix for matrix in group["params"] if matrix.grad is not None]
            for _, same in groupby(sorted(used, key=_shape), key=_shape):
                self._update(list(same), group)

    def _update(self, matrices: list[Tensor], group: dict[str, Any]) -> None:
        """One update of matrices that all have one shape."""
        for matrix in matrices:
            if "momentum" not in self.state[matrix]:
                self.state[matrix]["momentum"] = torch.zeros_like(matrix)
        momenta = [self.state[matrix]["momentum"] for matrix in matrices]
        gradients = [cast(Tensor, matrix.grad) for matrix in matrices]
        torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
        looked_ahead = torch._foreach_lerp(gradients, momenta, group["momentum"])  # Nesterov
        updates = orthogonalise(torch.stack(list(looked_ahead)))
        short, long = sorted(matrices[0].shape)
        scale = (long / short) ** 0.5
        torch._foreach_mul_(matrices, 1 - group["lr"] * group["decay"])
        torch._foreach_add_(matrices, list(updates.unbind()), alpha=-group["lr"] * scale)


def _shape(matrix: Tensor) -> tuple[int, ...]:
    return tuple(matrix.shape)


def orthogonalise(matrices: Tensor, iterations: int = 5) -> Tensor:
    """(N, R, C): an odd polynomial applied five times, which takes every singular value near to 1.

        X ← P X,   P = a I + b G + c G²,   G = X Xᵀ

    All P and G are polynomials of the first G, so they commute and stay square: where a matrix is long, G ← P G P and
    the product of all P are computed by themselves and meet X once, at the end, in half of the time. Rounding then
    shows in the fourth digit at worst, so in bfloat16 every step goes by X itself.
    """
    half = matrices.is_cuda and torch.cuda.is_bf16_supported()
    x = matrices.bfloat16() if half else matrices
    if x.shape[-2] > x.shape[-1]:
        return orthogonalise(x.mT, iterations).mT.to(matrices.dtype)
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    apart = not half and x.shape[-1] >= LONG * x.shape[-2]
    gram, product = x @ x.mT, None
    for left in range(iterations - 1, -1, -1):
        polynomial = torch.baddbmm(NEWTON_SCHULZ[1] * gram, gram, gram, alpha=NEWTON_SCHULZ[2])
        polynomial.diagonal(dim1=-2, dim2=-1).add_(NEWTON_SCHULZ[0])
        if apart:
            product = polynomial if product is None else polynomial @ product
            gram = polynomial @ gram @ polynomial if left else gram
        else:
            x = polynomial @ x
            gram = x @ x.mT if left else gram
    return cast(Tensor, (x if product is None else product @ x).to(matrices.dtype))


def build_optimizers(model: Trainable, config: TrainConfig) -> list[Optimizer]:
    """AdamW for everything, or Muon for the hidden matrices and AdamW for the rest.

    Tables with a vector per token (embeddings, readouts) are not maps between hidden vectors: each vector meets its
    own few gradients, so Muon's equal treatment of directions does not suit them. Biases and scales do not decay.
    """
    tables = {id(table) for table in model.tables()}
    matrices, decayed, plain = [], [], []
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        if parameter.ndim < 2:
            plain.append(parameter)
        elif config.optimizer == "muon" and parameter.ndim == 2 and id(parameter) not in tables:
            matrices.append(parameter)
        else:
            decayed.append(parameter)
    learning_rate = config.learning_rate
    groups: list[dict[str, Any]] = [
        {"params": decayed, "weight_decay": config.weight_decay, "peak": learning_rate},
        {"params": plain, "weight_decay": 0.0, "peak": learning_rate},
    ]
    fused = model.device.type in ("cpu", "cuda")
    optimizers: list[Optimizer] = [
        torch.optim.AdamW([group for group in groups if group["params"]], learning_rate, config.betas, fused=fused)
    ]
    if matrices:
        # Muon's step has the size of its rate whatever the gradient is, so its decay is scaled by the rate as well.
        optimizers.append(Muon(matrices, config.muon_learning_rate, weight_decay=config.weight_decay))
    return optimizers


def set_rate(optimizers: Iterable[Optimizer], share: float) -> None:
    """Set every group to a share of its peak rate."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["peak"] * share


class WeightMean(ABC):
    """A mean of the weights that a model has had, which can stand in for the weights that it has."""

    @abstractmethod
    def mean(self) -> list[Tensor]:
        """A tensor for each parameter."""

    @final
    @contextmanager
    def standing_in(self, model: nn.Module) -> Iterator[None]:
        """Within the block the model has the mean for its weights; afterwards its own, bit for bit."""
        own = [parameter.detach().clone() for parameter in model.parameters()]
        _put(model, self.mean())
        try:
            yield
        finally:
            _put(model, own)


@torch.no_grad()
def _put(model: nn.Module, weights: Iterable[Tensor]) -> None:
    for parameter, weight in zip(model.parameters(), weights, strict=True):
        parameter.copy_(weight)


@final
class RunningMean(WeightMean):
    """Exponential moving average of the weights; early on it forgets faster, so that the start does not linger."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.updates = 0
        self.weights = [parameter.detach().clone() for parameter in model.parameters()]

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        torch._foreach_lerp_(self.weights, list(model.parameters()), 1 - decay)

    def mean(self) -> list[Tensor]:
        return self.weights


@final
class RecentMean(WeightMean):
    """The plain mean of the weights at the last few validations: checkpoint averaging (Vaswani et al. 2017)."""

    def __init__(self, count: int) -> None:
        self.kept: deque[list[Tensor]] = deque(maxlen=count)  # the oldest first

    def keep(self, model: nn.Module) -> None:
        self.kept.append([parameter.detach().clone() for parameter in model.parameters()])

    def mean(self) -> list[Tensor]:
        return [torch.stack(weights).mean(0) for weights in zip(*self.kept, strict=True)]
