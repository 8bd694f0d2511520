"""Recurrences with hand-written back-propagation through time.

Autograd through a Python loop records a dozen small operations per time step and accumulates the weight gradients step
by step. In the forward pass here, the input projections of all steps are one matrix product before the loop, and gates
are activated in place. In the backward pass, the derivatives of the activations are computed for all steps at once,
only the recurrence of the hidden gradient stays in the loop, and each weight gradient is one product over all steps
after it. `RecurrentLayer.naive` is the reference in the tests.

Shape letters beside those of `chainrule.types`: N = T·B, I width of the inputs, G width of all gates together.
Time comes first here, so that a step is one contiguous block. Names ending in _s hold all steps.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from chainrule.kernels import step

MOST_ROWS = 64  # of a compiled loop
LIKE = np.zeros(1, np.float32)  # the type of its numbers


class PeepholeLSTM(torch.autograd.Function):
    """Gates in the order candidate, input, forget, output; the last three have peepholes to the previous memory.

    The peephole weights are diagonal, (3D,), or matrices, (3D, D).
    """

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,  # (T, B, I)
        hidden: Tensor,  # (B, D)
        memory: Tensor,  # (B, D)
        input_weight: Tensor,  # (4D, I)
        recurrent_weight: Tensor,  # (4D, D)
        bias: Tensor,  # (4D,)
        peephole: Tensor,  # (3D,) or (3D, D): input, forget, output
    ) -> tuple[Tensor, Tensor]:
        steps, width = inputs.shape[0], hidden.shape[1]
        gates_s = _project(inputs, input_weight, bias)  # (T, B, 4D)
        hidden_s = _room(hidden, steps)
        memory_s = _room(memory, steps)
        squashed_s = torch.empty_like(memory_s[1:])  # tanh of the memory
        recurrent = recurrent_weight.t()
        for t in range(steps):
            gates = gates_s[t].addmm_(hidden_s[t], recurrent).view(-1, 4, width)
            if peephole.dim() == 1:
                gates[:, 1:].addcmul_(peephole.view(3, width), memory_s[t].unsqueeze(1))
            else:
                gates_s[t, :, width:].addmm_(memory_s[t], peephole.t())
            gates[:, 1:].sigmoid_()
            candidate, admit, keep, emit = gates.unbind(1)
            candidate.tanh_()
            torch.mul(keep, memory_s[t], out=memory_s[t + 1]).addcmul_(admit, candidate)
            torch.tanh(memory_s[t + 1], out=squashed_s[t])
            torch.mul(emit, squashed_s[t], out=hidden_s[t + 1])
        ctx.save_for_backward(inputs, input_weight, recurrent_weight, peephole, gates_s, hidden_s, memory_s, squashed_s)
        return hidden_s[1:], memory_s[-1].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, output_grad_s: Tensor, memory_grad: Tensor) -> tuple[Tensor, ...]:
        inputs, input_weight, recurrent_weight, peephole, gates_s, hidden_s, memory_s, squashed_s = ctx.saved_tensors
        steps, width = inputs.shape[0], memory_grad.shape[1]
        candidate_s, admit_s, keep_s, emit_s = gates_s.chunk(4, dim=-1)

        # Derivative of the memory (first three) or of the output (last) by the pre-activation of each gate.
        grad_s = torch.empty_like(gates_s)
        by_candidate, by_admit, by_keep, by_emit = grad_s.chunk(4, dim=-1)
        torch.mul(admit_s, _tanh_slope(candidate_s), out=by_candidate)
        _sigmoid_slope(gates_s[..., width:], out=grad_s[..., width:])
        by_admit.mul_(candidate_s)
        by_keep.mul_(memory_s[:-1])
        by_emit.mul_(squashed_s)
        memory_slope_s = _tanh_slope(squashed_s).mul_(emit_s)

        memory_grad, hidden_grad = memory_grad.clone(), torch.zeros_like(memory_grad)
        for t in reversed(range(steps)):
            hidden_grad += output_grad_s[t]
            memory_grad.addcmul_(hidden_grad, memory_slope_s[t])
            by_emit[t].mul_(hidden_grad)
            grad_s[t].view(-1, 4, width)[:, :3].mul_(memory_grad.unsqueeze(1))
            memory_grad.mul_(keep_s[t])
            if peephole.dim() == 1:
                for by_gate, weight in zip((by_admit, by_keep, by_emit), peephole.view(3, width), strict=True):
                    memory_grad.addcmul_(by_gate[t], weight)
            else:
                memory_grad.addmm_(grad_s[t, :, width:], peephole)
            torch.mm(grad_s[t], recurrent_weight, out=hidden_grad)

        seeing_grad_s = grad_s[..., width:]  # (T, B, 3D)
        if peephole.dim() == 1:
            peephole_grad = (seeing_grad_s * memory_s[:-1].repeat(1, 1, 3)).sum((0, 1))
        else:
            peephole_grad = seeing_grad_s.flatten(0, 1).t() @ memory_s[:-1].flatten(0, 1)
        grad_s, by_input, by_recurrent, by_bias = _weight_gradients(grad_s, inputs, hidden_s)
        inputs_grad = (grad_s @ input_weight).view_as(inputs)
        return inputs_grad, hidden_grad, memory_grad, by_input, by_recurrent, by_bias, peephole_grad


class CoupledLSTM(torch.autograd.Function):
    """Gates in the order candidate, input, output; the forget gate is 1 − input gate."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,  # (T, B, I)
        hidden: Tensor,  # (B, D)
        memory: Tensor,  # (B, D)
        input_weight: Tensor,  # (3D, I)
        recurrent_weight: Tensor,  # (3D, D)
        bias: Tensor,  # (3D,)
    ) -> tuple[Tensor, Tensor]:
        steps, width = inputs.shape[0], hidden.shape[1]
        gates_s = _project(inputs, input_weight, bias)  # (T, B, 3D)
        hidden_s = _room(hidden, steps)
        memory_s = _room(memory, steps)
        squashed_s = torch.empty_like(memory_s[1:])
        recurrent = recurrent_weight.t()
        for t in range(steps):
            gates = gates_s[t].addmm_(hidden_s[t], recurrent).view(-1, 3, width)
            gates[:, 1:].sigmoid_()
            candidate, admit, emit = gates.unbind(1)
            candidate.tanh_()
            torch.lerp(memory_s[t], candidate, admit, out=memory_s[t + 1])
            torch.tanh(memory_s[t + 1], out=squashed_s[t])
            torch.mul(emit, squashed_s[t], out=hidden_s[t + 1])
        ctx.save_for_backward(inputs, input_weight, recurrent_weight, gates_s, hidden_s, memory_s, squashed_s)
        return hidden_s[1:], memory_s[-1].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, output_grad_s: Tensor, memory_grad: Tensor) -> tuple[Tensor, ...]:
        inputs, input_weight, recurrent_weight, gates_s, hidden_s, memory_s, squashed_s = ctx.saved_tensors
        steps, width = inputs.shape[0], memory_grad.shape[1]
        candidate_s, admit_s, emit_s = gates_s.chunk(3, dim=-1)

        grad_s = torch.empty_like(gates_s)
        by_candidate, by_admit, by_emit = grad_s.chunk(3, dim=-1)
        torch.mul(admit_s, _tanh_slope(candidate_s), out=by_candidate)
        _sigmoid_slope(gates_s[..., width:], out=grad_s[..., width:])
        by_admit.mul_(candidate_s - memory_s[:-1])
        by_emit.mul_(squashed_s)
        memory_slope_s = _tanh_slope(squashed_s).mul_(emit_s)
        keep_s = 1 - admit_s

        memory_grad, hidden_grad = memory_grad.clone(), torch.zeros_like(memory_grad)
        for t in reversed(range(steps)):
            hidden_grad += output_grad_s[t]
            memory_grad.addcmul_(hidden_grad, memory_slope_s[t])
            by_emit[t].mul_(hidden_grad)
            grad_s[t].view(-1, 3, width)[:, :2].mul_(memory_grad.unsqueeze(1))
            memory_grad.mul_(keep_s[t])
            torch.mm(grad_s[t], recurrent_weight, out=hidden_grad)

        grad_s, by_input, by_recurrent, by_bias = _weight_gradients(grad_s, inputs, hidden_s)
        return (grad_s @ input_weight).view_as(inputs), hidden_grad, memory_grad, by_input, by_recurrent, by_bias


class InputResetGRU(torch.autograd.Function):
    """Gates in the order update (D), reset (I), candidate (D); the reset gate is applied to the inputs.

    The reset gate depends on the previous hidden vector, so the projection of the reset inputs stays in the loop: a
    second product per step, forward and backward. The other two input projections are hoisted.
    """

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,  # (T, B, I)
        hidden: Tensor,  # (B, D)
        input_weight: Tensor,  # (D + I + D, I)
        recurrent_weight: Tensor,  # (D + I + D, D)
        bias: Tensor,  # (D + I + D,)
    ) -> Tensor:
        steps, width = inputs.shape[0], hidden.shape[1]
        sigmoids = bias.shape[0] - width  # the update and reset gates together
        gates_s = bias.repeat(*inputs.shape[:2], 1)  # (T, B, D + I + D)
        gates_s.flatten(0, 1)[:, :sigmoids].addmm_(inputs.flatten(0, 1), input_weight[:sigmoids].t())
        hidden_s = _room(hidden, steps)
        recurrent, candidate_weight = recurrent_weight.t(), input_weight[sigmoids:].t()
        for t in range(steps):
            gates = gates_s[t].addmm_(hidden_s[t], recurrent)
            gates[:, :sigmoids].sigmoid_()
            update, reset, candidate = gates[:, :width], gates[:, width:sigmoids], gates[:, sigmoids:]
            candidate.addmm_(reset * inputs[t], candidate_weight).tanh_()
            torch.lerp(hidden_s[t], candidate, update, out=hidden_s[t + 1])
        ctx.save_for_backward(inputs, input_weight, recurrent_weight, gates_s, hidden_s)
        return hidden_s[1:]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, output_grad_s: Tensor) -> tuple[Tensor, ...]:
        inputs, input_weight, recurrent_weight, gates_s, hidden_s = ctx.saved_tensors
        steps, width = inputs.shape[0], hidden_s.shape[2]
        sigmoids = gates_s.shape[2] - width
        parts = [width, sigmoids - width, width]
        update_s, reset_s, candidate_s = torch.split(gates_s, parts, dim=-1)

        grad_s = torch.empty_like(gates_s)
        by_update, by_reset, by_candidate = torch.split(grad_s, parts, dim=-1)
        _sigmoid_slope(gates_s[..., :sigmoids], out=grad_s[..., :sigmoids])
        by_update.mul_(candidate_s - hidden_s[:-1])
        by_reset.mul_(inputs)
        torch.mul(update_s, _tanh_slope(candidate_s), out=by_candidate)
        keep_s = 1 - update_s

        hidden_grad = torch.zeros_like(hidden_s[0])
        reset_inputs_grad_s = torch.empty_like(inputs)
        candidate_weight = input_weight[sigmoids:]
        for t in reversed(range(steps)):
            hidden_grad += output_grad_s[t]
            by_update[t].mul_(hidden_grad)
            by_candidate[t].mul_(hidden_grad)
            by_reset[t].mul_(torch.mm(by_candidate[t], candidate_weight, out=reset_inputs_grad_s[t]))
            hidden_grad.mul_(keep_s[t]).addmm_(grad_s[t], recurrent_weight)

        grad_s, by_input, by_recurrent, by_bias = _weight_gradients(grad_s, inputs, hidden_s)
        torch.mm(grad_s[:, sigmoids:].t(), (reset_s * inputs).flatten(0, 1), out=by_input[sigmoids:])
        inputs_grad = (grad_s[:, :sigmoids] @ input_weight[:sigmoids]).view_as(inputs)
        inputs_grad.addcmul_(reset_inputs_grad_s, reset_s)
        return inputs_grad, hidden_grad, by_input, by_recurrent, by_bias


class ResetGRU(torch.autograd.Function):
    """Gates in the order reset, update, candidate; the reset gate is applied to the recurrent part of the candidate.

    torch.gru on a CPU records each step by itself; this is about twice as fast in training.
    """

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,  # (T, B, I)
        hidden: Tensor,  # (B, D)
        input_weight: Tensor,  # (3D, I)
        recurrent_weight: Tensor,  # (3D, D)
        bias: Tensor,  # (3D,)
    ) -> Tensor:
        steps, width = inputs.shape[0], hidden.shape[1]
        gates_s = _project(inputs, input_weight, bias)  # (T, B, 3D)
        hidden_s = _room(hidden, steps)
        recalled_s = torch.empty_like(hidden_s[1:])  # U_n h
        if _is_compiled(inputs):
            from chainrule.kernels.recurrences import gru_forward

            matrix = recurrent_weight.contiguous()
            gru_forward(*map(Tensor.data_ptr, (gates_s, hidden_s, recalled_s, matrix)), steps, len(hidden), width, LIKE)
        else:
            recurrent, candidate_weight = recurrent_weight[: 2 * width].t(), recurrent_weight[2 * width :].t()
            for t in range(steps):
                gates = gates_s[t]
                sigmoids, candidate = gates[:, : 2 * width], gates[:, 2 * width :]
                sigmoids.addmm_(hidden_s[t], recurrent).sigmoid_()
                torch.mm(hidden_s[t], candidate_weight, out=recalled_s[t])
                candidate.addcmul_(sigmoids[:, :width], recalled_s[t]).tanh_()
                torch.lerp(candidate, hidden_s[t], sigmoids[:, width:], out=hidden_s[t + 1])
        ctx.save_for_backward(inputs, input_weight, recurrent_weight, gates_s, hidden_s, recalled_s)
        return hidden_s[1:]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, output_grad_s: Tensor) -> tuple[Tensor, ...]:
        inputs, input_weight, recurrent_weight, gates_s, hidden_s, recalled_s = ctx.saved_tensors
        steps, width = inputs.shape[0], hidden_s.shape[2]
        reset_s, update_s, candidate_s = gates_s.chunk(3, dim=-1)

        # Derivative of the output by the pre-activation of each gate; that of the reset gate is by the candidate's.
        grad_s = torch.empty_like(gates_s)
        by_reset, by_update, by_candidate = grad_s.chunk(3, dim=-1)
        _sigmoid_slope(gates_s[..., : 2 * width], out=grad_s[..., : 2 * width])
        by_reset.mul_(recalled_s)
        by_update.mul_(hidden_s[:-1] - candidate_s)
        torch.mul(1 - update_s, _tanh_slope(candidate_s), out=by_candidate)

        hidden_grad = torch.zeros_like(hidden_s[0])
        recurrent_s = torch.empty_like(gates_s)  # gradient of U h
        if _is_compiled(inputs):
            from chainrule.kernels.recurrences import gru_backward

            transposed, output_grad_s = recurrent_weight.t().contiguous(), output_grad_s.contiguous()
            arrays = (grad_s, recurrent_s, gates_s, output_grad_s, hidden_grad, transposed)
            gru_backward(*map(Tensor.data_ptr, arrays), steps, len(hidden_grad), width, LIKE)
        else:
            for t in reversed(range(steps)):
                hidden_grad += output_grad_s[t]
                by_update[t].mul_(hidden_grad)
                by_candidate[t].mul_(hidden_grad)
                by_reset[t].mul_(by_candidate[t])
                recurrent_s[t, :, : 2 * width] = grad_s[t, :, : 2 * width]
                torch.mul(by_candidate[t], reset_s[t], out=recurrent_s[t, :, 2 * width :])
                hidden_grad.mul_(update_s[t]).addmm_(recurrent_s[t], recurrent_weight)

        flat = grad_s.flatten(0, 1)
        by_input = flat.t() @ inputs.flatten(0, 1)
        by_recurrent = recurrent_s.flatten(0, 1).t() @ hidden_s[:-1].flatten(0, 1)
        return (flat @ input_weight).view_as(inputs), hidden_grad, by_input, by_recurrent, flat.sum(0)


def _is_compiled(inputs: Tensor) -> bool:
    """Whether the loops are those of `kernels.recurrences`."""
    rows = inputs.shape[1]
    return step.is_enabled() and inputs.device.type == "cpu" and inputs.dtype is torch.float32 and 0 < rows <= MOST_ROWS


def _project(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The input projections of all steps in one product: (T, B, I) to (T, B, G)."""
    return torch.addmm(bias, inputs.flatten(0, 1), weight.t()).view(*inputs.shape[:2], -1)


def _room(first: Tensor, steps: int) -> Tensor:
    """Allocate (T + 1, B, D) for the values before the first step, which is `first`, and after each step."""
    values = first.new_empty(steps + 1, *first.shape)
    values[0] = first
    return values


def _sigmoid_slope(values: Tensor, out: Tensor) -> Tensor:
    """The derivative of the sigmoid, as a function of its value."""
    return torch.addcmul(values, values, values, value=-1, out=out)


def _tanh_slope(values: Tensor) -> Tensor:
    """The derivative of tanh, as a function of its value."""
    return (values * values).neg_().add_(1)


def _weight_gradients(grad_s: Tensor, inputs: Tensor, hidden_s: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """From the gradient (T, B, G) of the gates: itself as (N, G), then (G, I), (G, D) and (G,), each one product."""
    grad_s = grad_s.flatten(0, 1)
    transposed = grad_s.t()
    return grad_s, transposed @ inputs.flatten(0, 1), transposed @ hidden_s[:-1].flatten(0, 1), grad_s.sum(0)
