"""Optimizers: AdamW, Muon for matrices, and averages of the weights."""

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
from chainrule.training.placement import full, is_sharded, shard_like
from chainrule.training.precision import computing_type

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # a, b, c
LONG = 1.5  # aspect ratio above which iterating on the Gram matrix is faster than on the matrix


class Muon(Optimizer):
    """Momentum whose update is replaced by the nearest orthogonal matrix (Jordan et al. 2024).

    With momentum M, the update of a matrix (R, C) is  W ← W − η √(max(R, C) / min(R, C)) · NS(M),  where NS is a
    Newton–Schulz iteration that moves all singular values of M towards 1. The factor does not depend on which side of
    a matrix is the input, since families store both layouts. The iteration runs in bfloat16 if `half`, and on all
    matrices of the same shape at once, since a small one does not fill a core.
    """

    def __init__(
        self,
        matrices: Iterable[nn.Parameter],
        learning_rate: float,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        *,
        half: bool = False,
    ) -> None:
        super().__init__(
            list(matrices), {"lr": learning_rate, "peak": learning_rate, "momentum": momentum, "decay": weight_decay}
        )
        self.half = half

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            used = [matrix for matrix in group["params"] if matrix.grad is not None]
            for _, same in groupby(sorted(used, key=_shape), key=_shape):
                self._update(list(same), group)

    def _update(self, matrices: list[Tensor], group: dict[str, Any]) -> None:
        """Update matrices of the same shape."""
        for matrix in matrices:
            if "momentum" not in self.state[matrix]:
                self.state[matrix]["momentum"] = torch.zeros_like(matrix)
        momenta = [self.state[matrix]["momentum"] for matrix in matrices]
        gradients = [cast(Tensor, matrix.grad) for matrix in matrices]
        torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
        nesterov = torch._foreach_lerp(gradients, momenta, group["momentum"])
        short, long = sorted(matrices[0].shape)
        scale = (long / short) ** 0.5
        torch._foreach_mul_(matrices, 1 - group["lr"] * group["decay"])
        torch._foreach_add_(matrices, _orthogonal(list(nesterov), self.half), alpha=-group["lr"] * scale)


def _orthogonal(matrices: list[Tensor], half: bool) -> list[Tensor]:
    """Orthogonalise matrices of the same shape; sharded ones are gathered one at a time, which bounds the memory."""
    if is_sharded(matrices[0]):
        return [shard_like(orthogonalise(full(matrix)[None], half=half)[0], matrix) for matrix in matrices]
    return list(orthogonalise(torch.stack(matrices), half=half).unbind())


def _shape(matrix: Tensor) -> tuple[int, ...]:
    return tuple(matrix.shape)


def orthogonalise(matrices: Tensor, iterations: int = 5, *, half: bool = False) -> Tensor:
    """Apply an odd polynomial to matrices (N, R, C) five times, which moves every singular value close to 1.

        X ← P X,   P = a I + b G + c G²,   G = X Xᵀ

    All P and G are polynomials of the first G, so they commute. If a matrix is long, G ← P G P and the product of all
    P, which are square, are computed first and multiply X once at the end, in half the time. Rounding then affects
    the fourth digit at worst; in bfloat16 (`half`) every step is applied to X itself.
    """
    x = matrices.bfloat16() if half else matrices
    if x.shape[-2] > x.shape[-1]:
        return orthogonalise(x.mT, iterations, half=half).mT.to(matrices.dtype)
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    on_gram = not half and x.shape[-1] >= LONG * x.shape[-2]
    gram, product = x @ x.mT, None
    for left in range(iterations - 1, -1, -1):
        polynomial = torch.baddbmm(NEWTON_SCHULZ[1] * gram, gram, gram, alpha=NEWTON_SCHULZ[2])
        polynomial.diagonal(dim1=-2, dim2=-1).add_(NEWTON_SCHULZ[0])
        if on_gram:
            product = polynomial if product is None else polynomial @ product
            gram = polynomial @ gram @ polynomial if left else gram
        else:
            x = polynomial @ x
            gram = x @ x.mT if left else gram
    return cast(Tensor, (x if product is None else product @ x).to(matrices.dtype))


def build_optimizers(model: Trainable, config: TrainConfig) -> list[Optimizer]:
    """Return AdamW for all parameters, or Muon for hidden matrices and AdamW for the rest.

    Tables with a vector per token (embeddings, readouts) are not maps between hidden vectors: each vector receives few
    gradients of its own, so Muon's equal treatment of directions does not suit them. Biases and scales do not decay.
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
        # Muon's step size is its rate, whatever the gradient, so its decay is scaled by the rate as well.
        half = computing_type(config, model) is torch.bfloat16
        optimizers.append(Muon(matrices, config.muon_learning_rate, weight_decay=config.weight_decay, half=half))
    return optimizers


def set_rate(optimizers: Iterable[Optimizer], factor: float) -> None:
    """Set the learning rate of every group to `factor` times its peak."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["peak"] * factor


class WeightAverage(ABC):
    """An average of past weights, which can temporarily replace the current ones."""

    @abstractmethod
    def mean(self) -> list[Tensor]:
        """Return a tensor for each parameter."""

    @final
    @contextmanager
    def swapped_in(self, model: nn.Module) -> Iterator[None]:
        """Give the model the averaged weights inside the block, and restore its own afterwards, bit for bit."""
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
class MovingAverage(WeightAverage):
    """Exponential moving average of the weights, with a faster decay in the first steps."""

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
class CheckpointAverage(WeightAverage):
    """Checkpoint averaging: the mean of the weights at the last few validations (Vaswani et al. 2017)."""

    def __init__(self, count: int) -> None:
        self.kept: deque[list[Tensor]] = deque(maxlen=count)  # oldest first

    def keep(self, model: nn.Module) -> None:
        self.kept.append([parameter.detach().clone() for parameter in model.parameters()])

    def mean(self) -> list[Tensor]:
        return [torch.stack(weights).mean(0) for weights in zip(*self.kept, strict=True)]
