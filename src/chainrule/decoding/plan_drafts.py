"""GreedyDrafts of a model for itself: what it has planned before it began to write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from chainrule.decoding.drafts import Drafter, Pick, Text
from chainrule.errors import DecodingError
from chainrule.interface.base import AutoregressiveModel
from chainrule.interface.capabilities import BlockPredictor
from chainrule.types import Sequences


class Planned(NamedTuple):
    """What is lookahead_logits of one text."""

    vectors: Tensor  # (P, D)
    first: int  # the position of the first of them
    end: int

    def covers(self, position: int) -> bool:
        return self.first <= position < self.end


class PlanDrafter(Drafter):
    """A model that plans, as the hybrid's branch that sees no target does: all guesses come from one product.

    A plan is made once for a text, or once for a chunk of it, and serves until the text has passed its end.
    """

    def __init__(self, model: AutoregressiveModel) -> None:
        if not isinstance(model, BlockPredictor):
            raise DecodingError(
                f"{type(model).__name__} plans nothing ahead; draft with a run of hybrid, or with another drafter"
            )
        self.model = model
        self.plans: BlockPredictor = model
        self._source: Sequences | None = None
        self._known: dict[int, Planned] = {}  # by owner

    def check(self, model: AutoregressiveModel) -> None:
        if model.vocabulary != self.model.vocabulary:
            raise DecodingError(
                f"the draft has a vocabulary of {self.model.vocabulary} tokens and the model one of "
                f"{model.vocabulary}; draft with a model that was trained with the same tokenizer"
            )

    def begin(self, source: Sequences | None) -> None:
        self._source, self._known = source, {}

    def propose(self, texts: Sequence[Text], count: int, pick: Pick) -> list[list[int]]:
        self._foresee([text for text in texts if not self._covers(text)])
        known = [self._known[owner] for owner, _ in texts]
        rooms = [max(0, plan.end - len(ids)) for plan, (_, ids) in zip(known, texts, strict=True)]
        count = min(count, max(rooms))
        if not count:
            return [[] for _ in texts]
        vectors = known[0].vectors.new_zeros(len(texts), count, known[0].vectors.shape[-1])
        for row, (plan, (_, ids), room) in enumerate(zip(known, texts, rooms, strict=True)):
            begin = len(ids) - plan.first
            vectors[row, : min(room, count)] = plan.vectors[begin : begin + min(room, count)]
        logits = self.plans.lookahead_logits(vectors)  # (B, count, V)
        guesses = torch.stack([pick(logits[:, place]) for place in range(count)], dim=1).tolist()
        return [row[:room] for row, room in zip(guesses, rooms, strict=True)]

    def _covers(self, text: Text) -> bool:
        return text.owner in self._known and self._known[text.owner].covers(len(text.ids))

    def _foresee(self, texts: Sequence[Text]) -> None:
        if not texts:
            return
        source = self._source
        if source is not None:
            rows = torch.tensor([text.owner for text in texts], device=source.ids.device)
            source = Sequences(source.ids[rows], source.lengths[rows])
        vectors, firsts, ends = self.plans.lookahead(source, [text.ids for text in texts])
        for text, plan, first, end in zip(texts, vectors, firsts, ends, strict=True):
            self._known[text.owner] = Planned(plan, first, end)
