"""The hybrid as a language model: the source of each chunk of text is the previous chunk."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import ClassVar, NamedTuple, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from chainrule.interface.base import Advance
from chainrule.interface.capabilities import Lookahead
from chainrule.kernels.instructions import CacheSlots, Vector
from chainrule.kernels.program import ProgramBuilder
from chainrule.models.hybrid import HybridModel, HybridSettings, PlanSlots
from chainrule.models.transformer import SelfAttention
from chainrule.nn.attention import new_caches
from chainrule.nn.branches import TargetPlan
from chainrule.nn.convolution import ShortConvolution
from chainrule.nn.moving_window import MovingWindow
from chainrule.nn.recurrent import LayerState
from chainrule.nn.recurrent_encoder import RecurrentEncoder, gather_positions
from chainrule.nn.tokens import TokenTable
from chainrule.nn.window_attention import WindowAttention, head_slopes, window_bias
from chainrule.types import Sequences, State


class HybridLanguageConfig(HybridSettings):
    """The defaults have 1.3M parameters besides the embeddings."""

    layers: int = Field(6, ge=1, description="blocks of the autoregressive branch: GRU or attention, and MLP")
    recurrent_layers: int | None = Field(
        1, ge=1, description="blocks that have a GRU instead of attention, from the first on; none: all of them"
    )
    heads: int = Field(2, ge=1, description="attention heads per block")
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout on embeddings and residual branches")
    tied: bool = Field(False, description="tie the readout to the embeddings")
    branch_loss: float = Field(0.1, ge=0, description="weight of each branch's own loss in training")
    branch_share: float = Field(
        0.125, gt=0, le=1, description="share of the steps in which training computes the non-autoregressive branch"
    )
    kernel: int = Field(4, ge=1, description="tokens that the convolution of the embeddings spans; 1: none")
    chunk: int = Field(16, ge=1, description="chunk length: tokens predicted in parallel from the previous chunk")
    window: int = Field(128, ge=1, description="number of previous tokens that the autoregressive branch attends to")
    segment: int = Field(256, ge=1, description="length of truncated back-propagation through time, in tokens")


class HybridLanguageState(NamedTuple):
    """The states of the blocks, the plan of the current chunk, and the tokens of this and the previous chunk."""

    layers: tuple[LayerState, ...]
    keys: tuple[Tensor, ...]  # (B, H, W + S, D/H) for each block with attention, of the last tokens: a `MovingWindow`
    values: tuple[Tensor, ...]
    plan: TargetPlan  # of the current chunk, P = C
    source: Tensor  # (B, C) ids of the previous chunk, the source of the plan
    recent: Tensor  # (B, C) ids of the current chunk; 0 where not yet read
    tail: Tensor  # (B, k − 1) ids of the last tokens, for the convolution of the embeddings
    positions: Tensor  # (B,) tokens read so far, including BOS


class HybridLanguageSlots(NamedTuple):
    """The tensors of the state by number."""

    keys: int  # of the first block with attention
    values: int
    drafts: int  # of the plan, its fourth tensor
    mass: int
    counts: int
    source: int
    recent: int
    tail: int
    positions: int


class ChunkGrid(NamedTuple):
    """New tokens arranged in chunks: M + 1 chunks, of which the first is the current one.

    The tokens are appended to `recent`. A chunk that they complete is the source of the next one.
    """

    ids: Tensor  # (B, M + 1, C): those of `recent`, the new ones, zeros
    complete: Tensor  # (B,) number of complete chunks
    where: Tensor  # (B, K) index of each prediction in the (M + 1) C positions


class HybridLanguage(HybridModel):
    """Language model that mixes an autoregressive branch with parallel prediction of the next chunk of text.

    With chunks of C tokens, x_t in chunk k = ⌈t / C⌉, and the two branches of `HybridModel`,

        P(x_t | x_<t) = (1 − γ_t) P_AR(x_t | x_<t) + γ_t P_NAR(x_t | t, chunk k − 1)

    The text is preceded by BOS; x_0 is the last token of a chunk, so that segments of training are whole chunks. The
    first block of the autoregressive branch has a GRU, whose state is carried on, so it sees the whole text; the others
    attend to the last W tokens. It reads the contexts of the previous chunk only if a pretrained model made them.
    A chunk is encoded bidirectionally only when it is complete, as the source of the next, so no prediction depends on
    its own token.
    """

    Config = HybridLanguageConfig
    task = "text"
    check_exceptions: ClassVar[Mapping[str, str]] = {
        "no_gradient_reaches_the_future": "the encoder embeds chunks shorter than the text, so no axis of its "
        "embeddings is the time of the text; the check by changed tokens applies"
    }
    width_per_layer = 64
    config: HybridLanguageConfig

    def __init__(self, config: HybridLanguageConfig) -> None:
        tokens = TokenTable(config.vocabulary, config.width, tied=config.tied)
        super().__init__(config, tokens, source_vocabulary=config.vocabulary)
        self.window = MovingWindow.of(config.window)
        self.convolution = ShortConvolution(config.kernel, config.width) if config.kernel > 1 else None

    @property
    def segment(self) -> int:
        return self.config.segment

    @property
    def contiguous(self) -> int:
        """Short pieces: after a few minutes of training, the variety of a batch counts more than a long state."""
        return 256

    def used_parameters(self) -> float:
        if self.features is not None:
            return super().used_parameters()
        second = sum(weight.numel() for part in (self.encoder, self.parallel) for weight in part.parameters())
        return super().used_parameters() - (1 - self.branch_share) * second

    @property
    def reads_contexts(self) -> bool:
        """Those of a pretrained model, since its own attention reads the previous chunk."""
        return self.features is not None

    def new_encoder(self) -> nn.Module:
        config = self.config
        return RecurrentEncoder(
            "lstm", config.parallel_layers, config.width, bidirectional=True, dropout=config.dropout
        )

    def new_attention(self, *, recurrent: bool) -> nn.Module | None:
        return None if recurrent else SelfAttention(self.config.attention)

    def encode(self, source: Sequences) -> Tensor:
        embedded = self.parallel.dropout(self.tokens.embed(source.ids.t()))  # (S, B, D): time first
        return cast(Tensor, self.encoder(embedded, source.lengths).outputs).transpose(0, 1)

    def initial(self, source: Sequences | None, batch_size: int) -> HybridLanguageState:
        """Two tokens short of a complete chunk of BOS."""
        config = self.config
        ids = torch.full((batch_size, config.chunk), self.bos, device=self.device)
        positions = torch.zeros(batch_size, dtype=torch.int64, device=self.device)
        plan = TargetPlan(*(part.repeat(batch_size, *[1] * (part.ndim - 1)) for part in self._plan(ids[:1])))
        layers = tuple(() if block.gru is None else block.gru.initial(batch_size) for block in self.stack)
        shape = (batch_size, config.heads, self.window.capacity, config.width // config.heads)
        attending = sum(block.attention is not None for block in self.stack)
        keys, values = new_caches(self.tokens.bias, attending, shape)
        tail = torch.full((batch_size, config.kernel - 1), self.bos, device=self.device)
        return HybridLanguageState(layers, keys, values, plan, ids, ids.clone(), tail, positions)

    def advance(self, tokens: Tensor, state: State) -> Advance:
        before = cast(HybridLanguageState, state)
        grid = self._grid(tokens, before)
        sources = torch.cat([before.source[:, None], grid.ids[:, :-1]], dim=1)  # (B, M + 1, C)
        plans = self._plans(sources, grid.complete, grid.where, before.plan)
        bias = window_bias(
            before.positions,
            tokens.shape[1],
            window=self.config.window,
            heads=self.config.heads,
            dtype=(before.keys or (self.tokens.bias,))[0].dtype,
        )
        attention = [
            WindowAttention(self.window, keys, values, before.positions, bias)
            for keys, values in zip(before.keys, before.values, strict=True)
        ]
        read = torch.cat([before.tail, tokens], dim=1)
        attended, layers = self.read_target(
            self._embed(read),
            None if self.use_context is None else gather_positions(plans.contexts.flatten(1, 2), grid.where),
            before.layers,
            self._attends(attention),
        )
        ahead = TargetPlan(*(part.flatten(1, 2) if part.ndim > 2 else part for part in plans))
        hidden = self.joined(attended, ahead, grid.where)
        rows = torch.arange(len(tokens), device=tokens.device)
        last = TargetPlan(*(part[rows, grid.complete] for part in plans))
        after = HybridLanguageState(
            layers,
            tuple(layer.keys for layer in attention),
            tuple(layer.values for layer in attention),
            last,
            sources[rows, grid.complete],
            grid.ids[rows, grid.complete],
            read[:, tokens.shape[1] :],
            before.positions + tokens.shape[1],
        )
        return Advance(hidden, after)

    @property
    def has_program(self) -> bool:
        return self.features is None

    def describe_step(self, program: ProgramBuilder) -> None:
        config, slots = self.config, self._slots
        program.positions = slots.positions
        with program.every_chunk(config.chunk, recent=slots.recent, source=slots.source, offset=-2):
            if self.fixed_gamma != 0 or program.hidden is not None:
                encoder = cast(RecurrentEncoder, self.encoder)
                source = encoder.describe(program, self.tokens.describe_embedding(program))
                drafts, mass = program.given(slots.drafts, config.width), program.given(slots.mass, 1)
                self.parallel.describe(program, source, config.chunk, drafts=drafts, mass=mass)
        x = self._describe_embedding(program, slots.tail)
        slot, window = 0, 0
        for block in self.stack:
            attend = None
            if block.attention is not None:
                caches = (slots.keys + window, slots.values + window)
                attend = partial(
                    self._describe_attention, attention=cast(SelfAttention, block.attention), caches=caches
                )
                window += 1
            block.describe(program, x, slot, attend)
            slot += block.gru is not None
        plan = PlanSlots(slots.drafts, slots.mass, slots.counts, offset=-1, modulus=config.chunk)
        self.describe_mixture(program, program.rms_norm(x), plan)

    @property
    def _slots(self) -> HybridLanguageSlots:
        recurrent = sum(block.gru is not None for block in self.stack)
        windows = sum(block.attention is not None for block in self.stack)
        plan = recurrent + 2 * windows
        return HybridLanguageSlots(recurrent, recurrent + windows, plan + 3, *range(plan + 4, plan + 10))

    def _describe_embedding(self, program: ProgramBuilder, tail: int) -> Vector:
        """`_embed` in a compiled step."""
        if self.convolution is None:
            return self.tokens.describe_embedding(program)
        *before, x = program.split(self.tokens.describe_window(program, tail, self.config.kernel), self.config.kernel)
        self.convolution.describe(program, x, before)
        return x

    def _describe_attention(
        self, program: ProgramBuilder, x: Vector, *, attention: SelfAttention, caches: CacheSlots
    ) -> None:
        slopes = head_slopes(self.config.heads)

        def attend(query: Vector, key: Vector, value: Vector) -> Vector:
            return program.window_attention(query, key, value, caches, slopes, self.window)

        attention.describe_attention(program, x, None, attend)

    def _attends(self, attention: Sequence[WindowAttention]) -> list[Callable[[Tensor], Tensor] | None]:
        """The attention of each block, if it has any."""
        windows = iter(attention)
        return [
            None if block.attention is None else partial(block.attention, rotate=_unrotated, attend=next(windows))
            for block in self.stack
        ]

    def _embed(self, read: Tensor) -> Tensor:
        """Embeddings (B, K, D) of new tokens, given the last ones before them and them (B, k − 1 + K)."""
        embedded = self.tokens.embed(read)
        if self.convolution is None:
            return embedded
        before = self.config.kernel - 1
        return cast(Tensor, self.convolution(embedded[:, before:], embedded[:, :before]))

    def lookahead(self, source: Sequences | None, texts: Sequence[Sequence[int]]) -> Lookahead:
        chunk = self.config.chunk
        firsts = [-(-len(text) // chunk) * chunk - chunk + 1 for text in texts]
        padding = [self.bos] * (2 * chunk)  # before the text
        before = [
            [*padding, *text][first + chunk : first + 2 * chunk] for text, first in zip(texts, firsts, strict=True)
        ]
        plan = self._plan(torch.tensor(before, device=self.device))
        every = torch.ones_like(plan.mass, dtype=torch.bool)  # each position is a token of the text
        return Lookahead(plan.drafts, firsts, [first + chunk for first in firsts], every)

    def _grid(self, tokens: Tensor, state: HybridLanguageState) -> ChunkGrid:
        chunk = self.config.chunk
        read = (state.positions - 2) % chunk  # (B,) tokens in `recent`; C − 2 before BOS, if C > 1
        complete = (read + tokens.shape[1]) // chunk
        index = read[:, None] + torch.arange(tokens.shape[1], device=tokens.device)  # (B, K)
        ids = tokens.new_zeros(len(tokens), (int(complete.max()) + 1) * chunk)
        ids[:, :chunk] = state.recent
        ids.scatter_(1, index, tokens)
        return ChunkGrid(ids.view(len(ids), -1, chunk), complete, index + 1)

    def _plans(self, sources: Tensor, complete: Tensor, where: Tensor, known: TargetPlan) -> TargetPlan:
        """Plans from sources (B, M + 1, C), with tensors (B, M + 1, …). The first one is known already.

        If it predicts any token in training, it is computed again, so that gradients reach its source: the state of a
        previous segment is detached. Training computes the plans in a random share of the steps, unless every token
        needs the contexts; in the other steps there are no non-autoregressive predictions. A share of the chunks of
        every step would take longer, since the time of short recurrences is mostly overhead.
        """
        rows, count, chunk = sources.shape
        needed = torch.arange(count, device=sources.device) <= complete[:, None]  # (B, M + 1)
        needed[:, 0] = (where[:, 0] < chunk) & torch.is_grad_enabled()
        some = self.training and self.use_context is None and self.branch_share < 1
        if some:
            needed &= torch.rand((), device=needed.device) < self.branch_share
        if some:
            known = TargetPlan(*(torch.zeros_like(part) for part in known))
        if not needed.any():
            return TargetPlan(*(part[:, None].expand(-1, count, *part.shape[1:]) for part in known))
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
        if self.use_context is not None:
            return self.new_plan(source, source.lengths)
        plan = self.parallel.plan(self.read_source(source), source.lengths, source.lengths)
        return plan._replace(source=plan.source[:, :0], contexts=plan.contexts[:, :0])  # not used again


def _unrotated(vectors: Tensor) -> Tensor:
    """Positions are encoded by the GRU and by `window_bias`."""
    return vectors
