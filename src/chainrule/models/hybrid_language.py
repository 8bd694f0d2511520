"""The hybrid as a language model: the chunk of text before this one is the source of this one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, cast

import torch
from pydantic import Field
from torch import Tensor

from chainrule.errors import ConfigError
from chainrule.interface.base import Advance
from chainrule.interface.capabilities import Lookahead
from chainrule.models.hybrid import HybridModel, HybridSettings
from chainrule.nn.branches import TargetPlan
from chainrule.nn.recurrent import GRU, LayerState
from chainrule.nn.recurrent_encoder import gather_positions
from chainrule.nn.tokens import TokenTable
from chainrule.types import Sequences, State


class HybridLanguageConfig(HybridSettings):
    """Settings of the hybrid of one text."""

    chunk: int = Field(32, ge=1, description="tokens that are planned at once, from as many before them")
    segment: int = Field(64, ge=1, description="tokens that gradients flow back through in truncated training")


class HybridLanguageState(NamedTuple):
    """Where every row stands in its chunk, and what it knows of that chunk."""

    layers: tuple[LayerState, ...]
    plan: TargetPlan  # of the chunk that is being predicted, P = C
    source: Tensor  # (B, C) ids of the chunk before it, which the plan was made from
    recent: Tensor  # (B, C) ids of the chunk that is being read; those past `read` are 0
    positions: Tensor  # (B,) tokens read so far, BOS among them


class Grid(NamedTuple):
    """The chunks that a few tokens touch, beside each other: M + 1 of them, the first one begun before.

    The tokens are read at the end of `recent`; a chunk that they complete is the source of the next one.
    """

    ids: Tensor  # (B, M + 1, C) read: those of `recent`, the new ones, zeros
    complete: Tensor  # (B,) how many chunks of each row are
    where: Tensor  # (B, K) of the predictions, in the (M + 1) C positions that are planned


class HybridLanguage(HybridModel):
    """The hybrid as a language model: each chunk of text is planned from the chunk before it; exact.

    With chunks of C tokens, k = ⌊t / C⌋ and the two branches of `HybridModel`,

        P(x_t | x_<t) = (1 − γ_t) P_AR(x_t | x_<t, chunk k − 1) + γ_t P_NAR(x_t | t − k C, chunk k − 1)

    Before the first chunk stands one of BOS alone. The GRU reads the text from its start on without a break, so the
    first branch sees all of it. A chunk is read in both directions only when it is complete, as the source of the
    next: nothing ever sees a token that it predicts.
    """

    Config = HybridLanguageConfig
    task = "text"
    check_exceptions: ClassVar[Mapping[str, str]] = {
        "no_gradient_reaches_the_future": "the encoder embeds chunks shorter than the text, so no axis of its "
        "embeddings is the time of the text; the check by changed tokens applies"
    }
    recipe: ClassVar[Mapping[str, Any]] = {**HybridModel.recipe, "batch_tokens": 1024}
    config: HybridLanguageConfig

    def __init__(self, config: HybridLanguageConfig) -> None:
        tokens = TokenTable(config.vocabulary, config.width, tied=config.tied)
        super().__init__(config, tokens, source_vocabulary=config.vocabulary)
        if self.pretrained is not None and config.chunk > self.pretrained.context:
            raise ConfigError(
                f"chunk {config.chunk} is longer than the {self.pretrained.context} tokens that the model in "
                f"{config.features!r} can read; lower it"
            )

    @property
    def segment(self) -> int:
        return self.config.segment

    def embed_source(self, ids: Tensor) -> Tensor:
        return self.tokens.embed(ids)

    def initial(self, source: Sequences | None, batch_size: int) -> HybridLanguageState:
        """One BOS short of a first chunk that is nothing but BOS."""
        zeros = self.tokens.bias.new_zeros(batch_size, self.config.chunk, self.config.width)
        ids = torch.full(zeros.shape[:2], self.bos, device=zeros.device)
        positions = torch.zeros(batch_size, dtype=torch.int64, device=zeros.device)
        plan = TargetPlan(zeros, positions + self.config.chunk, zeros, zeros, zeros[..., 0])
        layers = tuple(cast(GRU, layer).initial(batch_size) for layer in self.branches.writing)
        return HybridLanguageState(layers, plan, ids, ids, positions)

    def advance(self, tokens: Tensor, state: State) -> Advance:
        before = cast(HybridLanguageState, state)
        grid = self._grid(tokens, before)
        sources = torch.cat([before.source[:, None], grid.ids[:, :-1]], dim=1)  # (B, M + 1, C)
        plans = self._plans(sources, grid.complete, before.plan)
        hidden, layers = self.branches.decode(
            self.tokens.embed(tokens), gather_positions(plans.contexts.flatten(1, 2), grid.where), before.layers
        )
        weights = gather_positions(plans.weights.flatten(1, 2)[..., None], grid.where)[..., 0]
        hidden = self.joined(
            self._cross_attend(hidden, plans, grid.where),
            gather_positions(plans.drafts.flatten(1, 2), grid.where),
            weights,
        )
        rows = torch.arange(len(tokens), device=tokens.device)
        last = TargetPlan(*(part[rows, grid.complete] for part in plans))
        after = HybridLanguageState(
            layers,
            last,
            sources[rows, grid.complete],
            grid.ids[rows, grid.complete],
            before.positions + tokens.shape[1],
        )
        return Advance(hidden, after)

    def lookahead(self, source: Sequences | None, texts: Sequence[Sequence[int]]) -> Lookahead:
        chunk = self.config.chunk
        firsts = [len(text) // chunk * chunk for text in texts]
        before = [
            list(text[first - chunk : first]) if first else [self.bos] * chunk
            for text, first in zip(texts, firsts, strict=True)
        ]
        plan = self._plan(torch.tensor(before, device=self.device))
        return Lookahead(plan.drafts, firsts, [first + chunk for first in firsts])

    def _grid(self, tokens: Tensor, state: HybridLanguageState) -> Grid:
        chunk = self.config.chunk
        read = (state.positions - 1) % chunk  # (B,) tokens in `recent`: before BOS all but one
        complete = (read + tokens.shape[1]) // chunk
        places = read[:, None] + torch.arange(tokens.shape[1], device=tokens.device)  # (B, K) of the tokens
        ids = tokens.new_zeros(len(tokens), (int(complete.max()) + 1) * chunk)
        ids[:, :chunk] = state.recent
        ids.scatter_(1, places, tokens)
        return Grid(ids.view(len(ids), -1, chunk), complete, places + 1)

    def _plans(self, sources: Tensor, complete: Tensor, known: TargetPlan) -> TargetPlan:
        """BlockPredictor from sources (B, M + 1, C), their tensors (B, M + 1, …). The first is known already.

        In training it is made again, so that gradients reach what made it: the text is cut into segments, and of a
        chunk that was begun in the segment before, only the numbers are left.
        """
        rows, count, _ = sources.shape
        needed = torch.arange(count, device=sources.device) <= complete[:, None]  # (B, M + 1)
        needed[:, 0] = torch.is_grad_enabled()
        if not needed.any():
            return TargetPlan(*(part[:, None] for part in known))
        made = self._plan(sources[needed])
        plans = []
        for old, new in zip(known, made, strict=True):
            plan = old.new_zeros(rows, count, *old.shape[1:])
            plan[:, 0] = old
            plan[needed] = new.to(plan.dtype)
            plans.append(plan)
        return TargetPlan(*plans)

    def _plan(self, ids: Tensor) -> TargetPlan:
        """Of chunks, from those before them, (N, C)."""
        source = Sequences.full(ids)
        return self.branches.plan(self.read_source(source), source.lengths, source.lengths)

    def _cross_attend(self, hidden: Tensor, plans: TargetPlan, where: Tensor) -> Tensor:
        """From vectors h (B, K, D) to a, each over the source of its own chunk."""
        rows, count, chunk, width = plans.source.shape
        if count == 1:
            return self.branches.cross_attend(hidden, plans.source[:, 0], plans.lengths[:, 0])
        places = where[..., None].expand(-1, -1, width)
        laid_out = hidden.new_zeros(rows, count * chunk, width).scatter(1, places, hidden)
        full = plans.lengths.new_full((rows * count,), chunk)
        attended = self.branches.cross_attend(
            laid_out.view(rows * count, chunk, width), plans.source.flatten(0, 1), full
        )
        return attended.view(rows, count * chunk, width).gather(1, places)
