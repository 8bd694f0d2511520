"""Non-autoregressive translation: all target tokens in parallel, given the source.

The encoder is that of `transformer`; the decoder is the same without a causal mask. Two outputs turn the hidden vectors
of all target positions into a distribution over targets.

`ctc` (Libovický & Helcl, 2018). Each source token becomes k frames, and a frame emits a token or the blank ∅:

    x_u = W_{u − ⌈kn⌉} m_n,   n = ⌊u / k⌋                   m, the encoded source
    h = Decoder(x)                                          bidirectional over frames, with cross-attention to m
    P(∅ | u) = σ(a · h_u + c),   P(v | u) = σ(−a · h_u − c) softmax_v(W h_u + b)
    P(y | s) = Σ over the paths that collapse to y of Π_u P(π_u | u)            see `nn.ctc`

No length is predicted: blanks fill the remaining frames. A target is generated in one pass. In training, some frames
receive as input the token that the best path of the target assigns to them, more of them the more frames are wrong
(glancing: Qian et al., 2021; with CTC: Gu & Kong, 2021), so that the others learn to be consistent with their
neighbours.

`masked` (mask-predict: Ghazvininejad et al., 2019). The length is predicted first, then all tokens from masks. In each
further pass the least confident tokens are masked again and predicted given the others:

    P(n | s) = softmax_n(w_(n − S) · mean(m)),   P(y | s) = P(n | s) Π_t P(y_t | n masks, s)
    h = Decoder(x),   x_t = E[token or mask at t] + m_⌊t S / n⌋     the source, uniformly stretched to the length of
                                                                    the target (Gu et al., 2018)

Training masks n of the T tokens, with n uniform, and minimises −log P(T | s) − T/n Σ_masked log P(y_t | the others, s),
in expectation a bound on the surprisal of generating the tokens one at a time in a random order.

Both likelihoods are exact and normalised over all targets, but not a product of next-token predictions. That of
`masked` is for one pass; further passes improve the targets, and the probability of the result is intractable.

Shape letters: B rows, S source tokens, U frames, T target tokens, K positions, N positions of all rows, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from chainrule.config import Settings
from chainrule.interface.base import readable
from chainrule.interface.capabilities import FitsStatistics, TokenIds, TokenPairs
from chainrule.interface.conditional import DecodingBudget, ParallelModel, ParallelOutput, require_one_pass
from chainrule.models.ngram import NGram, NGramConfig
from chainrule.models.transformer import EncoderMemory, TransformerConfig, TransformerDecoder, TransformerEncoder
from chainrule.nn.ctc import CandidatesOfRows, FrameRatio, FusionWeights, Lattice, collapse
from chainrule.nn.layers import input_projection
from chainrule.nn.tokens import PairTable, lowest
from chainrule.types import Batch, Progress, Sequences, length_mask, map_state

BEAM = 5  # default beam width with shallow fusion
CANDIDATE_MARGIN = -3.5  # a token is a candidate in a frame if its log-probability is at most this far below the best
MIN_BLANK = -60.0  # nats: keeps a path through a frame whose tokens are all suppressed
COUNTED_AT_ONCE = 1024  # targets


class FusionConfig(Settings):
    """n-gram shallow fusion in CTC beam search (see `nn.ctc`)."""

    order: int = Field(4, ge=0, description="order of the n-gram model of targets; 0: no shallow fusion")
    tokens: int = Field(2_000_000, ge=1, description="maximum number of training target tokens that are counted")
    weight: float = Field(0.3, ge=0, description="weight of the n-gram log-probability")
    bonus: float = Field(3.5, description="score added per target token; without it short targets win")


class NonAutoregressiveConfig(TransformerConfig):
    """The defaults have 1.7M parameters besides the embeddings."""

    encoder_layers: int = Field(6, ge=1, description="encoder blocks")
    decoder_layers: int = Field(2, ge=1, description="decoder blocks")
    output: Literal["ctc", "masked"] = Field(
        "ctc", description="ctc: frames that emit a token or the blank, one pass; masked: mask-predict, several passes"
    )
    frames_per_token: float = Field(
        2.0,
        ge=1,
        le=16,
        description="ctc: frames per source token, to two decimals; a target cannot have more tokens than frames",
    )
    glancing: float = Field(
        0.3, ge=0, le=1, description="ctc: frames revealed in training, as a fraction of wrong ones"
    )
    fusion: FusionConfig = FusionConfig()


class NonAutoregressive(ParallelModel, FitsStatistics):
    """Non-autoregressive Transformer for translation: CTC in one pass, or mask-predict in a few passes."""

    Config = NonAutoregressiveConfig
    recipe: ClassVar[Mapping[str, Any]] = {"label_smoothing": 0.1}
    config: NonAutoregressiveConfig

    def __init__(self, config: NonAutoregressiveConfig) -> None:
        super().__init__(config)
        self.body = Body(config)
        self.output = OUTPUTS[config.output](config)

    @property
    def context(self) -> int:
        return self.config.context

    @property
    def source_context(self) -> int:
        return self.config.context

    @property
    def default_budget(self) -> DecodingBudget:
        return self.output.default_budget

    def tables(self) -> Iterator[nn.Parameter]:
        yield from self.body.tokens.tables()
        yield from self.output.tables()

    @torch.no_grad()
    def init_output_bias(self, log_frequencies: Tensor) -> None:
        self.body.tokens.bias.copy_(log_frequencies)

    def fit_statistics(self, train: TokenPairs, *, held_out: TokenPairs = (), progress: Progress | None = None) -> None:
        self.output.fit_statistics(target for _, target in train)

    def draw_noise(self, batch: Batch) -> Tensor:
        return torch.rand(*self.output.noise_shape(self._checked(batch)), device=self.device)

    def loss(self, batch: Batch, noise: Tensor, *, smoothing: float = 0.0) -> Tensor:
        target, source = self._checked(batch)
        return self.output.loss(self.body, self.body.encode(source), target, noise, smoothing)

    def log_prob(self, batch: Batch) -> Tensor:
        target, source = self._checked(batch)
        return self.output.log_prob(self.body, self.body.encode(source), target)

    @torch.inference_mode()
    def generate(
        self, source: Sequences, budget: DecodingBudget, *, eos: int = 0, suppress: Sequence[int] = ()
    ) -> list[ParallelOutput]:
        encoded = self.body.encode(self.require_source(source))
        return self.output.generate(self.body, encoded, budget, suppress)

    def _checked(self, batch: Batch) -> CheckedBatch:
        self.require_room(batch.target.ids.shape[1])
        return CheckedBatch(Sequences(readable(batch.target), batch.target.lengths), self.require_source(batch.source))


class CheckedBatch(NamedTuple):
    """A batch whose sequences fit into the context."""

    target: Sequences
    source: Sequences


class Encoded(NamedTuple):
    """The encoder outputs, and their keys and values for cross-attention."""

    encoded: Tensor  # (B, S, D)
    memory: EncoderMemory

    @property
    def lengths(self) -> Tensor:
        return self.memory.lengths


class Body(nn.Module):
    """The embeddings, encoder and bidirectional decoder that both outputs share."""

    def __init__(self, config: NonAutoregressiveConfig) -> None:
        super().__init__()
        self.tokens = PairTable.of(config, config.width)
        self.encoder = TransformerEncoder(config)
        positions = (
            FrameRatio.of(config.frames_per_token).frames(config.context) if config.output == "ctc" else config.context
        )
        self.decoder = TransformerDecoder(config.model_copy(update={"context": positions}))

    @property
    def placeholder(self) -> int:
        """The id of the mask, or of the blank: an input that is never predicted."""
        return self.tokens.vocabulary

    def encode(self, source: Sequences) -> Encoded:
        encoded = self.encoder(self.tokens.embed_source(readable(source)), source.lengths)
        return Encoded(encoded, self.decoder.encoder_memory(encoded, source.lengths))

    def decode(self, inputs: Tensor, lengths: Tensor, memory: EncoderMemory) -> Tensor:
        """(B, K, D) with rows of these lengths to (B, K, D)."""
        return self.decoder.bidirectional(inputs, lengths, memory)


class OutputHead(nn.Module, ABC):
    """A distribution over targets, given the hidden vectors of all target positions."""

    @property
    @abstractmethod
    def default_budget(self) -> DecodingBudget:
        """See `ParallelModel.default_budget`."""

    def fit_statistics(self, targets: Iterable[TokenIds]) -> None:
        """See `FitsStatistics`."""

    def tables(self) -> Iterator[nn.Parameter]:
        """Parameters with a vector per position."""
        yield from ()

    @abstractmethod
    def noise_shape(self, batch: CheckedBatch) -> tuple[int, int]:
        """The shape of the noise that the loss of a batch needs: rows, and numbers per row."""

    @abstractmethod
    def loss(self, body: Body, source: Encoded, target: Sequences, noise: Tensor, smoothing: float) -> Tensor:
        """See `ParallelModel.loss`."""

    @abstractmethod
    def log_prob(self, body: Body, source: Encoded, target: Sequences) -> Tensor:
        """(B,) nats."""

    @abstractmethod
    def generate(
        self, body: Body, source: Encoded, budget: DecodingBudget, suppress: Sequence[int]
    ) -> list[ParallelOutput]:
        """See `ParallelModel.generate`."""


class CTCOutput(OutputHead):
    """Connectionist temporal classification over k frames per source token."""

    def __init__(self, config: NonAutoregressiveConfig) -> None:
        super().__init__()
        self.ratio, self.glancing = FrameRatio.of(config.frames_per_token), config.glancing
        self.split = input_projection(config.width, self.ratio.max_frames * config.width)
        self.blank = nn.Parameter(torch.zeros(config.width))  # a
        self.blank_bias = nn.Parameter(torch.zeros(1))  # c
        fusion = config.fusion
        self.counted_tokens = fusion.tokens
        self.weights = FusionWeights(fusion.weight, fusion.bonus)
        ngram = NGramConfig(vocabulary=config.vocabulary, order=fusion.order) if fusion.order else None
        self.language_model = None if ngram is None else NGram(ngram)

    @property
    def default_budget(self) -> DecodingBudget:
        return DecodingBudget(beam=BEAM if self._has_language_model else 1)

    @property
    def _has_language_model(self) -> bool:
        return self.language_model is not None and self.language_model.sizes[0] > 0

    def fit_statistics(self, targets: Iterable[TokenIds]) -> None:
        if self.language_model is None:
            return
        rows, remaining = iter(targets), self.counted_tokens
        while remaining > 0 and (block := list(islice(rows, COUNTED_AT_ONCE))):
            counted = Sequences.pack(block)
            self.language_model.observe(counted)
            remaining -= int(counted.lengths.sum())
        self.language_model.estimate()

    def noise_shape(self, batch: CheckedBatch) -> tuple[int, int]:
        rows, width = batch.source.ids.shape
        return rows, self.ratio.frames(width)

    def loss(self, body: Body, source: Encoded, target: Sequences, noise: Tensor, smoothing: float) -> Tensor:
        inputs, frames = self._inputs(source)
        if self.training and self.glancing:
            best_path, revealed = self._glance(body, source, target, inputs, frames, noise)
            inputs = torch.where(revealed[..., None], body.tokens.embed(best_path), inputs)
        lattice = self._lattice(body, body.decode(inputs, frames, source.memory), frames, target, smoothing)
        return -lattice.log_prob()[lattice.feasible].sum()

    def log_prob(self, body: Body, source: Encoded, target: Sequences) -> Tensor:
        inputs, frames = self._inputs(source)
        lattice = self._lattice(body, body.decode(inputs, frames, source.memory), frames, target)
        return lattice.log_prob().masked_fill(~lattice.feasible, -torch.inf)

    def generate(
        self, body: Body, source: Encoded, budget: DecodingBudget, suppress: Sequence[int]
    ) -> list[ParallelOutput]:
        require_one_pass(budget)
        inputs, frames = self._inputs(source)
        hidden = body.decode(inputs, frames, source.memory)
        if budget.beam > 1 and self.language_model is not None and self._has_language_model:
            candidates = self._candidates(body, hidden, frames, suppress)
            found = self.language_model.fused_targets(candidates, self.weights, budget.beam)
            return [ParallelOutput(*one) for one in found]
        path, log_probs = self._best_path(body, hidden, frames, suppress)
        targets = zip(collapse(path, frames, body.placeholder), log_probs.sum(1).tolist(), strict=True)
        return [ParallelOutput(ids, nats, nats / max(1, len(ids))) for ids, nats in targets]

    def _inputs(self, source: Encoded) -> tuple[Tensor, Tensor]:
        """The input vectors of the frames, (B, U, D), and the number of frames of each row."""
        parts = self.split(source.encoded).unflatten(-1, (self.ratio.max_frames, -1)).flatten(1, 2)
        return parts[:, self.ratio.origins(source.encoded.shape[1], parts.device)], self.ratio.frames(source.lengths)

    def _blank_logits(self, hidden: Tensor) -> Tensor:
        """(B, U)."""
        return hidden @ self.blank + self.blank_bias

    def _lattice(
        self, body: Body, hidden: Tensor, frames: Tensor, target: Sequences, smoothing: float = 0.0
    ) -> Lattice:
        """The lattice of each row's target. The readout is computed for real frames only, not for padding."""
        real = length_mask(frames, hidden.shape[1])
        vectors, blank = hidden[real], self._blank_logits(hidden)  # (N, D), (B, U)
        ids = target.ids[real.nonzero()[:, 0]]  # (N, T)
        log_probs = body.tokens.log_probs(vectors, ids, smoothing=smoothing) + F.logsigmoid(-blank[real])[:, None]
        padded = log_probs.new_zeros(*real.shape, log_probs.shape[1])
        padded = padded.masked_scatter(real[..., None], log_probs)
        return Lattice.of(padded, F.logsigmoid(blank), frames, target)

    def _best_path(self, body: Body, hidden: Tensor, frames: Tensor, suppress: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The most likely choice of each frame, (B, U), and its log-probability.

        Where the blank has at least half of the probability, no token can have more, so no token is scored.
        """
        real, blank = length_mask(frames, hidden.shape[1]), self._blank_logits(hidden)
        open_ = real & (blank < 0)
        path = torch.full_like(blank, body.placeholder, dtype=torch.int64)
        log_probs = F.logsigmoid(blank).masked_fill_(~real, 0.0)
        ids, nats = body.tokens.most_likely(hidden[open_], suppress)
        nats = nats + F.logsigmoid(-blank[open_])
        emits = nats > log_probs[open_]
        path[open_] = torch.where(emits, ids, body.placeholder)
        log_probs[open_] = torch.where(emits, nats, log_probs[open_])
        return path, log_probs

    def _candidates(self, body: Body, hidden: Tensor, frames: Tensor, suppress: Sequence[int]) -> CandidatesOfRows:
        """For each frame, the choices within CANDIDATE_MARGIN of the best one."""
        real, blank = length_mask(frames, hidden.shape[1]), self._blank_logits(hidden)
        open_ = real & (blank < -CANDIDATE_MARGIN)  # elsewhere no token can be a candidate
        nats = body.tokens.readout(hidden[open_]).log_softmax(-1) + F.logsigmoid(-blank[open_])[:, None]
        if suppress:
            nats[:, list(suppress)] = -torch.inf
        blank_nats = F.logsigmoid(blank).clamp(min=MIN_BLANK)
        best = torch.maximum(nats.amax(-1), blank_nats[open_])
        indices, tokens = (nats > best[:, None] + CANDIDATE_MARGIN).nonzero(as_tuple=True)
        counts = torch.zeros(blank.shape, dtype=torch.int64, device=blank.device)
        counts[open_] = torch.bincount(indices, minlength=len(nats))
        blanks, probs = (part.exp().double() for part in (blank_nats[real], nats[indices, tokens]))
        return CandidatesOfRows(*(part.cpu().numpy() for part in (blanks, counts[real], tokens, probs, frames)))

    @torch.no_grad()
    def _glance(
        self,
        body: Body,
        source: Encoded,
        target: Sequences,
        inputs: Tensor,
        frames: Tensor,
        noise: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """The best path of the target, (B, U), and the frames in which it is revealed, (B, U) bool."""
        hidden = body.decode(inputs, frames, source.memory)
        best_path = self._lattice(body, hidden, frames, target).best_path(body.placeholder)
        path, _ = self._best_path(body, hidden, frames, ())
        real = length_mask(frames, inputs.shape[1])
        wrong = ((path != best_path) & real).sum(1)
        return best_path, lowest(noise[:, : real.shape[1]], real, self.glancing * wrong)


class MaskPredictOutput(OutputHead):
    """Mask-predict: a length, then masks that are predicted, the least confident of them repeatedly."""

    @property
    def default_budget(self) -> DecodingBudget:
        return DecodingBudget(passes=4, lengths=3)

    def __init__(self, config: NonAutoregressiveConfig) -> None:
        super().__init__()
        self.max_length = config.context
        # A vector for each length difference from the source, from 1 − max_length to max_length − 1.
        self.differences = nn.Parameter(torch.zeros(config.width, 2 * config.context - 1))

    def tables(self) -> Iterator[nn.Parameter]:
        yield self.differences

    def noise_shape(self, batch: CheckedBatch) -> tuple[int, int]:
        rows, width = batch.target.ids.shape
        return rows, 1 + width

    def loss(self, body: Body, source: Encoded, target: Sequences, noise: Tensor, smoothing: float) -> Tensor:
        real = target.mask
        count = 1 + (noise[:, 0] * target.lengths).floor()
        masked = lowest(noise[:, 1 : 1 + real.shape[1]], real, count)
        weights = (target.lengths / count)[masked.nonzero()[:, 0]]
        nats = self._log_probs(body, source, target, masked, smoothing)
        return -self._length_log_prob(source, target).sum() - (weights * nats).sum()

    def log_prob(self, body: Body, source: Encoded, target: Sequences) -> Tensor:
        nats = target.ids.new_zeros(target.ids.shape, dtype=source.encoded.dtype)
        nats[target.mask] = self._log_probs(body, source, target, target.mask)
        return nats.sum(1) + self._length_log_prob(source, target)

    def generate(
        self, body: Body, source: Encoded, budget: DecodingBudget, suppress: Sequence[int]
    ) -> list[ParallelOutput]:
        lengths, length_log_probs = self._most_likely_lengths(source, budget.lengths)  # (B, L)
        candidates = lengths.shape[1]
        repeated = map_state(lambda part: part.repeat_interleave(candidates, 0), source)
        draft = self.refine(body, repeated, lengths.flatten(), budget.passes, suppress)
        log_probs = draft.log_probs.sum(1).view_as(lengths) + length_log_probs
        scores = log_probs / lengths
        best = scores.argmax(1, keepdim=True)  # (B, 1)
        ids = draft.ids.view(*lengths.shape, -1)[torch.arange(len(best), device=best.device), best[:, 0]]
        chosen = (part.gather(1, best)[:, 0].tolist() for part in (lengths, log_probs, scores))
        found = zip(ids.tolist(), *chosen, strict=True)
        return [ParallelOutput(ids[:length], nats, score) for ids, length, nats, score in found]

    def refine(self, body: Body, source: Encoded, lengths: Tensor, passes: int, suppress: Sequence[int]) -> Draft:
        """Predict all tokens; in each further pass predict the least confident again, fewer each time."""
        real = length_mask(lengths, int(lengths.max()))
        masks = torch.full(real.shape, body.placeholder, device=real.device)
        draft = Draft(masks, torch.zeros(real.shape, dtype=source.encoded.dtype, device=real.device))
        masked = real
        for remaining in range(passes - 1, -1, -1):
            draft = self.predict_masked(body, source, draft, masked, lengths, suppress)
            masked = lowest(draft.log_probs, real, lengths * remaining // passes)
        return draft

    def predict_masked(
        self,
        body: Body,
        source: Encoded,
        draft: Draft,
        masked: Tensor,
        lengths: Tensor,
        suppress: Sequence[int],
    ) -> Draft:
        """The draft with its masked tokens predicted from the others."""
        ids, log_probs = draft.ids.masked_fill(masked, body.placeholder), draft.log_probs.clone()
        hidden = self.hidden(body, source, ids, lengths)
        ids[masked], log_probs[masked] = body.tokens.most_likely(hidden[masked], suppress)
        return Draft(ids, log_probs)

    def hidden(self, body: Body, source: Encoded, ids: Tensor, lengths: Tensor) -> Tensor:
        """(B, K, D) hidden vectors of positions with these tokens or masks."""
        index = torch.arange(ids.shape[1], device=ids.device) * source.lengths[:, None] // lengths[:, None].clamp(min=1)
        index = torch.minimum(index, source.lengths[:, None] - 1)  # for padding
        stretched = source.encoded.gather(1, index[..., None].expand(-1, -1, source.encoded.shape[2]))
        return body.decode(body.tokens.embed(ids) + stretched, lengths, source.memory)

    def _log_probs(
        self, body: Body, source: Encoded, target: Sequences, masked: Tensor, smoothing: float = 0.0
    ) -> Tensor:
        """(N,) log-probabilities of the masked tokens, given the others."""
        hidden = self.hidden(body, source, target.ids.masked_fill(masked, body.placeholder), target.lengths)[masked]
        return body.tokens.log_probs(hidden, target.ids[masked][:, None], smoothing=smoothing)[:, 0]

    def _length_log_probs(self, source: Encoded) -> Tensor:
        """(B, C) log-probabilities of the lengths 1 to C."""
        real = length_mask(source.lengths, source.encoded.shape[1])
        mean = source.encoded.masked_fill(~real[..., None], 0.0).sum(1) / source.lengths[:, None]
        index = torch.arange(self.max_length, device=mean.device) + self.max_length - source.lengths[:, None]  # (B, C)
        return (mean @ self.differences).gather(1, index).log_softmax(1)

    def _length_log_prob(self, source: Encoded, target: Sequences) -> Tensor:
        """(B,) log-probabilities of the target lengths; that of an empty target is −∞."""
        nats = self._length_log_probs(source).gather(1, (target.lengths - 1).clamp(min=0)[:, None])[:, 0]
        return nats.masked_fill(target.lengths == 0, -torch.inf)

    def _most_likely_lengths(self, source: Encoded, count: int) -> tuple[Tensor, Tensor]:
        """(B, L) lengths, and their log-probabilities."""
        nats, indices = self._length_log_probs(source).topk(min(count, self.max_length), dim=1)
        return indices + 1, nats


class Draft(NamedTuple):
    """A target between two passes."""

    ids: Tensor  # (B, K)
    log_probs: Tensor  # (B, K) of each token when it was predicted; 0 past a row's length


OUTPUTS: dict[str, type[CTCOutput] | type[MaskPredictOutput]] = {"ctc": CTCOutput, "masked": MaskPredictOutput}
