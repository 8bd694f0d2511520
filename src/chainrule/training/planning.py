"""What training a model takes on given hardware: memory per process, time per step, days and cost.

Memory is counted from the shapes of a model: its weights, gradients and optimizer state by `footprint`, and the
tensors that one row keeps for the backward pass by running a narrow model of the same layout. Time is simulated: a
step computes forward and backward passes, and communicates. DDP sums all gradients (2 (n − 1) / n of their bytes per
process) while the backward pass computes; FSDP gathers the weights of blocks in both passes, all others once, and
scatters the gradients (3 times (n − 1) / n, or 2 times), each overlapped with the computation of a block.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from chainrule.config import TrainConfig
from chainrule.errors import ConfigError, in_units, nearest
from chainrule.families import build
from chainrule.interface.base import NeuralModel
from chainrule.training.collectives import LATENCY, Network, StepTime, replicated_step, sharded_step
from chainrule.training.footprint import footprint
from chainrule.training.hardware import ACCELERATORS, NETWORK, PER_MACHINE, Accelerator
from chainrule.training.shapes import build_shapes
from chainrule.types import Batch, Sequences

EFFICIENCY = 0.4  # fraction of the stated speed that training reaches
RESERVED = 0.9  # fraction of a GPU's memory that is planned: the rest is for the context, libraries and fragments
LOGIT_COPIES = 3  # logits, their log-softmax and its gradient
BATCH_TOKENS = 2**19  # per step, of all processes: GPT-2's and GPT-3's order of magnitude
WIDTH_PER_LAYER = 64  # of planned models; 1.5B parameters are 48 layers of width 1600 in GPT-2
NARROW = 64  # width of the model whose activations are counted


class Machines(NamedTuple):
    """GPUs, as "8xA100" names them."""

    number: int
    kind: str
    gpu: Accelerator

    @classmethod
    def parse(cls, text: str) -> Machines:
        found = re.fullmatch(r"(\d+)\s*[x×]\s*([\w-]+)", text.strip())
        if found is None or int(found[1]) < 1:
            raise ConfigError(f"--gpus {text!r} is not a number and a GPU; for example --gpus 8xA100")
        names = {name.lower(): name for name in ACCELERATORS}
        if found[2].lower() not in names:
            raise ConfigError(f"unknown GPU {found[2]!r}; {nearest(found[2], ACCELERATORS)}")
        kind = names[found[2].lower()]
        return cls(int(found[1]), kind, ACCELERATORS[kind])


def count_of(text: str, option: str) -> int:
    """A number such as 1.5B, 30M or 124000000."""
    found = re.fullmatch(r"([\d.]+)\s*([KMBT]?)", text.strip(), re.IGNORECASE)
    try:
        value = float(found[1]) if found else 0.0
    except ValueError:
        value = 0.0
    if found is None or value <= 0:
        raise ConfigError(f"{option} {text!r} is not a number; for example {option} 1.5B")
    return round(value * {"": 1, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}[found[2].upper()])


class Shape(NamedTuple):
    """The settings of a model and what follows from them."""

    model: dict[str, Any]
    parameters: int
    block_parameters: int  # of its largest block

    @property
    def other_parameters(self) -> int:
        """Those outside blocks."""
        return self.parameters - self.block_parameters * int(self.model["layers"])

    @property
    def heads(self) -> int:
        return int(self.model["heads"])


def shape_of(settings: Mapping[str, Any]) -> Shape:
    model = build_shapes("gpt", settings)
    blocks = [sum(p.numel() for p in block.parameters()) for block in model.sharded_blocks()]  # type: ignore[operator]
    return Shape(dict(settings), sum(p.numel() for p in model.parameters()), max(blocks))


def gpt_with(parameters: int, *, vocabulary: int, context: int) -> Shape:
    """The gpt whose number of parameters is closest."""

    def candidates() -> Iterator[Shape]:
        for width in range(64, 16385, 64):
            layers = max(2, round(width / WIDTH_PER_LAYER))
            estimate = 12 * layers * width**2 + 2 * vocabulary * width
            if 0.7 < estimate / parameters < 1.4:
                yield shape_of({"vocabulary": vocabulary, "context": context, "width": width, "layers": layers,
                                "heads": max(1, width // 64)})  # fmt: skip

    found = min(candidates(), key=lambda shape: abs(shape.parameters - parameters), default=None)
    if found is None:
        raise ConfigError(
            f"no gpt has {parameters:,} parameters with a vocabulary of {vocabulary:,}; give more --parameters or a "
            "smaller --vocabulary"
        )
    return found


def saved_bytes(shape: Shape, *, half: bool) -> float:
    """Bytes per token that the blocks keep for the backward pass, from a narrow model of the same layout."""
    counted = [_saved_by(layers, int(shape.model["context"]), half=half) for layers in (1, 2)]
    per_layer = (counted[1] - counted[0]) * int(shape.model["width"]) / NARROW
    outside = counted[0] - (counted[1] - counted[0])  # embeddings and the last norm
    return per_layer * int(shape.model["layers"]) + outside * int(shape.model["width"]) / NARROW


def _saved_by(layers: int, context: int, *, half: bool) -> float:
    """Bytes per token that a narrow gpt saves, weights not included."""
    length = min(context, 128)
    settings = {"vocabulary": 8, "width": NARROW, "layers": layers, "heads": 1, "context": length}
    with torch.random.fork_rng():
        model = build("gpt", settings)
    assert isinstance(model, NeuralModel)
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    found: dict[int, int] = {}
    kept: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = storage.nbytes()
            kept.append(tensor)  # so that no address is used twice
        return tensor

    batch = Batch(Sequences.full(torch.zeros(1, length, dtype=torch.int64)))
    precision = torch.autocast("cpu", dtype=torch.bfloat16, enabled=half)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), precision:
        hidden = model.hidden(batch)
    del hidden
    return sum(found.values()) / length


class Setting(NamedTuple):
    """One way to train a model on the hardware, and what it takes."""

    parallel: str  # ddp or fsdp
    states: float  # bytes per process: weights, gradients, optimizer state
    activations: float  # bytes per process and piece
    rows: int  # sequences per process and piece
    pieces: int  # train.accumulate
    compute: float  # seconds per step
    communication: float
    seconds: float  # per step, with what overlaps

    @property
    def memory(self) -> float:
        return self.states + self.activations


class Plan(NamedTuple):
    """A model, hardware, and the settings that fit, the fastest first."""

    shape: Shape
    machines: Machines
    batch_tokens: int
    settings: list[Setting]

    def days(self, setting: Setting, tokens: int) -> float:
        return tokens / self.batch_tokens * setting.seconds / 86400


def state_bytes(shape: Shape, parallel: str, processes: int, train: TrainConfig) -> float:
    """Weights, gradients and optimizer state of one process."""
    found = footprint("gpt", shape.model, train)
    assert found is not None
    if parallel == "ddp" or processes == 1:
        return float(found.weights)
    # With gradients; a block ahead is gathered meanwhile.
    gathered = 4.0 * (2 * shape.other_parameters + 3 * shape.block_parameters)
    return found.weights / processes + gathered


def activation_bytes(shape: Shape, rows: int, *, half: bool) -> float:
    """What a piece of some rows keeps for the backward pass, with its logits."""
    tokens = rows * int(shape.model["context"])
    return tokens * (saved_bytes(shape, half=half) + 4.0 * LOGIT_COPIES * int(shape.model["vocabulary"]))


def step_seconds(
    shape: Shape,
    parallel: str,
    processes: int,
    tokens: int,
    pieces: int,
    *,
    speed: float,
    bandwidth: float,
    latency: float = LATENCY,
) -> StepTime:
    """The time of a step on GPUs.

    `tokens` are those of one process, `speed` its operations per second, and `bandwidth` its bytes per second.
    """
    context, width, layers = (int(shape.model[name]) for name in ("context", "width", "layers"))
    per_token = 6 * shape.parameters + 12 * layers * width * context / 2  # causal attention: half of all pairs
    compute = per_token * tokens / speed
    if processes == 1:
        return StepTime(compute, 0.0, compute)
    return communicating_step(compute, shape, parallel, pieces, Network.ring(processes, bandwidth, latency))


def communicating_step(compute: float, shape: Shape, parallel: str, pieces: int, network: Network) -> StepTime:
    """The time of a step in which each process computes for `compute` seconds."""
    size = 4.0 * shape.parameters
    if parallel == "ddp":
        return replicated_step(compute, size, pieces, network)
    return sharded_step(compute, size, 4.0 * shape.other_parameters, int(shape.model["layers"]), pieces, network)


def make_plan(shape: Shape, machines: Machines, *, batch_tokens: int, network: float = NETWORK) -> Plan:
    """The settings that fit into memory, the fastest first."""
    context = int(shape.model["context"])
    processes = min(machines.number, max(1, batch_tokens // context))
    bandwidth = machines.gpu.bandwidth if machines.number <= PER_MACHINE else min(network, machines.gpu.bandwidth)
    per_process = max(1, batch_tokens // context // processes)  # rows
    one_row = activation_bytes(shape, 1, half=True)
    found = []
    for parallel in ("ddp", "fsdp") if machines.number > 1 else ("ddp",):
        states = state_bytes(shape, parallel, machines.number, TrainConfig())
        room = RESERVED * machines.gpu.memory - states
        rows = min(per_process, int(room // one_row))
        if rows < 1:
            continue
        pieces = math.ceil(per_process / rows)
        times = step_seconds(
            shape, parallel, machines.number, per_process * context, pieces,
            speed=EFFICIENCY * machines.gpu.operations, bandwidth=bandwidth,
        )  # fmt: skip
        found.append(Setting(parallel, states, rows * one_row, rows, pieces, *times))
    if not found:
        needed = state_bytes(shape, "fsdp", machines.number, TrainConfig()) + one_row
        raise ConfigError(
            f"{shape.parameters / 1e9:.2f}B parameters take at least {in_units(needed)} per process on "
            f"{machines.number} {machines.kind}, which has {in_units(machines.gpu.memory)}; use more GPUs, or a "
            "smaller model"
        )
    return Plan(shape, machines, per_process * processes * context, sorted(found, key=lambda one: one.seconds))
