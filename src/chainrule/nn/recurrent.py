"""Recurrent layers: seven cells behind one small interface.

A layer maps inputs (T, B, I), time first, and a state to hidden vectors (T, B, D) and the next state. The state is a
tuple of (B, D) tensors that starts with the hidden vector h; LSTMs add their memory cell c.

Each layer implements its equation once in `cell`, for one time step. `naive` loops over it and is the reference for
`unroll`, the fast implementation for many steps. Decoding a few steps at a time uses `cell`.

In the equations x is the input of the step, h and c are the hidden vector and memory before it, h' and c' those
after it, σ is the logistic function and ∘ the elementwise product. W works on inputs, U on hidden vectors; each gate
has its own block of rows in `input_weight`, `recurrent_weight` and `bias`, in the order of the equations.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chainrule.kernels.instructions import SIGMOID, TANH, Vector
from chainrule.kernels.program import ProgramBuilder
from chainrule.nn.bptt import CoupledLSTM, InputResetGRU, PeepholeLSTM, ResetGRU
from chainrule.nn.dropout import apply_dropout

LayerState: TypeAlias = tuple[Tensor, ...]
Cell: TypeAlias = Literal[
    "rnn", "lstm", "lstm_peephole", "lstm_full_peephole", "lstm_coupled", "gru", "gru_input_reset"
]

FEW_STEPS = 4
"""Up to this many steps without gradients, a loop over `cell` is faster than a fused recurrence on a CPU."""


class RecurrentLayer(nn.Module, ABC):
    """One layer of cells; `gates` are the widths of the blocks of rows in its weights."""

    def __init__(self, inputs: int, width: int, gates: list[int], recurrent_dropout: float) -> None:
        super().__init__()
        self.width = width
        self.recurrent_dropout = recurrent_dropout
        self.input_weight = nn.Parameter(torch.empty(sum(gates), inputs))
        self.recurrent_weight = nn.Parameter(torch.empty(sum(gates), width))
        self.bias = nn.Parameter(torch.zeros(sum(gates)))
        # All eigenvalues of an orthogonal matrix have absolute value 1, so that the recurrent matrix alone causes
        # neither exploding nor vanishing gradients.
        for block in torch.split(self.input_weight.detach(), gates):
            nn.init.xavier_uniform_(block)
        for block in torch.split(self.recurrent_weight.detach(), gates):
            nn.init.orthogonal_(block)

    def initial(self, rows: int) -> LayerState:
        """The initial state: zeros."""
        return (self.bias.new_zeros(rows, self.width),)

    @abstractmethod
    def cell(self, inputs: Tensor, state: LayerState, recurrent_weight: Tensor) -> LayerState:
        """One time step: from inputs (B, I) and a state to the next state."""

    @abstractmethod
    def unroll(self, inputs: Tensor, state: LayerState, recurrent_weight: Tensor) -> tuple[Tensor, LayerState]:
        """All time steps of inputs (T, B, I). The recurrent weight is an argument because of DropConnect."""

    @abstractmethod
    def describe(self, program: ProgramBuilder, x: Vector, slot: int) -> Vector:
        """`cell` in a compiled step. The state begins at the state tensor `slot`; returns the next hidden vector."""

    def _describe_gates(self, program: ProgramBuilder, x: Vector, hidden: Vector) -> Vector:
        """`_gates` in a compiled step."""
        gates = program.linear(x, self.input_weight, self.bias)
        return program.linear(hidden, self.recurrent_weight, add_to=gates)

    @final
    def naive(self, inputs: Tensor, state: LayerState, recurrent_weight: Tensor) -> tuple[Tensor, LayerState]:
        """The reference for `unroll`: a loop over `cell` with gradients by autograd."""
        hidden = []
        for step in inputs:
            state = self.cell(step, state, recurrent_weight)
            hidden.append(state[0])
        return torch.stack(hidden), state

    def forward(self, inputs: Tensor, state: LayerState) -> tuple[Tensor, LayerState]:
        """Inputs (T, B, I) and a state to hidden vectors (T, B, D) and the next state."""
        if torch.is_autocast_enabled(inputs.device.type):
            # Rounding errors would accumulate over the steps, so the recurrence keeps the precision of its weights.
            with torch.autocast(inputs.device.type, enabled=False):
                return self.forward(inputs.to(self.bias.dtype), tuple(part.to(self.bias.dtype) for part in state))
        steps, rows, _ = inputs.shape
        if steps == 0:
            return inputs.new_empty(0, rows, self.width), state
        # The same recurrent weights are dropped at all steps (DropConnect, as in Merity et al., 2018).
        recurrent_weight = apply_dropout(self.recurrent_weight, self.recurrent_dropout if self.training else 0.0)
        if steps <= FEW_STEPS and not torch.is_grad_enabled():
            return self.naive(inputs, state, recurrent_weight)
        return self.unroll(inputs, state, recurrent_weight)

    def extra_repr(self) -> str:
        return f"{self.input_weight.shape[1]}, {self.width}, recurrent_dropout={self.recurrent_dropout}"

    def _gates(self, inputs: Tensor, hidden: Tensor, recurrent_weight: Tensor) -> Tensor:
        """W x + U h + b of all gates, (B, G)."""
        return torch.addmm(F.linear(inputs, self.input_weight, self.bias), hidden, recurrent_weight.t())

    def _fused(self, recurrent_weight: Tensor) -> _FusedArguments:
        """The further arguments of torch's fused recurrences, which have two biases; the second is zero."""
        weights = [self.input_weight, recurrent_weight, self.bias, torch.zeros_like(self.bias)]
        return _FusedArguments(weights, train=torch.is_grad_enabled())


class _FusedArguments(NamedTuple):
    weights: list[Tensor]
    has_biases: bool = True
    layers: int = 1
    dropout: float = 0.0
    train: bool = True
    bidirectional: bool = False
    batch_first: bool = False


class RNN(RecurrentLayer):
    """The simple recurrent network (Elman, 1990).

    h' = tanh(W x + U h + b), where U starts with spectral radius 1.
    """

    def __init__(self, inputs: int, width: int, recurrent_dropout: float = 0.0) -> None:
        super().__init__(inputs, width, [width], recurrent_dropout)

    def cell(self, inputs: Tensor, state: LayerState, recurrent_weight: Tensor) -> LayerState:
        (hidden,) = state
        return (self._gates(inputs, hidden, recurrent_weight).tanh(),)

    def describe(self, program: ProgramBuilder, x: Vector, slot: int) -> Vector:
        hidden = program.state(slot, self.width)
        return program.activate(self._describe_gates(program, x, hidden), TANH, out=hidden)

    def unroll(self, inputs: Tensor, state: LayerState, recurrent_weight: Tensor) -> tuple[Tensor, LayerState]:
        (hidden,) = state
        outputs, last = torch.rnn_tanh(inputs, hidden[None], *self._fused(recurrent_weight))
        return outputs, (last[0],)


class LSTM(RecurrentLayer):
    """Long short-term memory (Hochreiter & Schmidhuber, 1997) with a forget gate (Gers et al., 2000).

    i = σ(W_i x + U_i h + b_i)        f = σ(W_f x + U_f h + b_f)
    g = tanh(W_g x + U_g h + b_g)     o = σ(W_o x + U_o h + b_o)
    c' = f ∘ c + i ∘ g                h' = o ∘ tanh(c')
    """

    def __init__(self, inputs: int, width: int, recurrent_dropout: float = 0.0) -> None:
        super().__init__(inputs, width, [width] * 4, recurrent_dropout)
        nn.init.constant_(self.bias.detach()[width : 2 * width], 1.0)  # initially remembers

    def initial(self, rows: int) -> LayerState:
        return _hidden_and_memory(self, rows)

    def cell(self, inputs: Tensor, state: LayerState, recurrent_weight: Tensor) -> LayerState:
        hidden, memory = state
        admit, keep, candidate, emit = self._gates(inputs, hidden, recurrent_weight).chunk(4, dim=1)
        memory = keep.sigmoid() * memory + admit.sigmoid() * candidate.tanh()
        return emit.sigmoid() * memory.tanh(), memory

    def describe(self, program: ProgramBuilder, x: Vector, slot: int) -> Vector:
        hidden, memory = program.state(slot, self.width), program.state(slot + 1, self.width)
        admit, keep, candidate, emit = program.split(self._describe_gates(program, x, hidden), 4)
        for gate in (admit, keep, emit):
            program.activate(gate, SIGMOID)
        program.multiply(keep, memory, out=memory)
        program.multiply(admit, program.activate(candidate, TANH), out=memory, accumulate=True)
        return program.multiply(emit, program.activate(memory, TANH, out=candidate), out=hidden)

    def unroll(self, inputs: Tensor, state: LayerState, recurrent_weight: Tensor) -> tuple[Tensor, LayerState]:
        hidden, memory = state
        outputs, *last = torch.lstm(inputs, (hidden[None], memory[None]), *self._fused(recurrent_weight))
        return outputs, (last[0][0], last[1][0])


class LSTMPeephole(RecurrentLayer):
    """An LSTM with peephole connections from the memory to the gates (Gers & Schmidhuber, 2000).

    g = tanh(W_g x + U_g h + b_g)             i = σ(W_i x + U_i h + p_i ∘ c + b_i)
    f = σ(W_f x + U_f h + p_f ∘ c + b_f)      o = σ(W_o x + U_o h + p_o ∘ c + b_o)
    c' = f ∘ c + i ∘ g                        h' = o ∘ tanh(c')

    Definitions vary. Here all three gates use the previous memory c (in Gers & Schmidhuber the output gate uses c'),
    and the peephole weights p are diagonal; `LSTMFullPeephole` has matrices.
    """

    def __init__(self, inputs: int, width: int, recurrent_dropout: float = 0.0) -> None:
        super().__init__(inputs, width, [width] * 4, recurrent_dropout)
        # Of the input, forget and output gate; zero, so that it starts as a plain LSTM.
        self.peephole = nn.Parameter(torch.zeros(3 * width, *self.peephole_inputs(width)))
        nn.init.constant_(self.bias.detach()[2 * width : 3 * width], 1.0)

    def initial(self, rows: int) -> LayerState:
        return _hidden_and_memory(self, rows)

    def cell(self, inputs: Tensor, state: LayerState, recurrent_weight: Tensor) -> LayerState:
        hidden, memory = state
        candidate, gates = self._gates(inputs, hidden, recurrent_weight).tensor_split([self.width], dim=1)
        admit, keep, emit = torch.sigmoid(gates + self.from_memory(memory)).chunk(3, dim=1)
        memory = keep * memory + admit * candidate.tanh()
        return emit * memory.tanh(), memory

    def describe(self, program: ProgramBuilder, x: Vector, slot: int) -> Vector:
        hidden, memory = program.state(slot, self.width), program.state(slot + 1, self.width)
        values = self._describe_gates(program, x, hidden)
        gates = program.part(values, self.width, 3 * self.width)
        self._describe_peepholes(program, memory, gates)
        program.activate(gates, SIGMOID)
        candidate, admit, keep, emit = program.split(values, 4)
        program.multiply(keep, memory, out=memory)
        program.multiply(admit, program.activate(candidate, TANH), out=memory, accumulate=True)
        return program.multiply(emit, program.activate(memory, TANH, out=candidate), out=hidden)

    def unroll(self, inputs: Tensor, state: LayerState, recurrent_weight: Tensor) -> tuple[Tensor, LayerState]:
        hidden, memory = state
        outputs, memory = PeepholeLSTM.apply(  # type: ignore[no-untyped-call]
            inputs, hidden, memory, self.input_weight, recurrent_weight, self.bias, self.peephole
        )
        return outputs, (outputs[-1].clone(), memory)

    def _describe_peepholes(self, program: ProgramBuilder, memory: Vector, gates: Vector) -> None:
        for gate, weight in zip(program.split(gates, 3), self.peephole.chunk(3), strict=True):
            program.multiply(memory, program.constant(weight), out=gate, accumulate=True)

    def peephole_inputs(self, width: int) -> tuple[int, ...]:
        """The further dimensions of the peephole weights."""
        return ()

    def from_memory(self, memory: Tensor) -> Tensor:
        """What the peepholes add to the three gates, (B, 3D)."""
        return self.peephole * memory.repeat(1, 3)


class LSTMFullPeephole(LSTMPeephole):
    """An LSTM whose gates read the memory like the hidden vector, through matrices: σ(W x + U h + P c + b).

    i, f and o are σ(V [h; x; c] + b) with one matrix V each. With as many inputs as units it has 11/8 of the parameters
    of an LSTM.
    """

    def peephole_inputs(self, width: int) -> tuple[int, ...]:
        return (width,)

    def from_memory(self, memory: Tensor) -> Tensor:
        return F.linear(memory, self.peephole)

    def _describe_peepholes(self, program: ProgramBuilder, memory: Vector, gates: Vector) -> None:
        program.linear(memory, self.peephole, add_to=gates)


class LSTMCoupled(RecurrentLayer):
    """An LSTM with coupled input and forget gates, f = 1 − i (Greff et al., 2017).

    g = tanh(W_g x + U_g h + b_g)     i = σ(W_i x + U_i h + b_i)     o = σ(W_o x + U_o h + b_o)
    c' = (1 − i) ∘ c + i ∘ g          h' = o ∘ tanh(c')
    """

    def __init__(self, inputs: int, width: int, recurrent_dropout: float = 0.0) -> None:
        super().__init__(inputs, width, [width] * 3, recurrent_dropout)
        nn.init.constant_(self.bias.detach()[width : 2 * width], -1.0)  # initially remembers

    def initial(self, rows: int) -> LayerState:
        return _hidden_and_memory(self, rows)

    def cell(self, inputs: Tensor, state: LayerState, recurrent_weight: Tensor) -> LayerState:
        hidden, memory = state
        candidate, admit, emit = self._gates(inputs, hidden, recurrent_weight).chunk(3, dim=1)
        memory = torch.lerp(memory, candidate.tanh(), admit.sigmoid())
        return emit.sigmoid() * memory.tanh(), memory

    def describe(self, program: ProgramBuilder, x: Vector, slot: int) -> Vector:
        hidden, memory = program.state(slot, self.width), program.state(slot + 1, self.width)
        candidate, admit, emit = program.split(self._describe_gates(program, x, hidden), 3)
        for gate in (admit, emit):
            program.activate(gate, SIGMOID)
        program.interpolate(memory, program.activate(candidate, TANH), admit, out=memory)
        return program.multiply(emit, program.activate(memory, TANH, out=candidate), out=hidden)

    def unroll(self, inputs: Tensor, state: LayerState, recurrent_weight: Tensor) -> tuple[Tensor, LayerState]:
        hidden, memory = state
        outputs, memory = CoupledLSTM.apply(  # type: ignore[no-untyped-call]
            inputs, hidden, memory, self.input_weight, recurrent_weight, self.bias
        )
        return outputs, (outputs[-1].clone(), memory)


class GRU(RecurrentLayer):
    """The gated recurrent unit (Cho et al., 2014).

    r = σ(W_r x + U_r h + b_r)            z = σ(W_z x + U_z h + b_z)
    n = tanh(W_n x + b_n + r ∘ U_n h)     h' = (1 − z) ∘ n + z ∘ h

    The reset gate is applied to U_n h, as in cuDNN and PyTorch, not to h before U_n, so that one product serves all
    gates.
    """

    def __init__(self, inputs: int, width: int, recurrent_dropout: float = 0.0) -> None:
        super().__init__(inputs, width, [width] * 3, recurrent_dropout)
        nn.init.constant_(self.bias.detach()[width : 2 * width], 1.0)  # initially remembers

    def cell(self, inputs: Tensor, state: LayerState, recurrent_weight: Tensor) -> LayerState:
        (hidden,) = state
        reset, update, candidate = F.linear(inputs, self.input_weight, self.bias).chunk(3, dim=1)
        reset_hidden, update_hidden, candidate_hidden = F.linear(hidden, recurrent_weight).chunk(3, dim=1)
        reset = torch.sigmoid(reset + reset_hidden)
        update = torch.sigmoid(update + update_hidden)
        candidate = torch.tanh(candidate + reset * candidate_hidden)
        return (torch.lerp(candidate, hidden, update),)

    def describe(self, program: ProgramBuilder, x: Vector, slot: int) -> Vector:
        hidden = program.state(slot, self.width)
        inputs = program.linear(x, self.input_weight, self.bias)
        recurrent = program.linear(hidden, self.recurrent_weight)
        reset, update, candidate = program.split(inputs, 3)
        gates = program.part(inputs, 0, 2 * self.width)
        program.activate(program.add(gates, program.part(recurrent, 0, 2 * self.width), out=gates), SIGMOID)
        program.multiply(reset, program.part(recurrent, 2 * self.width, self.width), out=candidate, accumulate=True)
        return program.interpolate(program.activate(candidate, TANH), hidden, update, out=hidden)

    def unroll(self, inputs: Tensor, state: LayerState, recurrent_weight: Tensor) -> tuple[Tensor, LayerState]:
        (hidden,) = state
        outputs = ResetGRU.apply(  # type: ignore[no-untyped-call]
            inputs, hidden, self.input_weight, recurrent_weight, self.bias
        )
        return outputs, (outputs[-1].clone(),)


class GRUInputReset(RecurrentLayer):
    """A gated recurrent unit whose reset gate is applied to the input instead of the hidden vector.

    z = σ(W_z x + U_z h + b_z)                r = σ(W_r x + U_r h + b_r)
    n = tanh(W_n (r ∘ x) + U_n h + b_n)       h' = (1 − z) ∘ h + z ∘ n

    The reset gate has the width of the input and selects what is read rather than what is remembered.
    """

    def __init__(self, inputs: int, width: int, recurrent_dropout: float = 0.0) -> None:
        super().__init__(inputs, width, [width, inputs, width], recurrent_dropout)
        nn.init.constant_(self.bias.detach()[:width], -1.0)  # initially remembers

    def cell(self, inputs: Tensor, state: LayerState, recurrent_weight: Tensor) -> LayerState:
        (hidden,) = state
        from_hidden = F.linear(hidden, recurrent_weight, self.bias)
        gate_weight, candidate_weight = self.input_weight.tensor_split([-self.width])
        gates, candidate = from_hidden.tensor_split([-self.width], dim=1)
        update, reset = torch.addmm(gates, inputs, gate_weight.t()).sigmoid().tensor_split([self.width], dim=1)
        candidate = torch.addmm(candidate, reset * inputs, candidate_weight.t()).tanh()
        return (torch.lerp(hidden, candidate, update),)

    def describe(self, program: ProgramBuilder, x: Vector, slot: int) -> Vector:
        hidden, width = program.state(slot, self.width), self.width
        values = program.linear(hidden, self.recurrent_weight, self.bias)
        gate_weight, candidate_weight = self.input_weight.tensor_split([-width])
        gates = program.part(values, 0, width + x.size)
        program.activate(program.linear(x, gate_weight, add_to=gates), SIGMOID)
        selected = program.multiply(program.part(values, width, x.size), x)
        candidate = program.part(values, width + x.size, width)
        program.activate(program.linear(selected, candidate_weight, add_to=candidate), TANH)
        return program.interpolate(hidden, candidate, program.part(values, 0, width), out=hidden)

    def unroll(self, inputs: Tensor, state: LayerState, recurrent_weight: Tensor) -> tuple[Tensor, LayerState]:
        (hidden,) = state
        outputs = InputResetGRU.apply(  # type: ignore[no-untyped-call]
            inputs, hidden, self.input_weight, recurrent_weight, self.bias
        )
        return outputs, (outputs[-1].clone(),)


def _hidden_and_memory(layer: RecurrentLayer, rows: int) -> LayerState:
    return layer.bias.new_zeros(rows, layer.width), layer.bias.new_zeros(rows, layer.width)


CELLS: dict[Cell, Callable[[int, int, float], RecurrentLayer]] = {
    "rnn": RNN,
    "lstm": LSTM,
    "lstm_peephole": LSTMPeephole,
    "lstm_full_peephole": LSTMFullPeephole,
    "lstm_coupled": LSTMCoupled,
    "gru": GRU,
    "gru_input_reset": GRUInputReset,
}
