"""Beam search: the likeliest continuations of each prompt, as far as a beam of bounded width can see.

The beam holds the `width` likeliest hypotheses, finished or not. A finished one stays and takes up its place while
it is among them; it can therefore end the search, but is itself never lost: all finished hypotheses are ranked at the
end, by

    score = log P(generated | prompt) / generated_length ** length_penalty

where the length counts EOS, as the probability does, and never the prompt. A width of 1 is greedy decoding; a width of
all sequences there are is exhaustive search.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from chainrule.decoding.choose import FORBIDDEN, precision
from chainrule.decoding.generate import NOT_A_NUMBER, Finish, Generation, Stop, check_request
from chainrule.decoding.reading import Reader
from chainrule.errors import DecodingError
from chainrule.models.base import AutoregressiveModel
from chainrule.types import Sequences, select


class Hypothesis(NamedTuple):
    """A continuation that is not finished."""

    ids: list[int]
    log_prob: float
    parent: int  # the row of the batch that it grew from


class Candidate(NamedTuple):
    """One more token after a live hypothesis."""

    log_prob: float  # of the whole hypothesis
    parent: int  # among the live hypotheses of its beam
    token: int


class Rules(NamedTuple):
    """What all beams of a search have in common."""

    width: int
    length: int
    eos: int | None
    length_penalty: float
    num: int
    stop: Stop | None

    def score(self, log_prob: float, length: int) -> float:
        return float(log_prob / length**self.length_penalty)

    def best_score(self, log_prob: float, length: int) -> float:
        """No hypothesis that grows from this one can score better.

        More tokens never raise the log-probability, and the penalty is monotone in the length, so the best is at one
        of the two ends: a single token more, or as many as are allowed.
        """
        return max(self.score(log_prob, length + 1), self.score(log_prob, self.length))


@dataclass
class Beam:
    """The hypotheses of one prompt."""

    rules: Rules
    live: list[Hypothesis]  # likeliest first
    finished: list[tuple[float, Generation]] = field(default_factory=list)  # with scores, in the order of finishing
    taken: list[float] = field(default_factory=list)  # -log_prob of the finished ones, ascending

    def grow(self, candidates: Sequence[Candidate], first_row: int) -> None:
        """Keep those of the candidates, likeliest first, that belong to the `width` likeliest hypotheses of all."""
        taken, parents, self.live = list(self.taken), self.live, []
        for rank, (log_prob, parent, token) in enumerate(candidates):
            if rank + bisect_right(taken, -log_prob) >= self.rules.width:
                break
            ids = [*parents[parent].ids, token]
            finish = self._finish(ids)
            if finish is None:
                self.live.append(Hypothesis(ids, log_prob, first_row + parent))
            else:
                score = self.rules.score(log_prob, len(ids))
                self.finished.append((score, Generation(ids[:-1] if finish == "eos" else ids, log_prob, finish)))
                insort(self.taken, -log_prob)
        if not self._can_improve():
            self.live = []

    def best(self) -> list[Generation]:
        """The finished hypotheses by score; of equals, the one that was finished first."""
        ranked = sorted(self.finished, key=lambda scored: -scored[0])
        return [generation for _, generation in ranked[: self.rules.num]]

    def _finish(self, ids: Sequence[int]) -> Finish | None:
        if ids[-1] == self.rules.eos:
            return "eos"
        if self.rules.stop is not None and self.rules.stop(ids):
            return "stop"
        return "length" if len(ids) == self.rules.length else None

    def _can_improve(self) -> bool:
        """Could a live hypothesis still be among the results?"""
        if not self.live or len(self.finished) < self.rules.num:
            return bool(self.live)
        to_beat = heapq.nlargest(self.rules.num, (score for score, _ in self.finished))[-1]
        likeliest = self.live[0]
        return self.rules.best_score(likeliest.log_prob, len(likeliest.ids)) > to_beat


@torch.inference_mode()
def beam_search(
    model: AutoregressiveModel,
    prompts: Sequence[Sequence[int]],
    *,
    width: int,
    length: int,
    eos: int | None = None,
    length_penalty: float = 1.0,
    num: int = 1,
    suppress: Sequence[int] = (),
    stop: Stop | None = None,
    source: Sequences | None = None,
) -> list[list[Generation]]:
    """The `num` best continuations of each prompt, best first; fewer where fewer are possible.

    Nothing is drawn and ties are broken by rank and id, so the result is a function of model and prompt, whatever
    other prompts are beside it. A source makes row i the search for translations of source i.
    """
    check_request(model, prompts, length=length, eos=eos, suppress=suppress, source=source)
    if not 1 <= num <= width:
        raise DecodingError(f"{num} results were asked of a beam of width {width}; ask for 1 to {max(1, width)}")
    if not prompts:
        return []
    device = model.device
    reader = Reader(model, source)
    rules = Rules(width, length, eos, length_penalty, num, stop)
    beams = [Beam(rules, [Hypothesis([], 0.0, row)]) for row in range(len(prompts))]
    suppressed = torch.tensor(sorted(set(suppress)), dtype=torch.int64, device=device)

    step = reader.read(prompts, range(len(prompts)))
    while True:
        so_far = [hypothesis.log_prob for beam in beams for hypothesis in beam.live]
        log_probs = F.log_softmax(step.logits[:, -1], -1, dtype=precision(device))  # (B, V), B over all live ones
        log_probs = log_probs.index_fill(-1, suppressed, FORBIDDEN)
        totals = log_probs + torch.tensor(so_far, dtype=log_probs.dtype, device=device)[:, None]
        first_row = 0
        for beam, rows in zip(beams, torch.split(totals, [len(beam.live) for beam in beams]), strict=True):
            if beam.live:
                beam.grow(likeliest(rows, width), first_row)
            first_row += len(rows)

        live = [(owner, hypothesis) for owner, beam in enumerate(beams) for hypothesis in beam.live]
        if not live:
            return [beam.best() for beam in beams]
        parents = [hypothesis.parent for _, hypothesis in live]
        state = step.state
        if parents != list(range(first_row)):
            state = select(state, torch.tensor(parents, device=device))
        tokens = torch.tensor([hypothesis.ids[-1] for _, hypothesis in live], device=device)
        histories = [[*prompts[owner], *hypothesis.ids] for owner, hypothesis in live]
        step = reader.advance(tokens, state, histories, [owner for owner, _ in live])


def likeliest(totals: Tensor, count: int) -> list[Candidate]:
    """The `count` best entries of totals (live, V), best first; of equals the one from the better parent, lower id.

    `topk` does not say which of several equal entries it returns, but it does tell the value of the last one; all
    entries from that value upwards are then put in order here.
    """
    vocabulary = totals.shape[1]
    flat = totals.flatten()
    best = flat.topk(min(count, len(flat))).values
    if math.isnan(best[0].item()):
        raise DecodingError(NOT_A_NUMBER)
    places = (flat >= best[-1]).nonzero()[:, 0]
    ranked = sorted(zip(flat[places].tolist(), places.tolist(), strict=True), key=lambda entry: (-entry[0], entry[1]))
    return [
        Candidate(log_prob, *divmod(place, vocabulary)) for log_prob, place in ranked[:count] if log_prob > FORBIDDEN
    ]
