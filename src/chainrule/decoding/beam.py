"""Beam search: the most probable continuations of each prompt, within a beam of bounded width.

The beam holds the `width` most probable hypotheses, finished or not. A finished one keeps its slot while it is among
them, so it can end the search, but it is never lost: in the end all finished hypotheses are ranked by

    score = log P(generated | prompt, source) / normaliser(generated_length, length_penalty)

where the length counts EOS, as the probability does, and never the prompt. A longer text has a lower probability, so
ranking by log P alone prefers short texts. A width of 1 is greedy decoding; a width of the number of possible sequences
is exhaustive search.

Shape letters: R rows of the batch, those of all beams together; V vocabulary.
"""

from __future__ import annotations

import contextlib
import heapq
import math
from bisect import bisect_right, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, NotRequired, TypeAlias, TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor

from chainrule.decoding.compiled_beam import CompiledBeamSearch
from chainrule.decoding.generation import Finish, Generation, Stop, check_request, one_length_each
from chainrule.decoding.incremental import IncrementalReader
from chainrule.decoding.sampling import FORBIDDEN
from chainrule.errors import DataError, DecodingError, NotANumber, in_units
from chainrule.interface.base import AutoregressiveModel
from chainrule.kernels import step as kernels
from chainrule.memory import available_memory
from chainrule.types import Sequences, State, Step, map_state, select, tensors

Normaliser: TypeAlias = Callable[[int, float], float]
"""(length, α) to the divisor of log P. It must be monotone in the length, which makes the early stop exact."""


def power(length: int, penalty: float) -> float:
    """length^α: α = 0 ranks by probability, α = 1 by the mean per token."""
    return float(length**penalty)


def wu(length: int, penalty: float) -> float:
    """((5 + length) / 6)^α (Wu et al. 2016, equation 14): asymptotically the same, weaker for short texts."""
    return float(((5 + length) / 6) ** penalty)


NORMALISERS: Mapping[str, Normaliser] = {"power": power, "wu": wu}


class Hypothesis(NamedTuple):
    """An unfinished continuation."""

    ids: list[int]
    log_prob: float
    row: int  # of the batch; for a new hypothesis, the row of its parent


Choice: TypeAlias = tuple[float, int]
"""A possible next token of a row: its cost, −log P in nats, and its id. Lower is better, in this order."""

Rank: TypeAlias = tuple[bool, float]
"""Whether a result ended by itself, where that matters, and its score; higher is better."""


class BeamRules(NamedTuple):
    """How one prompt is searched."""

    width: int
    length: int
    eos: int | None
    length_penalty: float
    normaliser: Normaliser
    num: int
    stop: Stop | None
    ended_first: bool

    def score(self, log_prob: float, length: int) -> float:
        return log_prob / self.normaliser(length, self.length_penalty)

    def rank(self, log_prob: float, length: int, finish: Finish) -> Rank:
        return not (self.ended_first and finish == "length"), self.score(log_prob, length)

    def best_rank(self, log_prob: float, length: int) -> Rank:
        """An upper bound on the rank of all hypotheses that grow from this one.

        More tokens never raise the log-probability, and the normaliser is monotone in the length, so the maximum is at
        one of the two ends: one token more, or as many as are allowed.
        """
        return True, max(self.score(log_prob, length + 1), self.score(log_prob, self.length))


@dataclass
class Beam:
    """The hypotheses of one prompt."""

    rules: BeamRules
    live: list[Hypothesis]  # most probable first
    finished: list[tuple[Rank, Generation]] = field(default_factory=list)  # in the order of finishing
    finished_costs: list[float] = field(default_factory=list)  # ascending

    def grow(self, choices: Sequence[Sequence[Choice]]) -> None:
        """Extend live hypotheses by the choices of their rows, keeping the `width` most probable of all.

        Ties are broken by the parent's rank, then by the lower id.
        """
        finished_costs, parents, self.live = list(self.finished_costs), self.live, []
        candidates = sorted(
            (cost - parent.log_prob, rank, token)
            for rank, parent in enumerate(parents)
            for cost, token in choices[parent.row]
        )
        for index, (cost, rank, token) in enumerate(candidates):
            if index + bisect_right(finished_costs, cost) >= self.rules.width:
                break
            ids = [*parents[rank].ids, token]
            finish = self._finish(ids)
            if finish is None:
                self.live.append(Hypothesis(ids, -cost, parents[rank].row))
            else:
                generation = Generation(ids[:-1] if finish == "eos" else ids, -cost, finish)
                self.finished.append((self.rules.rank(-cost, len(ids), finish), generation))
                insort(self.finished_costs, cost)
        if not self._can_improve():
            self.live = []

    def best(self) -> list[Generation]:
        """The finished hypotheses by rank; ties in the order of finishing."""
        ranked = sorted(self.finished, key=lambda entry: entry[0], reverse=True)  # stable
        return [generation for _, generation in ranked[: self.rules.num]]

    def _finish(self, ids: Sequence[int]) -> Finish | None:
        if ids[-1] == self.rules.eos:
            return "eos"
        if self.rules.stop is not None and self.rules.stop(ids):
            return "stop"
        return "length" if len(ids) == self.rules.length else None

    def _can_improve(self) -> bool:
        """Whether a live hypothesis could still be among the results. Exact: no possible result is lost."""
        if not self.live or len(self.finished) < self.rules.num:
            return bool(self.live)
        to_beat = heapq.nlargest(self.rules.num, (rank for rank, _ in self.finished))[-1]
        best = self.live[0]
        return self.rules.best_rank(best.log_prob, len(best.ids)) > to_beat


class SearchOptions(TypedDict):
    """Options of `beam_search` and `beam_steps`."""

    width: int
    length: int | Sequence[int]
    eos: NotRequired[int | None]
    length_penalty: NotRequired[float]
    normaliser: NotRequired[Normaliser]
    num: NotRequired[int]
    ended_first: NotRequired[bool]
    suppress: NotRequired[Sequence[int]]
    stop: NotRequired[Stop | None]
    source: NotRequired[Sequences | None]


def beam_search(
    model: AutoregressiveModel,
    prompts: Sequence[Sequence[int]],
    *,
    progress: Callable[[float], None] | None = None,
    **options: Unpack[SearchOptions],
) -> list[list[Generation]]:
    """The `num` best continuations of each prompt, best first; fewer if fewer are possible.

    The search is deterministic, ties are broken by rank and id, and the result for a prompt does not depend on the
    other prompts. With a source, row i is conditioned on source i; `length` may then be a limit for each. With
    `ended_first`, results that reached EOS rank before those cut by the limit. `progress` receives the fraction of the
    tokens that are searched. A beam that would not fit into memory is refused.
    """
    rules = beam_rules(model, prompts, **options)
    compiled = CompiledBeamSearch.of(model, prompts, rules, options.get("suppress", ()), options.get("source"))
    if compiled is not None and (searched := compiled.search(prompts, progress)) is not None:
        return searched
    longest = max((one.length for one in rules), default=1)
    found: list[Beam] = []
    for done, beams in enumerate(beam_steps(model, prompts, **options), start=1):
        found = beams
        if progress is not None:
            progress(min(1.0, done / longest))
    return [beam.best() for beam in found]


def beam_rules(
    model: AutoregressiveModel,
    prompts: Sequence[Sequence[int]],
    *,
    width: int,
    length: int | Sequence[int],
    eos: int | None = None,
    length_penalty: float = 1.0,
    normaliser: Normaliser = power,
    num: int = 1,
    ended_first: bool = False,
    suppress: Sequence[int] = (),
    stop: Stop | None = None,
    source: Sequences | None = None,
) -> list[BeamRules]:
    """The rules of each prompt; raises DecodingError for options that cannot be met."""
    lengths = one_length_each(length, prompts)
    check_request(model, prompts, length=min(lengths, default=1), eos=eos, suppress=suppress, source=source)
    if not 1 <= num <= width:
        raise DecodingError(f"{num} results were requested from a beam of width {width}; request 1 to {max(1, width)}")
    return [BeamRules(width, limit, eos, length_penalty, normaliser, num, stop, ended_first) for limit in lengths]


@torch.inference_mode()
def beam_steps(
    model: AutoregressiveModel, prompts: Sequence[Sequence[int]], **options: Unpack[SearchOptions]
) -> Iterator[list[Beam]]:
    """`beam_search`, one token at a time: the beams after each step, which later steps change."""
    rules = beam_rules(model, prompts, **options)
    if not prompts:
        return
    suppressed = torch.tensor(sorted(set(options.get("suppress", ()))), dtype=torch.int64, device=model.device)
    beams = [Beam(one, [Hypothesis([], 0.0, row)]) for row, one in enumerate(rules)]
    width, source = options["width"], options.get("source")
    batch = BeamBatch(IncrementalReader(model, source), prompts)
    if width >= WIDE:
        require_beam_memory(model, batch.step, width, [one.length for one in rules])
    while True:
        choices = top_choices(batch.step.logits[:, -1], width, suppressed)
        for beam in beams:
            if beam.live:
                beam.grow(choices)
        yield beams
        if not any(beam.live for beam in beams):
            return
        batch.advance(beams)


def require_beam_memory(model: AutoregressiveModel, step: Step, width: int, lengths: Sequence[int]) -> None:
    """Raise DecodingError if the hypotheses of all beams, each with its state and next tokens, exceed the memory."""
    vocabulary, rows = model.vocabulary, step.logits.shape[0]

    def size(state: State) -> int:
        return sum(tensor.nbytes for tensor in tensors(state))

    first = select(step.state, torch.zeros(1, dtype=torch.int64, device=model.device))
    before = grown = size(first)
    with contextlib.suppress(DataError):  # the prompt fills the context, so the state does not grow
        grown = size(model.extend(torch.zeros(1, 1, dtype=torch.int64, device=model.device), first).state)
    state = size(step.state) // rows + max(0, grown - before) * max(lengths)

    def needed(width: int) -> int:
        choices = min(width, vocabulary) * CHOICE_BYTES + vocabulary * step.logits.element_size()
        hypotheses = sum(int(min(width, float(vocabulary) ** min(limit, 64))) for limit in lengths)
        return hypotheses * (2 * state + choices)

    if needed(width) > (memory := available_memory(model.device)):
        fits = width
        while fits > 1 and needed(fits) > memory:
            fits //= 2
        raise DecodingError(
            f"a beam of width {width} takes about {in_units(needed(width))} of memory, and {in_units(memory)} is "
            f"available; a width of {fits} fits"
        )


def top_choices(logits: Tensor, count: int, suppressed: Tensor | None = None) -> list[list[Choice]]:
    """The `count` most probable tokens of each row of (R, V), best first; ties by the lower id.

    Logits are compared instead of log-probabilities, whose rounding could create ties. `topk` does not define which of
    several equal entries it returns. Requesting one more than needed shows where that matters, and there all entries
    from the last value upwards are sorted.
    """
    if kernels.is_enabled() and logits.device.type == "cpu" and logits.dtype in kernels.EXACT and count <= MAX_COMPILED:
        return _compiled_choices(logits, min(count, logits.shape[1]), suppressed)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    normalisers: list[float] = logits.logsumexp(-1).tolist()
    if suppressed is not None and len(suppressed):
        logits = logits.index_fill(-1, suppressed, FORBIDDEN)
    vocabulary = logits.shape[1]
    count = min(count, vocabulary)
    values, ids = (found.tolist() for found in logits.topk(min(count + 1, vocabulary)))
    choices = []
    for row, (best, tokens, normaliser) in enumerate(zip(values, ids, normalisers, strict=True)):
        if math.isnan(normaliser):
            raise NotANumber()
        if len(best) > count and best[count - 1] == best[count] > FORBIDDEN:
            tokens = (logits[row] >= best[count]).nonzero()[:, 0].tolist()
            best = logits[row, tokens].tolist()
        ranked = sorted((normaliser - logit, token) for logit, token in zip(best, tokens, strict=True))
        choices.append([choice for choice in ranked[:count] if choice[0] < math.inf])
    return choices


def _compiled_choices(logits: Tensor, count: int, suppressed: Tensor | None) -> list[list[Choice]]:
    """The same in one pass over memory for each row."""
    from chainrule.kernels.caching import load_or_compile
    from chainrule.kernels.ranking import best_tokens

    rows = len(logits)
    ids, log_probs = np.empty((rows, count), np.int64), np.empty((rows, count))
    left_out = kernels.NOTHING if suppressed is None else suppressed.numpy()
    arguments = (left_out, ids, log_probs, logits.contiguous().numpy())
    if logits.dtype not in _ready:
        load_or_compile(best_tokens, arguments)
        _ready.add(logits.dtype)
    best_tokens(*arguments)
    if np.isnan(log_probs[:, -1]).any():
        raise NotANumber()
    return [
        [(-nats, token) for nats, token in zip(found, tokens, strict=True) if token >= 0]
        for found, tokens in zip(log_probs.tolist(), ids.tolist(), strict=True)
    ]


_ready: set[torch.dtype] = set()  # types for which the compiled function is loaded

MAX_COMPILED = 64  # choices of a row; more are sorted by torch
WIDE = 1000  # from this width on the memory of a beam is estimated first
CHOICE_BYTES = 250  # of Python objects for each next token of each hypothesis, measured

MAX_IDLE = 0.25
"""Maximum fraction of rows without a hypothesis before the batch is compacted, which copies all of its state."""


class BeamBatch:
    """The state of every live hypothesis, one per row.

    A state may be large, so as little of it as possible is copied. The first hypothesis that grows from a row stays
    in it. Others are copied in place into rows that are no longer needed.
    """

    def __init__(self, reader: IncrementalReader, prompts: Sequence[Sequence[int]]) -> None:
        self.reader = reader
        self.prompts = prompts
        self.owners = list(range(len(prompts)))  # the prompt of each row
        self.histories = [list(prompt) for prompt in prompts]
        self.step: Step = reader.read(self.histories, self.owners)
        self._owns_state = False  # the first state may share memory with the source

    def advance(self, beams: Sequence[Beam]) -> None:
        """Read the last token of every live hypothesis and update the row of each."""
        live = [(owner, index) for owner, beam in enumerate(beams) for index in range(len(beam.live))]
        found = [beams[owner].live[index] for owner, index in live]
        rows = self._assign_rows([hypothesis.row for hypothesis in found])
        tokens = [0] * len(self.histories)
        for (owner, index), hypothesis, row in zip(live, found, rows, strict=True):
            beams[owner].live[index] = hypothesis._replace(row=row)
            tokens[row] = hypothesis.ids[-1]
            self.owners[row] = owner
            self.histories[row] = [*self.prompts[owner], *hypothesis.ids[:-1]]
        for history, token in zip(self.histories, tokens, strict=True):  # idle rows read tokens too
            history.append(token)
        device = self.reader.model.device
        self.step = self.reader.advance(
            torch.tensor(tokens, device=device), self.step.state, self.histories, self.owners
        )

    def _assign_rows(self, parents: Sequence[int]) -> list[int]:
        """A row for every new hypothesis, holding the state of its parent's row."""
        count = len(self.histories)
        free = sorted(set(range(count)) - set(parents))
        extra = len(parents) - (count - len(free))  # hypotheses that cannot stay in their parent's row
        if extra > len(free) or (extra and not self._owns_state) or len(free) - extra > MAX_IDLE * count:
            self._select(parents)
            return list(range(len(parents)))
        rows, moves, used = [], {}, set[int]()
        for parent in parents:
            row = parent
            if parent in used:
                row = free.pop()
                moves[row] = parent
            used.add(row)
            rows.append(row)
        if moves:
            self._copy(moves)
        return rows

    def _select(self, parents: Sequence[int]) -> None:
        """Replace the batch by these of its rows."""
        indices = torch.tensor(parents, device=self.reader.model.device)
        self.step = self.step._replace(state=select(self.step.state, indices))
        self.owners = [self.owners[row] for row in parents]
        self.histories = [list(self.histories[row]) for row in parents]
        self._owns_state = True

    def _copy(self, moves: dict[int, int]) -> None:
        """Copy states in place, {target row: source row}. No row is both."""

        def copy(tensor: Tensor) -> Tensor:
            for row, parent in moves.items():  # index_copy_ would need a temporary copy
                tensor[row].copy_(tensor[parent])
            return tensor

        self.step = self.step._replace(state=map_state(copy, self.step.state))
