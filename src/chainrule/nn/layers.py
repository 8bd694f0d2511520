"""Elementary layers: linear maps that are fast for many rows and for one, norms, activations, scalar mix."""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

EXACT = (torch.float32, torch.float64)


class Projection(nn.Module):
    """A linear map whose matrix is stored (out, in): a product with few rows reads it as one dot product per output."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) to (..., out)."""
        return F.linear(x, self.weight, self.bias)


def input_projection(inputs: int, outputs: int, *, bias: bool = False) -> Projection:
    """The first projection of a residual branch, initialised with standard deviation 1 / √inputs."""
    projection = Projection(inputs, outputs, bias=bias)
    nn.init.normal_(projection.weight, std=inputs**-0.5)
    return projection


def output_projection(inputs: int, outputs: int) -> Projection:
    """The last projection of a residual branch: zero, so that every block is the identity at initialisation."""
    projection = Projection(inputs, outputs)
    nn.init.zeros_(projection.weight)
    return projection


EPSILON = torch.tensor(1e-6, dtype=torch.float64)  # a 0-d tensor: can be added in a fused operation of any type


class LayerNorm(nn.LayerNorm):
    """nn.LayerNorm without the overhead of F.layer_norm, which checks for cuDNN on each call."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)


def rms_norm(x: Tensor) -> Tensor:
    """RMS norm over the last axis, without a weight: the projection that follows can learn one."""
    if torch.is_grad_enabled() and x.requires_grad:
        return cast(Tensor, _RMSNorm.apply(x))  # type: ignore[no-untyped-call]
    return x * inverse_rms(x)


def inverse_rms(x: Tensor) -> Tensor:
    """(..., D) to (..., 1): 1 / √(mean(x²) + ε)."""
    length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return torch.addcmul(EPSILON.to(x.device), length, length, value=1 / x.shape[-1]).rsqrt_()


class _RMSNorm(torch.autograd.Function):
    """The gradient of y = x · r(x) in one formula, r (g − y ⟨g, y⟩ / D).

    With autograd the norms take about twice the time on a CPU: 2 to 5 % of a training step of the default model.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        scale = inverse_rms(x)
        y = x * scale
        ctx.save_for_backward(y, scale)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        y, scale = ctx.saved_tensors
        along: Tensor = torch.linalg.vecdot(gradient, y)[..., None] / -y.shape[-1]
        return torch.addcmul(gradient, y, along).mul(scale)


def squared_relu(x: Tensor) -> Tensor:
    """max(0, x)², from So et al. (2021)."""
    if torch.is_grad_enabled() and x.requires_grad:
        return cast(Tensor, _SquaredReLU.apply(x))  # type: ignore[no-untyped-call]
    return x.relu().square()


class _SquaredReLU(torch.autograd.Function):
    """The derivative is 2 max(0, x): one pass over memory instead of autograd's three."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        positive = x.relu()
        ctx.save_for_backward(positive)
        return positive.square()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        [positive] = ctx.saved_tensors
        return 2 * cast(Tensor, positive).mul(gradient)


class ScalarMix(nn.Module):
    """γ Σ_l softmax(w)_l x_l, a learned weighted mean of layers (Peters et al., 2018)."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(layers))
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, layers: Tensor) -> Tensor:
        """(L, ...) to (...)."""
        return self.scale * torch.einsum("l,l...->...", self.weights.softmax(0), layers)
