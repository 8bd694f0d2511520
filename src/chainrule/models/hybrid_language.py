"""The hybrid as a language model: the source of each chunk of text is the previous chunk."""

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
    """Settings of the hybrid language model."""

    chunk: int = Field(32, ge=1, description="chunk length: tokens predicted in parallel from the previous chunk")
    segment: int = Field(64, ge=1, description="length of truncated back-propagation through time, in tokens")


class HybridLanguageState(NamedTuple):
    """The recurrent state, the plan of the current chunk, and the tokens of this and the previous chunk."""

    layers: tuple[LayerState, ...]
    plan: TargetPlan  # of the current chunk, P = C
    source: Tensor  # (B, C) ids of the previous chunk, the source of the plan
    recent: Tensor  # (B, C) ids of the current chunk; 0 where not yet read
    positions: Tensor  # (B,) tokens read so far, including BOS


class ChunkGrid(NamedTuple):
    """New tokens arranged in chunks: M + 1 chunks, of which the first is the current one.

    The tokens are appended to `recent`. A chunk that they complete is the source of the next one.
    """

    ids: Tensor  # (B, M + 1, C): those of `recent`, the new ones, zeros
    complete: Tensor  # (B,) number of complete chunks
    where: Tensor  # (B, K) index of each prediction in the (M + 1) C positions


class HybridLanguage(HybridModel):
    """Language model that mixes an autoregressive branch with parallel prediction of the next chunk of text.

    With chunks of C tokens, k = ⌊t / C⌋ and the two branches of `HybridModel`,

        P(x_t | x_<t) = (1 − γ_t) P_AR(x_t | x_<t, chunk k − 1) + γ_t P_NAR(x_t | t − k C, chunk k − 1)

    The source of the first chunk is a chunk of BOS. The GRU state is carried over chunks, so the autoregressive branch
    sees the whole text. A chunk is encoded bidirectionally only when it is complete, as the source of the next, so no
    prediction depends on its own token.
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
                f"chunk {config.chunk} is longer than the context of {self.pretrained.context} tokens of the model in "
                f"{config.features!r}; lower it"
            )

    @property
    def segment(self) -> int:
        return self.config.segment

    def embed_source(self, ids: Tensor) -> Tensor:
        return self.tokens.embed(ids)

    def initial(self, source: Sequences | None, batch_size: int) -> HybridLanguageState:
        """One BOS short of a complete chunk of BOS."""
        zeros = self.tokens.bias.new_zeros(batch_size, self.config.chunk, self.config.width)
        ids = torch.full(zeros.shape[:2], self.bos, device=zeros.device)
        positions = torch.zeros(batch_size, dtype=torch.int64, device=zeros.device)
        plan = TargetPlan(zeros, positions + self.config.chunk, zeros, zeros, zeros[..., 0])
        layers = tuple(cast(GRU, layer).initial(batch_size) for layer in self.branches.decoder)
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

    def _grid(self, tokens: Tensor, state: HybridLanguageState) -> ChunkGrid:
        chunk = self.config.chunk
        read = (state.positions - 1) % chunk  # (B,) tokens in `recent`; C − 1 before BOS
        complete = (read + tokens.shape[1]) // chunk
        index = read[:, None] + torch.arange(tokens.shape[1], device=tokens.device)  # (B, K)
        ids = tokens.new_zeros(len(tokens), (int(complete.max()) + 1) * chunk)
        ids[:, :chunk] = state.recent
        ids.scatter_(1, index, tokens)
        return ChunkGrid(ids.view(len(ids), -1, chunk), complete, index + 1)

    def _plans(self, sources: Tensor, complete: Tensor, known: TargetPlan) -> TargetPlan:
        """Plans from sources (B, M + 1, C), with tensors (B, M + 1, …). The first one is known already.

        In training it is computed again, so that gradients reach its source: the state of a previous segment is
        detached.
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
        """The plans of chunks, given the previous chunks (N, C)."""
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
