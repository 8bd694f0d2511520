"""The properties that every parallel model must have, as checks.

They run in float64 like those of `verify`, on random weights and on a user's checkpoint. As in training, targets end
with EOS and contain it nowhere else.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import torch

from chainrule.evaluation.verify import (
    ENUMERATED,
    TOLERANCE,
    Finding,
    NotApplicable,
    findings,
    other_source,
    repadded,
    require,
    require_close,
    saved_and_loaded,
)
from chainrule.interface.conditional import DecodingBudget, ParallelModel, ParallelOutput
from chainrule.types import Batch, Sequences

EOS = 0


@dataclass
class ParallelCheckSubject:
    """A model under test, and random pairs with sources from the maximum length down to one token."""

    model: ParallelModel
    seed: int = 0
    rows: int = 4
    longest: int = 8
    batch: Batch = field(init=False)

    def __post_init__(self) -> None:
        self.model = copy.deepcopy(self.model).double().eval()
        random = torch.Generator().manual_seed(self.seed)
        width = min(self.longest, self.model.source_context or self.longest)
        source = torch.randint(self.model.source_vocabulary, (self.rows, width), generator=random)
        lengths = torch.linspace(min(width, self.model.context or width), 1, self.rows).long()
        ids = torch.randint(1, max(2, self.model.vocabulary), (self.rows, int(lengths.max())), generator=random)
        ids = ids.scatter(1, lengths[:, None] - 1, EOS)
        self.batch = Batch(Sequences(ids, lengths), Sequences(source, torch.linspace(width, 1, self.rows).long())).to(
            self.model.device
        )

    @property
    def source(self) -> Sequences:
        assert self.batch.source is not None
        return self.batch.source

    def pairs(self, rows: Iterable[int]) -> Batch:
        """These rows, with repetition."""
        chosen = torch.tensor(list(rows), device=self.model.device)
        return Batch(*(Sequences(side.ids[chosen], side.lengths[chosen]) for side in (self.batch.target, self.source)))

    def budgets(self) -> list[DecodingBudget]:
        """The smallest and the default budget."""
        return list(dict.fromkeys([DecodingBudget(), self.model.default_budget]))

    def generate(self, source: Sequences | None, budget: DecodingBudget) -> list[ParallelOutput]:
        assert source is not None
        return self.model.generate(source, budget, eos=EOS)


ParallelCheck = Callable[[ParallelCheckSubject], None]


def require_same(found: list[ParallelOutput], expected: list[ParallelOutput], message: str) -> None:
    """Equal tokens, and scores equal up to rounding."""
    for one, other in zip(found, expected, strict=True):
        require(one.ids == other.ids, f"{message}: {one.ids} and {other.ids}")
        apart = max(abs(one.log_prob - other.log_prob), abs(one.score - other.score))
        require(apart <= TOLERANCE, f"{message}: the scores differ by {apart:.3g}")


@torch.no_grad()
def probabilities_sum_to_at_most_one(subject: ParallelCheckSubject) -> None:
    """Sum over all targets that can be enumerated, given one source."""
    model, total, length = subject.model, 0.0, 1
    tokens = range(1, model.vocabulary)
    while len(tokens) ** (length - 1) <= ENUMERATED and length <= min(subject.longest, model.context or length):
        every = [[*ids, EOS] for ids in itertools.product(tokens, repeat=length - 1)]
        source = subject.pairs([1] * len(every)).source
        nats = model.log_prob(Batch(Sequences.full(torch.tensor(every, device=model.device)), source))
        require(not bool(nats.isnan().any()) and bool((nats <= TOLERANCE).all()), "a log-probability is above 0")
        total += float(nats.exp().sum())
        length += 1
    require(total <= 1 + TOLERANCE, f"the probabilities of targets of up to {length - 1} tokens sum to {total:.9f}")


@torch.no_grad()
def padding_does_not_matter(subject: ParallelCheckSubject) -> None:
    """Neither the ids past the length of a source or target nor their number change a score or an output."""
    model, (target, _), source = subject.model, subject.batch, subject.source
    expected = model.log_prob(subject.batch)
    other = (target.ids + 1) % model.vocabulary
    noisy = Sequences(torch.where(target.mask, target.ids, other), target.lengths)
    require_close(model.log_prob(Batch(noisy, source)), expected, "the ids in the padding change the score")
    for padded, what in repadded(model, source):
        require_close(model.log_prob(Batch(target, padded)), expected, f"{what} changes the score")
        for budget in subject.budgets():
            require_same(
                subject.generate(padded, budget), subject.generate(source, budget), f"{what} changes the output"
            )


@torch.no_grad()
def rows_are_independent(subject: ParallelCheckSubject) -> None:
    """A single row has the score and output that it has in a batch, in any order of rows."""
    model, expected = subject.model, subject.model.log_prob(subject.batch)
    reversed_rows = list(range(subject.rows - 1, -1, -1))
    for budget in subject.budgets():
        outputs = subject.generate(subject.source, budget)
        for rows in (*([row] for row in range(subject.rows)), reversed_rows):
            pairs = subject.pairs(rows)
            assert pairs.source is not None
            source = _narrow(pairs.source)
            found = model.log_prob(Batch(_narrow(pairs.target), source))
            require_close(found, expected[rows], "a row scores differently in another batch")
            again = subject.generate(source, budget)
            require_same(again, [outputs[row] for row in rows], "a row has another output in another batch")


def _narrow(sequences: Sequences) -> Sequences:
    """Drop the columns that are padding in every row."""
    return Sequences(sequences.ids[:, : int(sequences.lengths.max())], sequences.lengths)


@torch.no_grad()
def reported_log_probs_are_lower_bounds(subject: ParallelCheckSubject) -> None:
    """In one pass the choices made are one of the alignments of the target, so its log P is at least theirs."""
    for row, output in enumerate(subject.generate(subject.source, DecodingBudget())):
        if not output.ids:
            continue
        pairs = subject.pairs([row])
        target = Sequences.full(torch.tensor([output.ids], device=subject.model.device))
        nats = float(subject.model.log_prob(Batch(target, pairs.source)))
        require(nats >= output.log_prob - TOLERANCE, f"{output.ids} has log P = {nats}, reported {output.log_prob}")


@torch.no_grad()
def suppressed_tokens_are_never_generated(subject: ParallelCheckSubject) -> None:
    """Not even those that were generated before they were suppressed."""
    if subject.model.vocabulary < 3:
        raise NotApplicable("with a vocabulary of two tokens there is no alternative")
    budget = subject.model.default_budget
    generated = {token for one in subject.generate(subject.source, budget) for token in one.ids}
    banned = sorted(generated)[: subject.model.vocabulary - 1]
    again = subject.model.generate(subject.source, budget, eos=EOS, suppress=banned)
    require(not any(token in banned for one in again for token in one.ids), "a suppressed token was generated")


@torch.no_grad()
def the_source_matters(subject: ParallelCheckSubject) -> None:
    """In every row another source gives another score."""
    model, source = subject.model, subject.source
    other = other_source(model, source)
    change = model.log_prob(Batch(subject.batch.target, other)) - model.log_prob(subject.batch)
    for row, nats in enumerate(change.abs().tolist()):
        require(nats > TOLERANCE, f"another source does not change the score of row {row}")


@torch.no_grad()
def saving_and_loading_is_bit_exact(subject: ParallelCheckSubject) -> None:
    """Weights saved and loaded give the same scores and outputs to the last bit."""
    model = subject.model
    expected = model.log_prob(subject.batch)
    restored = saved_and_loaded(model, subject.seed)
    require(
        torch.equal(restored.log_prob(subject.batch), expected), "a model that was saved and loaded scores differently"
    )
    budget = model.default_budget
    again = restored.generate(subject.source, budget, eos=EOS)
    require(
        again == subject.generate(subject.source, budget), "a model that was saved and loaded generates other targets"
    )


PARALLEL_CHECKS: Mapping[str, ParallelCheck] = {
    check.__name__: check
    for check in (
        probabilities_sum_to_at_most_one,
        padding_does_not_matter,
        rows_are_independent,
        reported_log_probs_are_lower_bounds,
        suppressed_tokens_are_never_generated,
        the_source_matters,
        saving_and_loading_is_bit_exact,
    )
}


def verify_parallel(model: ParallelModel, *, seed: int = 0) -> list[Finding]:
    """Run every check and return all results."""
    return findings(PARALLEL_CHECKS, lambda: ParallelCheckSubject(model, seed=seed), model.check_exceptions)
