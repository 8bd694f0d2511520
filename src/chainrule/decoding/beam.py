"""Beam search: the likeliest continuations of each prompt, as far as a beam of bounded width can see.

The beam holds the `width` likeliest hypotheses, finished or not. A finished one stays and takes up its place while
it is among them; it can therefore end the search, but is itself never lost: all finished hypotheses are ranked at the
end, by

    score = log P(generated | prompt, source) / normaliser(generated_length, length_penalty)

where the length counts EOS, as the probability does, and never the prompt. A width of 1 is greedy decoding; a width of
all sequences there are is exhaustive search.

Shape letters: R rows of the batch, those of all beams together; V vocabulary.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from chainrule.decoding.choose import FORBIDDEN
from chainrule.decoding.generate import NOT_A_NUMBER, Finish, Generation, Stop, check_request, one_to_each
from chainrule.decoding.ranking import Normaliser, power
from chainrule.decoding.reading import Reader
from chainrule.errors import DecodingError
from chainrule.interface.base import AutoregressiveModel
from chainrule.types import Sequences, Step, map_state, select


class Hypothesis(NamedTuple):
    """A continuation that is not finished."""

    ids: list[int]
    log_prob: float
    row: int  # of the batch; of a new hypothesis, the row that it grew from


Choice: TypeAlias = tuple[float, int]
"""A possible next token of a row: its cost, −log P in nats, and its id. Less is better, in this order."""

Rank: TypeAlias = tuple[bool, float]
"""Whether a result ended by itself, where that matters, and its score; more is better."""


class Rules(NamedTuple):
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
        """No hypothesis that grows from this one can rank better.

        More tokens never raise the log-probability, and the normaliser is monotone in the length, so the best is at
        one of the two ends: a single token more, or as many as are allowed.
        """
        return True, max(self.score(log_prob, length + 1), self.score(log_prob, self.length))


@dataclass
class Beam:
    """The hypotheses of one prompt."""

    rules: Rules
    live: list[Hypothesis]  # likeliest first
    finished: list[tuple[Rank, Generation]] = field(default_factory=list)  # in the order of finishing
    taken: list[float] = field(default_factory=list)  # the costs of the finished ones, ascending

    def grow(self, choices: Sequence[Sequence[Choice]]) -> None:
        """Go on with the choices of each live hypothesis' row, as far as they are among the `width` likeliest of all.

        Of equals, the one from the likelier parent and with the lower id is taken first.
        """
        taken, parents, self.live = list(self.taken), self.live, []
        candidates = sorted(
            (cost - parent.log_prob, rank, token)
            for rank, parent in enumerate(parents)
            for cost, token in choices[parent.row]
        )
        for place, (cost, rank, token) in enumerate(candidates):
            if place + bisect_right(taken, cost) >= self.rules.width:
                break
            ids = [*parents[rank].ids, token]
            finish = self._finish(ids)
            if finish is None:
                self.live.append(Hypothesis(ids, -cost, parents[rank].row))
            else:
                generation = Generation(ids[:-1] if finish == "eos" else ids, -cost, finish)
                self.finished.append((self.rules.rank(-cost, len(ids), finish), generation))
                insort(self.taken, cost)
        if not self._can_improve():
            self.live = []

    def best(self) -> list[Generation]:
        """The finished hypotheses by rank; of equals, the one that was finished first."""
        ranked = sorted(self.finished, key=lambda entry: entry[0], reverse=True)  # which keeps the order of equals
        return [generation for _, generation in ranked[: self.rules.num]]

    def _finish(self, ids: Sequence[int]) -> Finish | None:
        if ids[-1] == self.rules.eos:
            return "eos"
        if self.rules.stop is not None and self.rules.stop(ids):
            return "stop"
        return "length" if len(ids) == self.rules.length else None

    def _can_improve(self) -> bool:
        """Could a live hypothesis still be among the results? Exact: nothing that could be found is given up."""
        if not self.live or len(self.finished) < self.rules.num:
            return bool(self.live)
        to_beat = heapq.nlargest(self.rules.num, (rank for rank, _ in self.finished))[-1]
        likeliest = self.live[0]
        return self.rules.best_rank(likeliest.log_prob, len(likeliest.ids)) > to_beat


@torch.inference_mode()
def beam_search(
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
) -> list[list[Generation]]:
    """The `num` best continuations of each prompt, best first; fewer where fewer are possible.

    Nothing is drawn and ties are broken by rank and id, so the result is a function of model and prompt, whatever
    other prompts are beside it. A source makes row i the search for translations of source i; `length` may then be a
    limit for each. With `ended_first`, results that reached EOS rank before those that the limit has cut.
    """
    lengths = one_to_each(length, prompts)
    check_request(model, prompts, length=min(lengths, default=1), eos=eos, suppress=suppress, source=source)
    if not 1 <= num <= width:
        raise DecodingError(f"{num} results were asked of a beam of width {width}; ask for 1 to {max(1, width)}")
    if not prompts:
        return []
    suppressed = torch.tensor(sorted(set(suppress)), dtype=torch.int64, device=model.device)
    beams = [
        Beam(
            Rules(width, limit, eos, length_penalty, normaliser, num, stop, ended_first),
            [Hypothesis([], 0.0, row)],
        )
        for row, limit in enumerate(lengths)
    ]
    rows = Rows(Reader(model, source), prompts)
    while True:
        choices = likeliest(rows.step.logits[:, -1], width, suppressed)
        for beam in beams:
            if beam.live:
                beam.grow(choices)
        if not any(beam.live for beam in beams):
            return [beam.best() for beam in beams]
        rows.advance(beams)


def likeliest(logits: Tensor, count: int, suppressed: Tensor | None = None) -> list[list[Choice]]:
    """The `count` best possible tokens of each row of (R, V), best first; of equals the lower id.

    Logits are compared, and not log-probabilities: rounding could make equals of what was not. `topk` does not say
    which of several equal entries it returns. Asked for one more than needed it shows where that matters, and there
    all entries from the last value upwards are put in order.
    """
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
            raise DecodingError(NOT_A_NUMBER)
        if len(best) > count and best[count - 1] == best[count] > FORBIDDEN:
            tokens = (logits[row] >= best[count]).nonzero()[:, 0].tolist()
            best = logits[row, tokens].tolist()
        ranked = sorted((normaliser - logit, token) for logit, token in zip(best, tokens, strict=True))
        choices.append([choice for choice in ranked[:count] if choice[0] < math.inf])
    return choices


IDLE = 0.25
"""The share of rows that may compute for nobody before the batch is packed anew, which copies all of its state."""


class Rows:
    """The batch: the state of every live hypothesis, each in a row.

    A state may be large, so as little of it as possible is copied. The first hypothesis that grows from a row stays
    in it. Others move into rows that nobody needs any more, in place.
    """

    def __init__(self, reader: Reader, prompts: Sequence[Sequence[int]]) -> None:
        self.reader = reader
        self.prompts = prompts
        self.owners = list(range(len(prompts)))  # the prompt of each row, as the next
        self.histories = [list(prompt) for prompt in prompts]
        self.step: Step = reader.read(self.histories, self.owners)
        self._own = False  # the first state may share memory with the source that it was made from

    def advance(self, beams: Sequence[Beam]) -> None:
        """Read the last token of every live hypothesis, and tell it the row in which it now is."""
        live = [(owner, place) for owner, beam in enumerate(beams) for place in range(len(beam.live))]
        found = [beams[owner].live[place] for owner, place in live]
        rows = self._settle([hypothesis.row for hypothesis in found])
        tokens = [0] * len(self.histories)
        for (owner, place), hypothesis, row in zip(live, found, rows, strict=True):
            beams[owner].live[place] = hypothesis._replace(row=row)
            tokens[row] = hypothesis.ids[-1]
            self.owners[row] = owner
            self.histories[row] = [*self.prompts[owner], *hypothesis.ids[:-1]]
        for history, token in zip(self.histories, tokens, strict=True):  # those of nobody's rows too: they read on
            history.append(token)
        device = self.reader.model.device
        self.step = self.reader.advance(
            torch.tensor(tokens, device=device), self.step.state, self.histories, self.owners
        )

    def _settle(self, parents: Sequence[int]) -> list[int]:
        """A row for every new hypothesis, holding the state of its parent's row."""
        count = len(self.histories)
        free = sorted(set(range(count)) - set(parents))
        extra = len(parents) - (count - len(free))  # hypotheses that cannot stay in their parent's row
        if extra > len(free) or (extra and not self._own) or len(free) - extra > IDLE * count:
            self._pack(parents)
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
            self._move(moves)
        return rows

    def _pack(self, parents: Sequence[int]) -> None:
        """A new batch of these rows."""
        places = torch.tensor(parents, device=self.reader.model.device)
        self.step = self.step._replace(state=select(self.step.state, places))
        self.owners = [self.owners[row] for row in parents]
        self.histories = [list(self.histories[row]) for row in parents]
        self._own = True

    def _move(self, moves: dict[int, int]) -> None:
        """Copy rows over others: {row: the one whose state it gets}. No row is both."""

        def copy(tensor: Tensor) -> Tensor:
            for row, parent in moves.items():  # index_copy_ would need a copy of what it copies
                tensor[row].copy_(tensor[parent])
            return tensor

        self.step = self.step._replace(state=map_state(copy, self.step.state))
