"""Translation without a chain: all tokens of a target at once, given the source.

Every target position sees every other and the whole source, through the encoder and the decoder of `transformer`. Two
outputs turn what they see into a distribution over targets.

`ctc` (Libovický & Helcl, 2018). Each source token becomes k slots, and a slot says a token or keeps silent:

    x_u = W_{u − ⌈kn⌉} m_n,   n = ⌊u / k⌋                   m, the encoded source
    h = Decoder(x)                                          every slot sees every other, and m
    P(silence | u) = σ(a · h_u + c),   P(v | u) = σ(−a · h_u − c) softmax_v(W h_u + b)
    P(y | s) = Σ over the paths that spell y of Π_u P(π_u | u)                  see `nn.ctc`

No length is chosen: silence makes up for it. One pass writes the target. In training, some slots are shown what they
should say on the likeliest path, the more of them the worse the model knows it (glancing: Qian et al., 2021; with CTC:
Gu & Kong, 2021), so that the others learn to fit in with their neighbours.

`masked` (mask-predict: Ghazvininejad et al., 2019). The length is chosen first, then all tokens are predicted from
masks; then those that are least sure are masked again and predicted given the others, and so on for some passes:

    P(n | s) = softmax_n(w_(n − S) · mean(m)),   P(y | s) = P(n | s) Π_t P(y_t | n masks, s)
    h = Decoder(x),   x_t = E[token or mask at t] + m_⌊t S / n⌋     the source, stretched to the length of the target
                                                                    (Gu et al., 2018), shows where to look

Training masks n of the T tokens, with n uniform, and minimises −log P(T | s) − T/n Σ_masked log P(y_t | the others, s),
on average a bound on the surprisal of writing the tokens one by one in a random order.

Both likelihoods are exact and normalised over all targets, but no product over next tokens. `masked` scores what one
pass can write: more passes write better targets, whose probability nobody knows.

Shape letters: B rows, S source tokens, U slots, T target tokens, K positions, N positions of all rows, V vocabulary.
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
from chainrule.data.counting import Progress
from chainrule.interface.base import readable
from chainrule.interface.capabilities import FitsStatistics, TokenIds, TokenPairs
from chainrule.interface.conditional import DecodingBudget, ParallelModel, ParallelOutput, require_one_pass
from chainrule.models.ngram import NGram, NGramConfig
from chainrule.models.transformer import Decoder, Encoder, Memory, TransformerConfig
from chainrule.nn.attention import padding_bias
from chainrule.nn.ctc import Lattice, Ratio, Slot, Weights, search, spelt
from chainrule.nn.layers import input_projection
from chainrule.nn.tokens import PairTable, lowest
from chainrule.types import Batch, Sequences, length_mask, map_state

BEAM = 5  # targets that are followed where nobody says how many
FAIR = -3.5  # nats below the best choice of a slot, up to which a token is tried
NEVER_SILENT = -60.0  # nats: there is always a way through a slot, though all that it would say is suppressed
COUNTED_AT_ONCE = 1024  # targets


class LanguageConfig(Settings):
    """The n-gram model of targets that weighs what slots say, in a search with a beam (see `nn.ctc`)."""

    order: int = Field(4, ge=0, description="length of its longest n-gram; 0: no such model")
    tokens: int = Field(2_000_000, ge=1, description="of the training targets, so many are counted")
    weight: float = Field(0.3, ge=0, description="of its nats beside those of the slots")
    bonus: float = Field(3.5, description="nats for each token that is said: by the rest alone, short targets win")


class NonAutoregressiveConfig(TransformerConfig):
    """The defaults have 1.7M parameters besides the embeddings."""

    encoder_layers: int = Field(6, ge=1, description="blocks that read the source")
    decoder_layers: int = Field(2, ge=1, description="blocks that write the target")
    output: Literal["ctc", "masked"] = Field(
        "ctc", description="ctc: slots that speak or keep silent, one pass; masked: a length, then any number of passes"
    )
    slots: float = Field(
        2.0,
        ge=1,
        le=16,
        description="ctc: slots for each source token, in hundredths; a target cannot have more tokens",
    )
    glancing: float = Field(0.3, ge=0, le=1, description="ctc: slots shown in training, as a share of the wrong ones")
    language: LanguageConfig = LanguageConfig()


class NonAutoregressive(ParallelModel, FitsStatistics):
    """Parallel translation: all target tokens in one pass (CTC), or masked and predicted again in a few."""

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
        return torch.rand(*self.output.draws(self._checked(batch)), device=self.device)

    def loss(self, batch: Batch, noise: Tensor, *, smoothing: float = 0.0) -> Tensor:
        target, source = self._checked(batch)
        return self.output.loss(self.body, self.body.read(source), target, noise, smoothing)

    def log_prob(self, batch: Batch) -> Tensor:
        target, source = self._checked(batch)
        return self.output.log_prob(self.body, self.body.read(source), target)

    @torch.inference_mode()
    def generate(
        self, source: Sequences, budget: DecodingBudget, *, eos: int = 0, suppress: Sequence[int] = ()
    ) -> list[ParallelOutput]:
        read = self.body.read(self.require_source(source))
        return self.output.generate(self.body, read, budget, suppress)

    def _checked(self, batch: Batch) -> Pair:
        self.require_room(batch.target.ids.shape[1])
        return Pair(Sequences(readable(batch.target), batch.target.lengths), self.require_source(batch.source))


class Pair(NamedTuple):
    """A batch that fits."""

    target: Sequences
    source: Sequences


class Read(NamedTuple):
    """What was read of the sources."""

    encoded: Tensor  # (B, S, D)
    memory: Memory  # what the decoder sees of it

    @property
    def lengths(self) -> Tensor:
        return self.memory.lengths


class Body(nn.Module):
    """What both outputs share: the source is read, and vectors at all target positions see it and each other."""

    def __init__(self, config: NonAutoregressiveConfig) -> None:
        super().__init__()
        self.tokens = PairTable(
            config.vocabulary, config.width, source_vocabulary=config.own_source_rows, tied=config.tied
        )
        self.encoder = Encoder(config)
        positions = Ratio.of(config.slots).slots(config.context) if config.output == "ctc" else config.context
        self.decoder = Decoder(config.model_copy(update={"context": positions}))

    @property
    def nothing(self) -> int:
        """The id of what stands where no token is: a mask, or silence. It can be read and is never predicted."""
        return self.tokens.vocabulary

    def read(self, source: Sequences) -> Read:
        embedded = self.tokens.embed_source(readable(source))
        encoded = self.encoder(embedded, padding_bias(source.lengths, embedded.shape[1], embedded.dtype))
        return Read(encoded, self.decoder.encoder_memory(encoded, source.lengths))

    def decode(self, inputs: Tensor, lengths: Tensor, memory: Memory) -> Tensor:
        """(B, K, D), of which each row has its own length, to (B, K, D)."""
        return self.decoder.at_once(inputs, lengths, memory)

    def choose(self, hidden: Tensor, suppress: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The likeliest token at each vector (N, D), and its log-probability."""
        logits = self.tokens.readout(hidden)
        whole = logits.logsumexp(-1)
        if suppress:
            logits[:, list(suppress)] = -torch.inf
        best, ids = logits.max(-1)
        return ids, best - whole


class Output(nn.Module, ABC):
    """From what target positions see to a distribution over targets."""

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
    def draws(self, batch: Pair) -> tuple[int, int]:
        """How many numbers the loss of a batch draws: rows, and numbers for each."""

    @abstractmethod
    def loss(self, body: Body, read: Read, target: Sequences, noise: Tensor, smoothing: float) -> Tensor:
        """See `ParallelModel.loss`."""

    @abstractmethod
    def log_prob(self, body: Body, read: Read, target: Sequences) -> Tensor:
        """(B,) nats."""

    @abstractmethod
    def generate(self, body: Body, read: Read, budget: DecodingBudget, suppress: Sequence[int]) -> list[ParallelOutput]:
        """See `ParallelModel.write`."""


class Slots(Output):
    """Connectionist temporal classification over k slots for each source token."""

    def __init__(self, config: NonAutoregressiveConfig) -> None:
        super().__init__()
        self.ratio, self.glancing = Ratio.of(config.slots), config.glancing
        self.split = input_projection(config.width, self.ratio.most * config.width)
        self.silence = nn.Parameter(torch.zeros(config.width))  # a
        self.level = nn.Parameter(torch.zeros(1))  # c
        self.counted = config.language.tokens
        self.weights = Weights(config.language.weight, config.language.bonus)
        order = config.language.order
        self.language = NGram(NGramConfig(vocabulary=config.vocabulary, order=order)) if order else None

    @property
    def default_budget(self) -> DecodingBudget:
        return DecodingBudget(beam=BEAM if self._knows_language else 1)

    @property
    def _knows_language(self) -> bool:
        return self.language is not None and self.language.sizes[0] > 0

    def fit_statistics(self, targets: Iterable[TokenIds]) -> None:
        if self.language is None:
            return
        rows, left = iter(targets), self.counted
        while left > 0 and (some := list(islice(rows, COUNTED_AT_ONCE))):
            taken = Sequences.pack(some)
            self.language.observe(taken)
            left -= int(taken.lengths.sum())
        self.language.estimate()

    def draws(self, batch: Pair) -> tuple[int, int]:
        rows, width = batch.source.ids.shape
        return rows, self.ratio.slots(width)

    def loss(self, body: Body, read: Read, target: Sequences, noise: Tensor, smoothing: float) -> Tensor:
        inputs, slots = self._inputs(read)
        if self.training and self.glancing:
            wanted, shown = self._glance(body, read, target, inputs, slots, noise)
            inputs = torch.where(shown[..., None], body.tokens.embed(wanted), inputs)
        lattice = self._lattice(body, body.decode(inputs, slots, read.memory), slots, target, smoothing)
        return -lattice.log_prob()[lattice.possible].sum()

    def log_prob(self, body: Body, read: Read, target: Sequences) -> Tensor:
        inputs, slots = self._inputs(read)
        lattice = self._lattice(body, body.decode(inputs, slots, read.memory), slots, target)
        return lattice.log_prob().masked_fill(~lattice.possible, -torch.inf)

    def generate(self, body: Body, read: Read, budget: DecodingBudget, suppress: Sequence[int]) -> list[ParallelOutput]:
        require_one_pass(budget)
        inputs, slots = self._inputs(read)
        hidden = body.decode(inputs, slots, read.memory)
        if budget.beam > 1 and self.language is not None and self._knows_language:
            said = self._chances(body, hidden, slots, suppress)
            language = self.language.one_by_one()
            return [ParallelOutput(*search(row, language, self.weights, budget.beam)) for row in said]
        path, log_probs = self._path(body, hidden, slots, suppress)
        found = zip(spelt(path, slots, body.nothing), log_probs.sum(1).tolist(), strict=True)
        return [ParallelOutput(ids, nats, nats / max(1, len(ids))) for ids, nats in found]

    def _inputs(self, read: Read) -> tuple[Tensor, Tensor]:
        """The vectors that slots begin with, (B, U, D), and how many of them each row has."""
        ways = self.split(read.encoded).unflatten(-1, (self.ratio.most, -1)).flatten(1, 2)
        return ways[:, self.ratio.origins(read.encoded.shape[1], ways.device)], self.ratio.slots(read.lengths)

    def _silence(self, hidden: Tensor) -> Tensor:
        """(B, U) logits of saying nothing."""
        return hidden @ self.silence + self.level

    def _lattice(self, body: Body, hidden: Tensor, slots: Tensor, target: Sequences, smoothing: float = 0.0) -> Lattice:
        """How likely each real slot is to say the tokens of its target: no other word meets the slots of padding."""
        real = length_mask(slots, hidden.shape[1])
        vectors, silence = hidden[real], self._silence(hidden)  # (N, D), (B, U)
        ids = target.ids[real.nonzero()[:, 0]]  # (N, T)
        spoken = body.tokens.log_probs(vectors, ids, smoothing=smoothing) + F.logsigmoid(-silence[real])[:, None]
        everywhere = spoken.new_zeros(*real.shape, spoken.shape[1])
        everywhere = everywhere.masked_scatter(real[..., None], spoken)
        return Lattice.of(everywhere, F.logsigmoid(silence), slots, target)

    def _path(self, body: Body, hidden: Tensor, slots: Tensor, suppress: Sequence[int]) -> tuple[Tensor, Tensor]:
        """What each slot says by itself, (B, U), and its log-probability.

        Where silence has half of the probability, no token can have more, and no word is scored.
        """
        real, silence = length_mask(slots, hidden.shape[1]), self._silence(hidden)
        open_ = real & (silence < 0)
        path = torch.full_like(silence, body.nothing, dtype=torch.int64)
        log_probs = F.logsigmoid(silence).masked_fill_(~real, 0.0)
        ids, nats = body.choose(hidden[open_], suppress)
        nats = nats + F.logsigmoid(-silence[open_])
        speaks = nats > log_probs[open_]
        path[open_] = torch.where(speaks, ids, body.nothing)
        log_probs[open_] = torch.where(speaks, nats, log_probs[open_])
        return path, log_probs

    def _chances(self, body: Body, hidden: Tensor, slots: Tensor, suppress: Sequence[int]) -> list[list[Slot]]:
        """Of each row, the choices of its slots that are not much worse than the best one."""
        real, silence = length_mask(slots, hidden.shape[1]), self._silence(hidden)
        open_ = real & (silence < -FAIR)  # else no token is likely enough beside silence
        nats = body.tokens.readout(hidden[open_]).log_softmax(-1) + F.logsigmoid(-silence[open_])[:, None]
        if suppress:
            nats[:, list(suppress)] = -torch.inf
        silent = F.logsigmoid(silence).clamp(min=NEVER_SILENT)
        best = torch.maximum(nats.amax(-1), silent[open_])
        places, tokens = (nats > best[:, None] + FAIR).nonzero(as_tuple=True)
        rows, numbers = (part[places].tolist() for part in open_.nonzero(as_tuple=True))
        found = [
            [Slot(chance, {}) for chance in row[:count]]
            for row, count in zip(silent.exp().tolist(), slots.tolist(), strict=True)
        ]
        for row, number, token, chance in zip(
            rows, numbers, tokens.tolist(), nats[places, tokens].exp().tolist(), strict=True
        ):
            found[row][number].tokens[token] = chance
        return found

    @torch.no_grad()
    def _glance(
        self, body: Body, read: Read, target: Sequences, inputs: Tensor, slots: Tensor, noise: Tensor
    ) -> tuple[Tensor, Tensor]:
        """What each slot should say, (B, U), and whether it is shown that."""
        hidden = body.decode(inputs, slots, read.memory)
        wanted = self._lattice(body, hidden, slots, target).best(body.nothing)
        path, _ = self._path(body, hidden, slots, ())
        real = length_mask(slots, inputs.shape[1])
        wrong = ((path != wanted) & real).sum(1)
        return wanted, lowest(noise[:, : real.shape[1]], real, self.glancing * wrong)


class Masks(Output):
    """A length, then masks that are predicted, some of them again and again."""

    @property
    def default_budget(self) -> DecodingBudget:
        return DecodingBudget(passes=4, lengths=3)

    def __init__(self, config: NonAutoregressiveConfig) -> None:
        super().__init__()
        self.longest = config.context
        # For each difference from the source's length, from 1 − longest to longest − 1.
        self.differences = nn.Parameter(torch.zeros(config.width, 2 * config.context - 1))

    def tables(self) -> Iterator[nn.Parameter]:
        yield self.differences

    def draws(self, batch: Pair) -> tuple[int, int]:
        rows, width = batch.target.ids.shape
        return rows, 1 + width

    def loss(self, body: Body, read: Read, target: Sequences, noise: Tensor, smoothing: float) -> Tensor:
        real = target.mask
        count = 1 + (noise[:, 0] * target.lengths).floor()
        masked = lowest(noise[:, 1 : 1 + real.shape[1]], real, count)
        weights = (target.lengths / count)[masked.nonzero()[:, 0]]
        nats = self._log_probs(body, read, target, masked, smoothing)
        return -self._of_length(read, target).sum() - (weights * nats).sum()

    def log_prob(self, body: Body, read: Read, target: Sequences) -> Tensor:
        nats = target.ids.new_zeros(target.ids.shape, dtype=read.encoded.dtype)
        nats[target.mask] = self._log_probs(body, read, target, target.mask)
        return nats.sum(1) + self._of_length(read, target)

    def generate(self, body: Body, read: Read, budget: DecodingBudget, suppress: Sequence[int]) -> list[ParallelOutput]:
        lengths, of_lengths = self._likeliest(read, budget.lengths)  # (B, L)
        candidates = lengths.shape[1]
        repeated = map_state(lambda part: part.repeat_interleave(candidates, 0), read)
        draft = self.refined(body, repeated, lengths.flatten(), budget.passes, suppress)
        log_probs = draft.log_probs.sum(1).view_as(lengths) + of_lengths
        scores = log_probs / lengths
        best = scores.argmax(1, keepdim=True)  # (B, 1)
        ids = draft.ids.view(*lengths.shape, -1)[torch.arange(len(best), device=best.device), best[:, 0]]
        chosen = (part.gather(1, best)[:, 0].tolist() for part in (lengths, log_probs, scores))
        found = zip(ids.tolist(), *chosen, strict=True)
        return [ParallelOutput(ids[:length], nats, score) for ids, length, nats, score in found]

    def refined(self, body: Body, read: Read, lengths: Tensor, passes: int, suppress: Sequence[int]) -> Draft:
        """Predict everything, then what is least sure once more in each further pass, less and less of it."""
        real = length_mask(lengths, int(lengths.max()))
        nothing = torch.full(real.shape, body.nothing, device=real.device)
        draft = Draft(nothing, torch.zeros(real.shape, dtype=read.encoded.dtype, device=real.device))
        unknown = real
        for left in range(passes - 1, -1, -1):
            draft = self.predicted(body, read, draft, unknown, lengths, suppress)
            unknown = lowest(draft.log_probs, real, lengths * left // passes)
        return draft

    def predicted(
        self, body: Body, read: Read, draft: Draft, unknown: Tensor, lengths: Tensor, suppress: Sequence[int]
    ) -> Draft:
        """The draft with its unknown tokens predicted from the others."""
        ids, log_probs = draft.ids.masked_fill(unknown, body.nothing), draft.log_probs.clone()
        hidden = self.hidden(body, read, ids, lengths)
        ids[unknown], log_probs[unknown] = body.choose(hidden[unknown], suppress)
        return Draft(ids, log_probs)

    def hidden(self, body: Body, read: Read, ids: Tensor, lengths: Tensor) -> Tensor:
        """What positions with these tokens, or masks, see: (B, K, D)."""
        places = torch.arange(ids.shape[1], device=ids.device) * read.lengths[:, None] // lengths[:, None].clamp(min=1)
        places = torch.minimum(places, read.lengths[:, None] - 1)  # those past the end of a row
        stretched = read.encoded.gather(1, places[..., None].expand(-1, -1, read.encoded.shape[2]))
        return body.decode(body.tokens.embed(ids) + stretched, lengths, read.memory)

    def _log_probs(self, body: Body, read: Read, target: Sequences, masked: Tensor, smoothing: float = 0.0) -> Tensor:
        """(N,) nats of the tokens that are masked, given the others."""
        hidden = self.hidden(body, read, target.ids.masked_fill(masked, body.nothing), target.lengths)[masked]
        return body.tokens.log_probs(hidden, target.ids[masked][:, None], smoothing=smoothing)[:, 0]

    def _lengths(self, read: Read) -> Tensor:
        """(B, C) nats of every length from 1 on."""
        real = length_mask(read.lengths, read.encoded.shape[1])
        mean = read.encoded.masked_fill(~real[..., None], 0.0).sum(1) / read.lengths[:, None]
        every = torch.arange(self.longest, device=mean.device)
        places = every + self.longest - read.lengths[:, None]  # (B, C)
        return (mean @ self.differences).gather(1, places).log_softmax(1)

    def _of_length(self, read: Read, target: Sequences) -> Tensor:
        """(B,) nats of the lengths that targets have; none is empty."""
        nats = self._lengths(read).gather(1, (target.lengths - 1).clamp(min=0)[:, None])[:, 0]
        return nats.masked_fill(target.lengths == 0, -torch.inf)

    def _likeliest(self, read: Read, count: int) -> tuple[Tensor, Tensor]:
        """(B, L) lengths, and their nats."""
        nats, places = self._lengths(read).topk(min(count, self.longest), dim=1)
        return places + 1, nats


class Draft(NamedTuple):
    """A target in the making."""

    ids: Tensor  # (B, K)
    log_probs: Tensor  # (B, K) of each token when it was predicted; 0 past a row's length


OUTPUTS: dict[str, type[Slots] | type[Masks]] = {"ctc": Slots, "masked": Masks}
