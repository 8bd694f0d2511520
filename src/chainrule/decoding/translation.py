"""Translation of token ids, in batches of sources of similar length.

Autoregressive models are searched by `beam.beam_search`, or greedily with a draft by `generation.generate_tokens`,
which finds the same. Parallel models generate by themselves. Attention weights (for coverage, copying and alignments)
are computed afterwards by one more pass over the finished translations: this is exact, and no family has to keep its
attention during the search.

Shape letters: T target positions, S source positions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from chainrule.config import Settings
from chainrule.data.batching import by_length
from chainrule.decoding.beam import NORMALISERS, beam_search
from chainrule.decoding.block_size import BlockSize
from chainrule.decoding.drafts import Drafter
from chainrule.decoding.generation import Finish, Generation, generate_tokens
from chainrule.decoding.incremental import PREFILL_LOGITS
from chainrule.decoding.one_pass import decode_targets, decodes_in_one_pass
from chainrule.decoding.sampling import GREEDY
from chainrule.errors import DecodingError
from chainrule.interface.base import AutoregressiveModel, DensityModel
from chainrule.interface.capabilities import BlockPredictor
from chainrule.interface.conditional import (
    Conditional,
    DecodingBudget,
    HasAttention,
    ParallelModel,
    ParallelOutput,
)
from chainrule.nn.shortlist import Shortlists
from chainrule.types import Batch, Sequences

MAX_BATCH_TOKENS = 8192
"""Maximum number of source tokens per batch, including padding and beam; bounds the memory for long sentences."""


class Search(Settings):
    """How translations are searched for and ranked."""

    beam: int = Field(5, ge=1, description="beam width; 1 is greedy decoding")
    n_best: int = Field(1, ge=1, description="number of translations per source, best first; at most the beam width")
    length_penalty: float = Field(1.0, description="0 ranks by probability, 1 by its mean per token, more: longer")
    normaliser: Literal["power", "wu"] = Field("power", description="length^A, or ((5 + length) / 6)^A")
    coverage_penalty: float = Field(0.0, ge=0, description="weight of the coverage penalty of Wu et al. 2016; 0: none")
    growth: float = Field(3.0, ge=0, description="maximum number of target tokens per source token,")
    slack: int = Field(50, ge=1, description="plus this many")
    passes: int | None = Field(None, ge=1, description="parallel models: refinement passes; none: the model's default")
    length_candidates: int | None = Field(
        None, ge=1, description="parallel models that predict a length: lengths tried; none: the model's default"
    )
    shortlist: bool = Field(False, description="score only a shortlist of words per source, if the model has one")

    @model_validator(mode="after")
    def _beam_holds_the_results(self) -> Self:
        if self.n_best > self.beam:
            raise ValueError(f"n_best {self.n_best} exceeds the beam width {self.beam}; raise beam to {self.n_best}")
        return self

    def limit(self, source_length: int, context: int | None) -> int:
        """Maximum length of a translation. It depends on its own source only, never on the batch."""
        longest = math.ceil(self.growth * source_length) + self.slack
        return longest if context is None else min(longest, context)

    def score(self, log_prob: float, length: int) -> float:
        return log_prob / NORMALISERS[self.normaliser](length, self.length_penalty)


class Translation(NamedTuple):
    """One translation of a source, as token ids."""

    ids: list[int]  # in the order of the model, without EOS
    log_prob: float  # nats, log P(ids, EOS | source); without EOS if it was cut
    score: float  # the ranking score
    finished: Finish  # "eos", or "length" if it was cut

    def with_eos(self, eos: int) -> list[int]:
        """All predicted tokens: the ids, and EOS if it was reached."""
        return [*self.ids, eos] if self.finished == "eos" else self.ids


def decode_sources(
    model: AutoregressiveModel | ParallelModel,
    sources: Sequence[Sequence[int]],
    search: Search,
    *,
    eos: int = 0,
    suppress: Sequence[int] = (),
    batch: int = 32,
    draft: Drafter | None = None,
) -> list[list[Translation]]:
    """The best translations of each source (ids that end with EOS), in the order of the sources.

    At most `batch` sources are decoded at once, those of similar length together. The result for a source does not
    depend on the others. A parallel model gives one translation per source. A `draft` makes greedy search faster
    without changing its result (see `speculative`).
    """
    source_context(model)  # raises DecodingError for a model without a source
    decoder: _Decoder
    if isinstance(model, ParallelModel):
        if draft is not None:
            raise DecodingError("this model generates all tokens in parallel, so it cannot use a draft; leave it out")
        require_parallel_options(search)
        decoder = _ParallelDecoder(model, search, eos, suppress)
    else:
        if search.passes is not None or search.length_candidates is not None:
            raise DecodingError(
                "passes and length candidates are options of parallel models, and this model is autoregressive; "
                "leave them out, or use a run of a parallel family, such as nonautoregressive"
            )
        if draft is not None and search.beam > 1:
            raise DecodingError(
                f"a draft is for greedy search, and the beam width is {search.beam}; "
                "set the beam width to 1, or leave out the draft"
            )
        if decodes_in_one_pass(model):
            if draft is not None or search.n_best > 1:
                raise DecodingError(
                    "this model generates all tokens in one pass, so it has one translation per source and no draft; "
                    "leave out n_best and the draft"
                )
            decoder = _OnePassDecoder(model, search, eos, suppress)
        else:
            decoder = _AutoregressiveDecoder(
                shortlisted(model) if search.shortlist else model, search, eos, suppress, draft
            )
    found: list[list[Translation]] = [[] for _ in sources]
    for rows in by_length([len(source) for source in sources], batch, MAX_BATCH_TOKENS // decoder.rows_per_source):
        for row, translations in zip(rows, decoder.decode_batch([sources[row] for row in rows]), strict=True):
            found[row] = translations
    return found


def require_parallel_options(search: Search) -> None:
    """Refuse options of beam search, which a parallel model does not use; its one translation is not ranked."""
    beam_options = ("n_best", "length_penalty", "normaliser", "coverage_penalty", "shortlist")
    changed = [name for name in beam_options if getattr(search, name) != Search.model_fields[name].default]
    if changed:
        raise DecodingError(
            f"{changed[0]} is an option of autoregressive models, and this model generates all tokens in parallel; "
            "leave it out, or use a run of an autoregressive family, such as transformer"
        )


class _Decoder(Protocol):
    rows_per_source: int

    def decode_batch(self, sources: Sequence[Sequence[int]]) -> list[list[Translation]]: ...


class _AutoregressiveDecoder:
    def __init__(
        self, model: AutoregressiveModel, search: Search, eos: int, suppress: Sequence[int], draft: Drafter | None
    ) -> None:
        self.model, self.search, self.eos, self.suppress, self.draft = model, search, eos, suppress, draft
        self.rows_per_source = search.beam
        self.block_size = BlockSize()  # shared by all batches: one sentence is too short to adapt to

    def decode_batch(self, sources: Sequence[Sequence[int]]) -> list[list[Translation]]:
        packed = Sequences.pack(sources, self.model.device)
        limits = [self.search.limit(len(source), self.model.context) for source in sources]
        results = self._beam_search(packed, limits) if self.draft is None else self._greedy(packed, limits)
        translations = [[_translation(one, self.search) for one in found] for found in results]
        if not self.search.coverage_penalty:
            return translations
        return [
            _rank_by_coverage(self.model, source, found, self.search, self.eos)
            for source, found in zip(sources, translations, strict=True)
        ]

    def _beam_search(self, sources: Sequences, limits: list[int]) -> list[list[Generation]]:
        search = self.search
        return beam_search(
            self.model,
            [[]] * len(limits),
            width=search.beam,
            length=limits,
            eos=self.eos,
            length_penalty=search.length_penalty,
            normaliser=NORMALISERS[search.normaliser],
            num=search.beam if search.coverage_penalty else search.n_best,
            ended_first=True,
            suppress=self.suppress,
            source=sources,
        )

    def _greedy(self, sources: Sequences, limits: list[int]) -> list[list[Generation]]:
        found = generate_tokens(
            self.model,
            [[]] * len(limits),
            length=limits,
            sampling=GREEDY,
            seeds=[0] * len(limits),  # unused
            eos=self.eos,
            suppress=self.suppress,
            source=sources,
            draft=self.draft,
            block_size=self.block_size,
        )
        return [[one] for one in found]


class _ParallelDecoder:
    def __init__(self, model: ParallelModel, search: Search, eos: int, suppress: Sequence[int]) -> None:
        self.model, self.eos, self.suppress = model, eos, suppress
        self.budget = decoding_budget(model, search)
        self.rows_per_source = self.budget.lengths

    @torch.inference_mode()
    def decode_batch(self, sources: Sequence[Sequence[int]]) -> list[list[Translation]]:
        packed = Sequences.pack(sources, self.model.device)
        outputs = self.model.generate(packed, self.budget, eos=self.eos, suppress=self.suppress)
        return [[_cut_at_eos(output, self.eos)] for output in outputs]


class _OnePassDecoder:
    rows_per_source = 1

    def __init__(self, model: AutoregressiveModel, search: Search, eos: int, suppress: Sequence[int]) -> None:
        self.model, self.search, self.eos, self.suppress = model, search, eos, suppress

    def decode_batch(self, sources: Sequence[Sequence[int]]) -> list[list[Translation]]:
        assert isinstance(self.model, BlockPredictor)
        packed = Sequences.pack(sources, self.model.device)
        found = decode_targets(self.model, packed, eos=self.eos, suppress=self.suppress)
        return [
            [_cut_at_eos(ParallelOutput(ids, nats, self.search.score(nats, max(1, len(ids)))), self.eos)]
            for ids, nats in found
        ]


def decoding_budget(model: ParallelModel, search: Search) -> DecodingBudget:
    """The budget of the search, with the model's defaults where the search has none."""
    default = model.default_budget
    beam = search.beam if default.beam > 1 else 1
    return DecodingBudget(search.passes or default.passes, search.length_candidates or default.lengths, beam)


def _translation(found: Generation, search: Search) -> Translation:
    length = len(found.ids) + (found.finished == "eos")
    return Translation(found.ids, found.log_prob, search.score(found.log_prob, length), found.finished)


def _cut_at_eos(output: ParallelOutput, eos: int) -> Translation:
    """Tokens after the first EOS are not part of the output."""
    ids, ended = output.ids, eos in output.ids
    return Translation(
        ids[: ids.index(eos)] if ended else ids, output.log_prob, output.score, "eos" if ended else "length"
    )


MIN_ATTENTION = 1e-6
"""Lower bound on the total attention to a source token: ignoring one is penalised, not impossible."""


def coverage(attention: Tensor, source_length: int) -> float:
    """Σ_s log min(Σ_t attention_ts, 1) of attention (T, S): 0 if every source token is fully attended to.

    (Wu et al. 2016, equation 14.) Source tokens with little attention tend to be missing from the translation.
    """
    totals = attention[:, :source_length].sum(0).clamp(MIN_ATTENTION, 1.0)
    return math.fsum(torch.log(totals).tolist())


def _rank_by_coverage(
    model: AutoregressiveModel, source: Sequence[int], found: Sequence[Translation], search: Search, eos: int
) -> list[Translation]:
    """Rank all finished hypotheses by score + β · coverage; those cut by the limit rank after those that ended."""
    maps = attention(model, [source] * len(found), [one.with_eos(eos) for one in found])
    rescored = [
        one._replace(score=one.score + search.coverage_penalty * coverage(weights, len(source)))
        for one, weights in zip(found, maps, strict=True)
    ]
    rescored.sort(key=lambda one: (one.finished != "length", one.score), reverse=True)
    return rescored[: search.n_best]


@torch.inference_mode()
def attention(model: DensityModel, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[Tensor]:
    """Cross-attention weights (T, S) of each pair, the mean over layers and heads."""
    if not isinstance(model, HasAttention):
        raise DecodingError(
            "this model has no cross-attention, which coverage, copying and alignments need; "
            "train a family that has it, such as transformer"
        )
    maps = model.attention_maps(Batch(Sequences.pack(targets, model.device), Sequences.pack(sources, model.device)))
    return [
        weights[: len(target), : len(source)] for weights, target, source in zip(maps, targets, sources, strict=True)
    ]


@torch.inference_mode()
def log_probs(
    model: AutoregressiveModel | ParallelModel,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    *,
    batch: int = 32,
) -> list[float]:
    """Log P(target | source) in nats of each pair of ids that end with EOS, in the order given.

    A pair that exceeds the model's context has probability 0: minus infinity.
    """
    limit, source_limit = model.context or math.inf, source_context(model) or math.inf
    found = [-math.inf] * len(sources)
    lengths = [max(len(source), len(target)) for source, target in zip(sources, targets, strict=True)]
    fitting = [row for row in range(len(sources)) if len(sources[row]) <= source_limit and len(targets[row]) <= limit]
    max_tokens = min(MAX_BATCH_TOKENS, PREFILL_LOGITS // model.vocabulary)
    for group in by_length([lengths[row] for row in fitting], batch, max_tokens):
        rows = [fitting[index] for index in group]
        pairs = Batch(
            Sequences.pack([targets[row] for row in rows], model.device),
            Sequences.pack([sources[row] for row in rows], model.device),
        )
        for row, nats in zip(rows, model.log_prob(pairs).tolist(), strict=True):
            found[row] = nats
    return found


def shortlisted(model: DensityModel) -> AutoregressiveModel:
    """The model restricted to its shortlist."""
    if not isinstance(model, Shortlists):
        raise DecodingError("this family has no shortlist; leave it out, or train fat with model.shortlist.partners=20")
    return model.shortlisted()


def source_context(model: DensityModel) -> int | None:
    """Maximum source length of the model; None if unlimited."""
    if not isinstance(model, Conditional):
        raise DecodingError(
            f"this is a {model.task} model, which has no source to translate; "
            "use a run of a translation family, such as transformer"
        )
    return model.source_context
