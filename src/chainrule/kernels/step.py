"""The compiled decoding step of a model, in place of its torch modules.

Decoding one sequence, or a few, takes hundreds of operations on a few hundred numbers per token, and torch spends more
time on dispatch than on arithmetic. A family that implements `Compilable` describes its step as a program; wherever a
few rows are extended without gradients on a CPU, the program is executed instead of the modules. The modules remain
the reference (`tests/kernels`), and the only implementation where Numba is not installed.
"""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from chainrule.kernels.instructions import FIRST_STATE, RESULT, Program
from chainrule.kernels.program import ProgramBuilder, quantize
from chainrule.types import Sequences, State, Step, map_state, tensors

if TYPE_CHECKING:
    from chainrule.kernels.beams import Beams

FEW_ROWS, MANY_ROWS = 32, 256
"""The most tokens, over all rows, that a program reads faster than torch: many with AVX-512 and a single thread."""

EXACT = (torch.float32, torch.float64)


class Describable(ABC):
    """A model whose decoding step can be described as a program, or as a part of that of a composite."""

    vocabulary: int

    @property
    def has_program(self) -> bool:
        """Whether the step can be described with these settings."""
        return True

    @abstractmethod
    def extend(self, tokens: Tensor, state: State) -> Step:
        """That of the autoregressive model."""

    @abstractmethod
    def describe_step(self, program: ProgramBuilder) -> None:
        """Describe how one token changes the state and gives the logits of the next."""

    def make_room(self, state: State, count: int) -> State:
        """A state with room for `count` more tokens; raises DataError if they exceed the context."""
        return state

    def room(self, state: State) -> float:
        """Number of tokens that a program may append before torch modules have to change the state."""
        return math.inf


class Compilable(Describable):
    """A model whose decoding step is compiled; mixed into an autoregressive model."""


class KnownProgram(NamedTuple):
    """A program, and all that it was made of: the parameters, buffers and modules of every module, by name."""

    program: Program
    members: tuple[dict[str, Any], ...]  # of the module that has the value
    names: tuple[str, ...]
    values: tuple[Any, ...]
    tensors: tuple[Tensor, ...]  # among the values
    addresses: list[int]

    @classmethod
    def of(cls, program: Program, model: nn.Module) -> KnownProgram:
        found = [
            (members, name, value)
            for module in model.modules()
            for members in (module._modules, module._parameters, module._buffers)
            for name, value in members.items()
        ]
        members, names, values = zip(*found, strict=True) if found else ((), (), ())
        weights = tuple(value for value in values if isinstance(value, Tensor))
        return cls(program, members, names, values, weights, list(map(Tensor.data_ptr, weights)))

    @property
    def is_current(self) -> bool:
        """Whether the model has the same modules and tensors, at the same addresses: not moved and not converted.

        This is asked before every step, and a loop in Python would take as long as the step of a small model.
        """
        same = all(map(operator.is_, map(dict.get, self.members, self.names), self.values))
        return same and list(map(Tensor.data_ptr, self.tensors)) == self.addresses


class _Programs:
    """The programs of models in use, and whether programs are used at all."""

    def __init__(self) -> None:
        self.enabled = find_spec("numba") is not None
        self.ready: set[torch.dtype] = set()  # types for which the functions are loaded
        self.of_model: WeakKeyDictionary[nn.Module, dict[str, KnownProgram]] = WeakKeyDictionary()
        self.int8: WeakSet[nn.Module] = WeakSet()  # models whose matrices are stored in int8


_programs = _Programs()


@contextmanager
def torch_only() -> Iterator[None]:
    """Decode with torch modules inside the block: the reference for compiled steps."""
    before, _programs.enabled = _programs.enabled, False
    try:
        yield
    finally:
        _programs.enabled = before


def is_enabled() -> bool:
    """Whether compiled code is used: Numba is installed, and not switched off by `torch_only`."""
    return _programs.enabled


def extend(model: nn.Module, tokens: Tensor, state: State) -> Step | None:
    """Append tokens (B, K) to the state by the model's program; None where torch modules have to do it."""
    if not (isinstance(model, Compilable) and has_program(model) and is_applicable(model, tokens)):
        return None
    program = program_of(model)
    if program is None:
        return None
    if (room := model.room(state)) < tokens.shape[1]:
        return None if tokens.shape[1] == 1 else _extend_in_two(model, tokens, state, max(1, int(room)))
    state = model.make_room(state, tokens.shape[1])
    return Step(run(program, tokens, state), state)


def _extend_in_two(model: Compilable, tokens: Tensor, state: State, count: int) -> Step:
    """Append the first tokens, for which there is room, then the others: as one by one, to the last bit."""
    first = model.extend(tokens[:, :count], state)
    second = model.extend(tokens[:, count:], first.state)
    return Step(torch.cat([first.logits, second.logits], dim=1), second.state)


def room(model: nn.Module, state: State) -> float:
    """Number of tokens that may be appended by a program before torch modules have to; any, if there is none."""
    return model.room(state) if isinstance(model, Compilable) and has_program(model) else math.inf


def has_program(model: Describable) -> bool:
    """Whether the model's step is described by a program that belongs to its own modules."""
    return model.has_program and _describes_itself(type(model))


@cache
def _describes_itself(kind: type[Describable]) -> bool:
    """False for a subclass that computes something else than the class whose program it inherits."""

    def owners(name: str) -> list[type]:
        return [one for one in kind.__mro__ if name in vars(one)][:1]

    [describes] = owners("describe_step")
    return all(issubclass(describes, owner) for name in ("advance", "readout") for owner in owners(name))


def is_applicable(model: nn.Module, tokens: Tensor, *, few: int = FEW_ROWS) -> bool:
    """Whether a program may process these tokens (B, K): a few, on a CPU, without gradients and dropout."""
    return (
        _programs.enabled
        and 0 < tokens.numel() <= (few if tokens.numel() <= few else max_rows())
        and not model.training
        and not torch.is_grad_enabled()
        and tokens.device.type == "cpu"
    )


def max_rows() -> int:
    """The most tokens, over all rows, for which a program is used."""
    return MANY_ROWS if torch.get_num_threads() == 1 and _has_wide_registers() else FEW_ROWS


@cache
def _has_wide_registers() -> bool:
    from chainrule.kernels.registers import WIDE

    return WIDE


def program_of(model: Compilable) -> Program | None:
    """The program of a model; None if its weights are of another type than float32 and float64."""
    assert isinstance(model, nn.Module)
    return program_for(model, model.vocabulary, model.describe_step, int8=model in _programs.int8)


def program_for(
    model: nn.Module, outputs: int, describe: Callable[[ProgramBuilder], None], *, int8: bool = False
) -> Program | None:
    """The program of a module that its method `describe` describes, made once for its present weights."""
    known = _programs.of_model.setdefault(model, {})
    name = describe.__name__
    if name in known and known[name].is_current:
        return known[name].program
    dtype = dtype_of(model)
    if dtype is None:
        return None
    builder = ProgramBuilder(dtype, outputs, int8=int8)
    describe(builder)
    known[name] = KnownProgram.of(builder.build(), model)
    return known[name].program


def dtype_of(model: nn.Module) -> torch.dtype | None:
    """The type in which a program computes: that of all weights; None if they differ or have no compiled form."""
    found = {tensor.dtype for tensor in model.parameters()} or {
        tensor.dtype for tensor in model.buffers() if tensor.is_floating_point()
    }
    return found.pop() if len(found) == 1 and found <= set(EXACT) else None


def store_in_int8(model: nn.Module) -> None:
    """Round the matrices of a model's step to int8 and scales, and store them so in its program."""
    assert isinstance(model, Compilable)
    dtype = dtype_of(model)
    assert dtype is not None
    builder = ProgramBuilder(dtype, model.vocabulary)
    model.describe_step(builder)
    with torch.no_grad():
        for matrix in builder.matrices:
            rounded, scales = quantize(matrix.detach())
            matrix.detach().copy_(rounded * scales[:, None])
    _programs.int8.add(model)
    _programs.of_model.pop(model, None)


def run(program: Program, tokens: Tensor, state: State) -> Tensor:
    """Append tokens (B, K) to the state, in place: the result of the program for each token, (B, K, outputs)."""
    result = torch.empty(*tokens.shape, program.outputs, dtype=program.dtype)
    _run(program, tokens, _of_batch(result, state))
    return result


def run_separately(program: Program, source: Sequences, state: State) -> Tensor:
    """The results (B, T, outputs) of a program that reads whole sequences, one after the other; 0 past their ends.

    No time is lost on padding, and the tokens of one row are enough for products at full speed.
    """
    result = torch.zeros(*source.ids.shape, program.outputs, dtype=program.dtype)
    where = _of_batch(result, state)
    for row, length in enumerate(source.lengths.tolist()):
        one = slice(row, row + 1)
        _run(program, source.ids[one, :length], Addresses(where.pointers[one], where.strides[one]))
    return result


def _run(program: Program, tokens: Tensor, where: Addresses) -> None:
    rows = len(tokens)
    nothing = Choices(np.empty((rows, 0), np.int64), np.empty((rows, 0)))
    ended = np.zeros(rows, np.bool_)
    _advance(program, tokens, where, nothing, np.empty((rows, 0, 0)), np.zeros((rows, 4)), NOTHING, ended)


class Choices(NamedTuple):
    """Chosen tokens and their log-probabilities."""

    ids: npt.NDArray[np.int64]  # (B, S)
    log_probs: npt.NDArray[np.float64]


def generate(
    program: Program,
    tokens: Tensor,
    state: State,
    noise: npt.NDArray[np.float64],
    rules: npt.NDArray[np.float64],
    suppressed: npt.NDArray[np.int64],
    ended: npt.NDArray[np.bool_],
    end: int | None,
) -> Choices:
    """Read a token (B,) in each row and choose the next, at most as many times as there is noise (B, S, V or 0).

    `rules` (B, 4) are temperature, top-k, top-p and min-p of each row, 0 for none; a temperature of 0 is greedy. The
    last token chosen is not read. Fewer tokens are chosen if half of the rows `ended` (B,) before or by the token
    `end`, so that the caller can continue without them.
    """
    rows, steps, _ = noise.shape
    choices = Choices(np.empty((rows, steps), np.int64), np.empty((rows, steps)))
    result = torch.empty(rows, 1, program.outputs, dtype=program.dtype)
    _advance(program, tokens[:, None], _of_batch(result, state), choices, noise, rules, suppressed, ended.copy(), end)
    count = int((choices.ids[0] >= 0).sum())
    return Choices(choices.ids[:, :count], choices.log_probs[:, :count])


class RowState:
    """The state of one row, which stays where it is while the row is decoded with others."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.tensors = tensors(state)
        self.addresses = _addresses(self.tensors)


def generate_separately(
    program: Program,
    tokens: npt.NDArray[np.int64],
    states: Sequence[RowState],
    noise: npt.NDArray[np.float64],
    rules: npt.NDArray[np.float64],
    suppressed: npt.NDArray[np.int64],
) -> tuple[Choices, Tensor]:
    """As `generate` for rows with a state each, and the logits (B, V) of the last step.

    No caches are merged or copied, so rows may join and leave between calls at no cost. Only vectors that enter
    products of all rows, such as the hidden state of an LSTM, are brought together for the call.
    """
    rows, steps, _ = noise.shape
    choices = Choices(np.empty((rows, steps), np.int64), np.empty((rows, steps)))
    result = torch.empty(rows, 1, program.outputs, dtype=program.dtype)
    together = {slot: torch.cat([one.tensors[slot] for one in states]) for slot in program.state_vectors}
    own = _of_rows([result], rows)
    pointers = np.stack([one.addresses.pointers for one in states])
    strides = np.stack([one.addresses.strides for one in states])
    for slot, tensor in together.items():
        [pointers[:, slot]], [strides[:, slot]] = (part.swapaxes(0, 1) for part in _of_rows([tensor], rows))
    where = Addresses(
        np.concatenate([np.zeros((rows, RESULT), np.int64), own.pointers, pointers], axis=1),
        np.concatenate([np.zeros((rows, RESULT, 3), np.int64), own.strides, strides], axis=1),
    )
    ended = np.zeros(rows, np.bool_)
    _advance(program, torch.from_numpy(tokens[:, None]), where, choices, noise, rules, suppressed, ended)
    for slot, tensor in together.items():
        for row, one in enumerate(states):
            one.tensors[slot].copy_(tensor[row : row + 1])
    return choices, result[:, 0]


class HypothesisStates:
    """The states of hypotheses of a beam search, and the logits of their next tokens.

    There is a row for each hypothesis, but the tensors of the source have one for each prompt.
    """

    def __init__(self, program: Program, first: Step, rows: int) -> None:
        """From the steps of the prompts, whose rows are the first ones. Their state is taken over."""
        self.program = program
        self.logits = torch.empty(rows, 1, program.outputs, dtype=program.dtype)
        self.logits[: len(first.logits)] = first.logits[:, -1:]
        slots = iter(range(len(tensors(first.state))))

        def with_room(tensor: Tensor) -> Tensor:
            if next(slots) in program.source_slots:
                return tensor
            if rows == len(tensor):
                return tensor.contiguous()  # each row is copied as a whole
            found = tensor.new_zeros(rows, *tensor.shape[1:])
            found[: len(tensor)] = tensor
            return found

        self.state = map_state(with_room, first.state)

    def search(self, beams: Beams, steps: int, suppressed: npt.NDArray[np.int64], end: int | None) -> None:
        """Let the beams grow by so many tokens, for which the state has room, or until none is live."""
        from chainrule.kernels.beams import CACHE, OF_SOURCE, WHOLE

        program, memories = self.program, tensors(self.state)
        kinds = np.full(FIRST_STATE + len(memories), WHOLE)
        sizes, sources = np.zeros_like(kinds), np.zeros((len(beams.live), len(kinds)), np.int64)
        for slot, tensor in enumerate(memories, start=FIRST_STATE):
            sizes[slot] = tensor.nbytes // len(tensor)
            if slot - FIRST_STATE in program.source_slots:
                kinds[slot] = OF_SOURCE
                sources[:, slot] = (
                    tensor.data_ptr() + np.arange(len(sources)) * tensor.stride(0) * tensor.element_size()
                )
            elif slot - FIRST_STATE in program.cache_slots:
                kinds[slot] = CACHE
        rows = len(self.logits)
        nothing = Choices(np.empty((rows, steps), np.int64), np.empty((rows, steps)))
        _advance(
            program,
            torch.empty(rows, 1, dtype=torch.int64),
            _of_batch(self.logits, self.state),
            nothing,
            np.empty((rows, steps, 0)),
            np.zeros((rows, 4)),
            suppressed,
            np.zeros(rows, np.bool_),
            end,
            beams._replace(kinds=kinds, sizes=sizes, sources=sources),
        )


class Addresses(NamedTuple):
    """Address and strides in bytes of every memory; see `program.CONSTANT` for their order."""

    pointers: npt.NDArray[np.int64]  # (S,), or (B, S) for each row
    strides: npt.NDArray[np.int64]  # (S, 3), or (B, S, 3)


def _advance(
    program: Program,
    tokens: Tensor,
    where: Addresses,
    choices: Choices,
    noise: npt.NDArray[np.float64],
    rules: npt.NDArray[np.float64],
    suppressed: npt.NDArray[np.int64],
    ended: npt.NDArray[np.bool_],
    end: int | None = None,
    beams: Beams | None = None,
) -> None:
    from chainrule.kernels.beams import NO_BEAMS
    from chainrule.kernels.caching import load_or_compile
    from chainrule.kernels.interpreter import advance

    arguments = (
        program.operations,
        program.values,
        program.memories,
        program.offsets,
        *where,
        program.first_states,
        program.positions,
        program.counters,
        program.working_size,
        program.sequential,
        np.ascontiguousarray(tokens.numpy()),
        *choices,
        noise,
        rules,
        suppressed,
        ended,
        -1 if end is None else end,
        NO_BEAMS if beams is None else beams,
        LIKE[program.dtype],
    )
    if program.dtype not in _programs.ready:
        load_or_compile(advance, arguments)
        _programs.ready.add(program.dtype)
    advance(*arguments)


def _of_batch(result: Tensor, state: State) -> Addresses:
    """The memories of a batch whose rows share a state."""
    return _of_rows([result, *tensors(state)], len(result), first=RESULT)


def _of_rows(memories: Sequence[Tensor], rows: int, *, first: int = 0) -> Addresses:
    """The memories of each row, in tensors with the batch as first axis, numbered from `first` on."""
    pointers, strides = _addresses(memories, first)
    return Addresses(pointers + np.arange(rows)[:, None] * strides[:, 0], strides[None].repeat(rows, 0))


def _addresses(memories: Sequence[Tensor], first: int = 0) -> Addresses:
    rows = [(0, 0, 0, 0)] * first
    for tensor in memories:
        size = tensor.itemsize
        one, two, three, *_ = *tensor.stride(), 0, 0, 0
        rows.append((tensor.data_ptr(), one * size, two * size, three * size))
    numbers = np.array(rows, dtype=np.int64)
    return Addresses(numbers[:, 0].copy(), numbers[:, 1:].copy())


LIKE = {torch.float32: np.zeros(1, dtype=np.float32), torch.float64: np.zeros(1, dtype=np.float64)}
NOTHING = np.empty(0, dtype=np.int64)
