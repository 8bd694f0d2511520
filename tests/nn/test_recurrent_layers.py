"""Recurrent layers against their equations, and fast paths against the reference loop."""

from __future__ import annotations

import math
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor

from chainrule.kernels.step import torch_only
from chainrule.nn.dropout import apply_dropout
from chainrule.nn.recurrent import (
    CELLS,
    FEW_STEPS,
    GRU,
    LSTM,
    RNN,
    GRUInputReset,
    LayerState,
    LSTMCoupled,
    LSTMPeephole,
    RecurrentLayer,
)

INPUTS, WIDTH, ROWS, STEPS = 3, 4, 2, 6

every_cell = pytest.mark.parametrize("cell", CELLS)


def layer_of(
    cell: str, *, inputs: int = INPUTS, width: int = WIDTH, dtype: torch.dtype = torch.float64
) -> RecurrentLayer:
    """A layer without zero weights, so that every weight affects the output."""
    torch.manual_seed(0)
    layer = CELLS[cell](inputs, width, 0.0).to(dtype)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return layer


def something_to_read(layer: RecurrentLayer, steps: int = STEPS) -> tuple[Tensor, LayerState]:
    generator = torch.Generator().manual_seed(1)
    dtype = layer.bias.dtype
    inputs = torch.randn(steps, ROWS, layer.input_weight.shape[1], generator=generator, dtype=dtype)
    state = tuple(torch.randn(ROWS, WIDTH, generator=generator, dtype=dtype) for _ in layer.initial(ROWS))
    return inputs.requires_grad_(), tuple(part.requires_grad_() for part in state)


# The fast paths


@every_cell
@pytest.mark.parametrize("inputs", [INPUTS, WIDTH, 7])
def test_unroll_has_the_values_and_gradients_of_the_reference_loop(cell: str, inputs: int) -> None:
    layer = layer_of(cell, inputs=inputs)
    values, state = something_to_read(layer)
    results = []
    for run in (layer.unroll, layer.naive):
        hidden, last = run(values, state, layer.recurrent_weight)
        outcome = torch.cat([hidden, *(part[None] for part in last)])  # a loss over all outputs
        loss = (outcome * torch.linspace(-1, 2, outcome.numel(), dtype=torch.float64).view_as(outcome)).sum()
        results.append([outcome, *torch.autograd.grad(loss, [values, *state, *layer.parameters()])])
    for fast, plain in zip(*results, strict=True):
        torch.testing.assert_close(fast, plain, rtol=1e-10, atol=1e-12)


@every_cell
def test_gradients_of_unroll_agree_with_finite_differences(cell: str) -> None:
    layer = layer_of(cell)
    values, state = something_to_read(layer, steps=3)
    names, parameters = zip(*layer.named_parameters(), strict=True)

    def read(values: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        before, weights = rest[: len(state)], rest[len(state) :]
        hidden, last = torch.func.functional_call(layer, dict(zip(names, weights, strict=True)), (values, before))
        return (hidden, *last)

    assert torch.autograd.gradcheck(read, (values, *state, *parameters))


@every_cell
def test_float32_agrees_with_float64(cell: str) -> None:
    exact, single = layer_of(cell), layer_of(cell, dtype=torch.float32)
    single.load_state_dict(exact.state_dict())
    values, state = something_to_read(exact)
    hidden, _ = single(values.float(), tuple(part.float() for part in state))
    torch.testing.assert_close(hidden.double(), exact(values, state)[0], rtol=1e-5, atol=1e-5)


@every_cell
@pytest.mark.parametrize("steps", [0, 1, FEW_STEPS, FEW_STEPS + 1])
def test_outputs_are_the_same_without_gradients(cell: str, steps: int) -> None:
    layer = layer_of(cell)
    values, state = something_to_read(layer, steps)
    with torch.no_grad():
        quiet = layer(values, state)
    hidden, last = layer(values, state)
    torch.testing.assert_close(quiet, (hidden, last), rtol=1e-12, atol=1e-12)
    assert hidden.shape == (steps, ROWS, WIDTH)


@every_cell
def test_the_state_does_not_hold_a_reference_to_the_whole_segment(cell: str) -> None:
    layer = layer_of(cell)
    _, state = layer(*something_to_read(layer, steps=50))
    assert all(part.untyped_storage().nbytes() == ROWS * WIDTH * 8 for part in state)


@every_cell
def test_backward_may_be_repeated_on_a_retained_graph(cell: str) -> None:
    layer = layer_of(cell)
    values, state = something_to_read(layer)
    loss = layer(values, state)[0].square().sum()
    first = torch.autograd.grad(loss, values, retain_graph=True)
    assert torch.equal(first[0], torch.autograd.grad(loss, values)[0])


@every_cell
def test_backward_does_not_modify_the_incoming_gradient(cell: str) -> None:
    layer = layer_of(cell)
    values, state = something_to_read(layer)
    outcome = layer(values, state)
    given = [torch.ones_like(part) for part in (outcome[0], *outcome[1])]
    torch.autograd.grad([outcome[0], *outcome[1]], values, grad_outputs=given)
    assert all(torch.equal(part, torch.ones_like(part)) for part in given)


@pytest.mark.parametrize(("rows", "width"), [(1, 16), (5, 50), (64, 20)])
def test_the_compiled_loops_of_a_gru_are_those_of_torch(rows: int, width: int) -> None:
    layer = layer_of("gru", inputs=7, width=width, dtype=torch.float32)
    layer.recurrent_weight.data *= 0.3
    values, weights = torch.randn(9, rows, 7), torch.randn(9, rows, width)
    found = []
    for one in (nullcontext(), torch_only()):
        inputs, before = values.clone().requires_grad_(), torch.full((rows, width), 0.2, requires_grad=True)
        with one:
            outputs, _ = layer(inputs, (before,))
            gradients = torch.autograd.grad((outputs * weights).sum(), [inputs, before, *layer.parameters()])
        found.append([outputs, *gradients])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


@every_cell
def test_the_recurrence_keeps_its_precision_under_autocast(cell: str) -> None:
    layer = layer_of(cell, dtype=torch.float32)
    values, state = something_to_read(layer)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        lowered = layer(values.bfloat16().float(), state)
    assert lowered[0].dtype == torch.float32
    torch.testing.assert_close(lowered, layer(values.bfloat16().float(), state))


# The equations, unit by unit, as the docstrings give them


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


class Gates:
    """Pre-activations of one row, unit by unit, from the blocks of the weights."""

    def __init__(self, layer: RecurrentLayer, *names: str) -> None:
        self.weights = [tensor.tolist() for tensor in (layer.input_weight, layer.recurrent_weight, layer.bias)]
        self.first = {name: index * WIDTH for index, name in enumerate(names)}

    def of_inputs(self, name: str, unit: int, x: list[float]) -> float:
        return dot(self.weights[0][self.first[name] + unit], x)

    def of_hidden(self, name: str, unit: int, h: list[float]) -> float:
        return dot(self.weights[1][self.first[name] + unit], h)

    def bias(self, name: str, unit: int) -> float:
        return float(self.weights[2][self.first[name] + unit])

    def __call__(self, name: str, unit: int, x: list[float], h: list[float]) -> float:
        return self.of_inputs(name, unit, x) + self.of_hidden(name, unit, h) + self.bias(name, unit)


def dot(weights: list[float], values: list[float]) -> float:
    return sum(weight * value for weight, value in zip(weights, values, strict=True))


def read_first_row(layer: RecurrentLayer) -> tuple[list[list[float]], list[list[float]], list[list[float]]]:
    """The inputs, the state before and the hidden vectors after each step, as lists."""
    values, state = something_to_read(layer)
    hidden, _ = layer(values, state)
    return values[:, 0].tolist(), [part[0].tolist() for part in state], hidden[:, 0].tolist()


def test_rnn_follows_its_equation() -> None:
    layer = layer_of("rnn")
    inputs, (h,), outputs = read_first_row(layer)
    gate = Gates(layer, "h")
    for x, expected in zip(inputs, outputs, strict=True):
        h = [math.tanh(gate("h", j, x, h)) for j in range(WIDTH)]
        assert h == pytest.approx(expected)


def test_lstm_follows_its_equation() -> None:
    layer = layer_of("lstm")
    inputs, (h, c), outputs = read_first_row(layer)
    gate = Gates(layer, "i", "f", "g", "o")
    for x, expected in zip(inputs, outputs, strict=True):
        i, f, o = ([sigmoid(gate(name, j, x, h)) for j in range(WIDTH)] for name in "ifo")
        g = [math.tanh(gate("g", j, x, h)) for j in range(WIDTH)]
        c = [f[j] * c[j] + i[j] * g[j] for j in range(WIDTH)]
        h = [o[j] * math.tanh(c[j]) for j in range(WIDTH)]
        assert h == pytest.approx(expected)


def test_lstm_peephole_gates_use_the_previous_memory() -> None:
    layer = layer_of("lstm_peephole")
    assert isinstance(layer, LSTMPeephole)
    inputs, (h, c), outputs = read_first_row(layer)
    gate = Gates(layer, "g", "i", "f", "o")
    peephole = dict(zip("ifo", layer.peephole.view(3, WIDTH).tolist(), strict=True))
    for x, expected in zip(inputs, outputs, strict=True):
        i, f, o = ([sigmoid(gate(name, j, x, h) + peephole[name][j] * c[j]) for j in range(WIDTH)] for name in "ifo")
        g = [math.tanh(gate("g", j, x, h)) for j in range(WIDTH)]
        c = [f[j] * c[j] + i[j] * g[j] for j in range(WIDTH)]
        h = [o[j] * math.tanh(c[j]) for j in range(WIDTH)]
        assert h == pytest.approx(expected)


def test_lstm_full_peephole_gates_read_the_whole_previous_memory() -> None:
    layer = layer_of("lstm_full_peephole")
    assert isinstance(layer, LSTMPeephole)
    inputs, (h, c), outputs = read_first_row(layer)
    gate = Gates(layer, "g", "i", "f", "o")
    peephole = dict(zip("ifo", layer.peephole.view(3, WIDTH, WIDTH).tolist(), strict=True))
    for x, expected in zip(inputs, outputs, strict=True):
        i, f, o = ([sigmoid(gate(name, j, x, h) + dot(peephole[name][j], c)) for j in range(WIDTH)] for name in "ifo")
        g = [math.tanh(gate("g", j, x, h)) for j in range(WIDTH)]
        c = [f[j] * c[j] + i[j] * g[j] for j in range(WIDTH)]
        h = [o[j] * math.tanh(c[j]) for j in range(WIDTH)]
        assert h == pytest.approx(expected)


def test_lstm_coupled_has_complementary_input_and_forget_gates() -> None:
    layer = layer_of("lstm_coupled")
    inputs, (h, c), outputs = read_first_row(layer)
    gate = Gates(layer, "g", "i", "o")
    for x, expected in zip(inputs, outputs, strict=True):
        i, o = ([sigmoid(gate(name, j, x, h)) for j in range(WIDTH)] for name in "io")
        g = [math.tanh(gate("g", j, x, h)) for j in range(WIDTH)]
        c = [(1 - i[j]) * c[j] + i[j] * g[j] for j in range(WIDTH)]
        h = [o[j] * math.tanh(c[j]) for j in range(WIDTH)]
        assert h == pytest.approx(expected)


def test_gru_follows_its_equation() -> None:
    layer = layer_of("gru")
    inputs, (h,), outputs = read_first_row(layer)
    gate = Gates(layer, "r", "z", "n")
    for x, expected in zip(inputs, outputs, strict=True):
        r, z = ([sigmoid(gate(name, j, x, h)) for j in range(WIDTH)] for name in "rz")
        n = [
            math.tanh(gate.of_inputs("n", j, x) + gate.bias("n", j) + r[j] * gate.of_hidden("n", j, h))
            for j in range(WIDTH)
        ]
        h = [(1 - z[j]) * n[j] + z[j] * h[j] for j in range(WIDTH)]
        assert h == pytest.approx(expected)


def test_gru_input_reset_resets_the_input() -> None:
    layer = layer_of("gru_input_reset", inputs=WIDTH)
    inputs, (h,), outputs = read_first_row(layer)
    gate = Gates(layer, "z", "r", "n")
    for x, expected in zip(inputs, outputs, strict=True):
        z, r = ([sigmoid(gate(name, j, x, h)) for j in range(WIDTH)] for name in "zr")
        reset = [r[j] * x[j] for j in range(WIDTH)]
        n = [math.tanh(gate("n", j, reset, h)) for j in range(WIDTH)]
        h = [(1 - z[j]) * h[j] + z[j] * n[j] for j in range(WIDTH)]
        assert h == pytest.approx(expected)


def test_a_peephole_lstm_with_zero_peepholes_is_an_lstm() -> None:
    plain, seeing = layer_of("lstm"), layer_of("lstm_peephole")
    torch.nn.init.zeros_(seeing.get_parameter("peephole"))
    for name in ("input_weight", "recurrent_weight", "bias"):
        i, f, g, o = plain.get_parameter(name).detach().chunk(4)
        seeing.get_parameter(name).detach().copy_(torch.cat([g, i, f, o]))
    values, state = something_to_read(plain)
    torch.testing.assert_close(seeing(values, state), plain(values, state))


# How layers start


@every_cell
def test_every_recurrent_block_starts_with_spectral_radius_one(cell: str) -> None:
    torch.manual_seed(0)
    layer = CELLS[cell](50, 50, 0.0)
    for block in layer.recurrent_weight.detach().double().split(50):
        assert torch.linalg.eigvals(block).abs().max().item() == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("kind", [LSTM, LSTMPeephole, LSTMCoupled, GRU, GRUInputReset])
def test_gated_cells_initially_remember(kind: type[RecurrentLayer]) -> None:
    layer = kind(8, 8)  # type: ignore[call-arg]
    state = tuple(torch.full((1, 8), 1.0) for _ in layer.initial(1))
    torch.nn.init.zeros_(layer.recurrent_weight)
    _, after = layer(torch.zeros(1, 1, 8), state)
    kept = after[-1]  # the memory of an LSTM, the hidden vector of a GRU
    assert kept.detach().numpy() == pytest.approx(1 / (1 + math.exp(-1)))


def test_the_simple_network_has_no_gate() -> None:
    assert torch.count_nonzero(RNN(8, 8).bias) == 0


# Dropout


@every_cell
def test_recurrent_dropout_drops_the_same_weights_at_all_steps(cell: str) -> None:
    torch.manual_seed(0)
    layer = CELLS[cell](INPUTS, WIDTH, 0.5).double()
    values, state = something_to_read(layer)
    torch.manual_seed(3)
    found = layer(values, state)
    torch.manual_seed(3)
    weight = apply_dropout(layer.recurrent_weight, 0.5)
    torch.testing.assert_close(found, layer.naive(values, state, weight))
    assert not torch.allclose(found[0], layer.eval()(values, state)[0])
