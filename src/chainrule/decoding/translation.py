"""Translating: beam search over models of a target given a source, in batches of sources of similar length.

The search itself is `beam.beam_search`, which knows models through `start` and `extend` alone; greedy search with a
draft is `generate.generate`, and finds the same. What attention tells
(coverage, and elsewhere alignments) is read afterwards, by one more pass over the finished translations: exact,
and no family has to carry its attention through the search.

Shape letters: T target positions, S source positions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from chainrule.config import Settings
from chainrule.data.batching import by_length
from chainrule.decoding.beam import beam_search
from chainrule.decoding.choose import GREEDY
from chainrule.decoding.drafts import Drafter
from chainrule.decoding.generate import Finish, Generation, generate
from chainrule.decoding.ranking import NORMALISERS, coverage
from chainrule.decoding.reading import PREFILL_LOGITS
from chainrule.decoding.speculative import Pace
from chainrule.errors import DecodingError
from chainrule.interface.base import AutoregressiveModel, DensityModel
from chainrule.interface.conditional import Conditional, HasAttention, ParallelModel
from chainrule.nn.shortlist import Shortlists
from chainrule.types import Batch, Sequences

TOKENS_AT_ONCE = 8192
"""Source tokens in a batch, padding and beam included: bounds the memory however long the sentences are."""


class Search(Settings):
    """How translations are looked for and ranked."""

    beam: int = Field(5, ge=1, description="hypotheses that are followed; 1 is greedy decoding")
    n_best: int = Field(1, ge=1, description="translations of each source, best first; at most as many as the beam")
    length_penalty: float = Field(1.0, description="0 ranks by probability, 1 by its mean per token, more: longer")
    normaliser: Literal["power", "wu"] = Field("power", description="length^A, or ((5 + length) / 6)^A")
    coverage_penalty: float = Field(0.0, ge=0, description="weight of what the attention has left out; 0: none")
    growth: float = Field(3.0, ge=0, description="a translation has at most so many tokens for each source token,")
    slack: int = Field(50, ge=1, description="and this many more")
    passes: int | None = Field(None, ge=1, description="parallel models: passes over a target; none: the model's own")
    length_candidates: int | None = Field(
        None, ge=1, description="parallel models that choose a length: how many are tried; none: the model's own"
    )
    shortlist: bool = Field(False, description="only words on a list made for each source, of models that have one")

    @model_validator(mode="after")
    def _beam_holds_the_results(self) -> Self:
        if self.n_best > self.beam:
            raise ValueError(
                f"n_best {self.n_best} is more than a beam of {self.beam} can hold; raise beam to {self.n_best}"
            )
        return self

    def limit(self, source_length: int, context: int | None) -> int:
        """How long a translation may become. It depends on its own source only, never on the batch."""
        longest = math.ceil(self.growth * source_length) + self.slack
        return longest if context is None else min(longest, context)

    def score(self, log_prob: float, length: int) -> float:
        return log_prob / NORMALISERS[self.normaliser](length, self.length_penalty)


class Translation(NamedTuple):
    """One translation of a source."""

    ids: list[int]  # in the order of the model, without EOS
    log_prob: float  # nats, log P(ids, EOS | source); without EOS where it was cut
    score: float  # what it was ranked by
    finished: Finish  # "eos", or "length" where it was cut

    def written(self, eos: int) -> list[int]:
        """What the model has predicted: the ids, and EOS where it came to that."""
        return [*self.ids, eos] if self.finished == "eos" else self.ids


def translate(
    model: AutoregressiveModel,
    sources: Sequence[Sequence[int]],
    search: Search,
    *,
    eos: int = 0,
    suppress: Sequence[int] = (),
    batch: int = 32,
    draft: Drafter | None = None,
) -> list[list[Translation]]:
    """The best translations of each source (ids that end with EOS), in the order of the sources.

    At most `batch` sources are searched at once, those of similar length together. What a source gives does not
    depend on those beside it. A `draft` makes greedy search faster and changes nothing else (see `speculative`).
    """
    source_context(model)  # which refuses a model that has no source
    if draft is not None and search.beam > 1:
        raise DecodingError(
            f"a draft guesses what greedy search finds, and a beam of {search.beam} was asked for; "
            "set the beam to 1, or leave out the draft"
        )
    if search.shortlist:
        model = shortlisted(model)
    decoder = _Decoder(model, search, eos, suppress, draft)
    found: list[list[Translation]] = [[] for _ in sources]
    for rows in by_length([len(source) for source in sources], batch, TOKENS_AT_ONCE // search.beam):
        for row, translations in zip(rows, decoder.translate([sources[row] for row in rows]), strict=True):
            found[row] = translations
    return found


class _Decoder:
    """How the batches of one request are translated, one after the other."""

    def __init__(
        self, model: AutoregressiveModel, search: Search, eos: int, suppress: Sequence[int], draft: Drafter | None
    ) -> None:
        self.model, self.search, self.eos, self.suppress, self.draft = model, search, eos, suppress, draft
        self.pace = Pace()  # of all batches: a sentence is too short to find out anew how far to guess ahead

    def translate(self, sources: Sequence[Sequence[int]]) -> list[list[Translation]]:
        results = self._searched(sources) if self.draft is None else self._drafted(sources)
        translations = [[_translation(one, self.search) for one in found] for found in results]
        if not self.search.coverage_penalty:
            return translations
        return [
            _covering(self.model, source, found, self.search, self.eos)
            for source, found in zip(sources, translations, strict=True)
        ]

    def _searched(self, sources: Sequence[Sequence[int]]) -> list[list[Generation]]:
        search = self.search
        return beam_search(
            self.model,
            [[]] * len(sources),
            width=search.beam,
            length=self._limits(sources),
            eos=self.eos,
            length_penalty=search.length_penalty,
            normaliser=NORMALISERS[search.normaliser],
            num=search.beam if search.coverage_penalty else search.n_best,
            ended_first=True,
            suppress=self.suppress,
            source=Sequences.pack(sources, self.model.device),
        )

    def _drafted(self, sources: Sequence[Sequence[int]]) -> list[list[Generation]]:
        found = generate(
            self.model,
            [[]] * len(sources),
            length=self._limits(sources),
            sampling=GREEDY,
            seeds=[0] * len(sources),  # nothing is drawn
            eos=self.eos,
            suppress=self.suppress,
            source=Sequences.pack(sources, self.model.device),
            draft=self.draft,
            pace=self.pace,
        )
        return [[one] for one in found]

    def _limits(self, sources: Sequence[Sequence[int]]) -> list[int]:
        return [self.search.limit(len(source), self.model.context) for source in sources]


def _translation(found: Generation, search: Search) -> Translation:
    length = len(found.ids) + (found.finished == "eos")
    return Translation(found.ids, found.log_prob, search.score(found.log_prob, length), found.finished)


def _covering(
    model: AutoregressiveModel, source: Sequence[int], found: Sequence[Translation], search: Search, eos: int
) -> list[Translation]:
    """Rank all that the search has finished anew, by score + β · coverage; what was cut stays behind what ended."""
    maps = attention(model, [source] * len(found), [one.written(eos) for one in found])
    weighed = [
        one._replace(score=one.score + search.coverage_penalty * coverage(weights, len(source)))
        for one, weights in zip(found, maps, strict=True)
    ]
    weighed.sort(key=lambda one: (one.finished != "length", one.score), reverse=True)
    return weighed[: search.n_best]


@torch.inference_mode()
def attention(model: DensityModel, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[Tensor]:
    """Of each pair, (T, S): how much the prediction of each target token looked at each source token."""
    if not isinstance(model, HasAttention):
        raise DecodingError(
            "this model has no attention over its source, so coverage, copying and alignments are not possible; "
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
    """Nats, log P(target | source), of each pair of ids that end with EOS, in the order given.

    What is longer than the model can read or write has no probability: minus infinity.
    """
    limit, source_limit = model.context or math.inf, source_context(model) or math.inf
    found = [-math.inf] * len(sources)
    lengths = [max(len(source), len(target)) for source, target in zip(sources, targets, strict=True)]
    fitting = [row for row in range(len(sources)) if len(sources[row]) <= source_limit and len(targets[row]) <= limit]
    at_once = min(TOKENS_AT_ONCE, PREFILL_LOGITS // model.vocabulary)
    for group in by_length([lengths[row] for row in fitting], batch, at_once):
        rows = [fitting[place] for place in group]
        pairs = Batch(
            Sequences.pack([targets[row] for row in rows], model.device),
            Sequences.pack([sources[row] for row in rows], model.device),
        )
        for row, nats in zip(rows, model.log_prob(pairs).tolist(), strict=True):
            found[row] = nats
    return found


def shortlisted(model: DensityModel) -> AutoregressiveModel:
    """The same model with its shortlist."""
    if not isinstance(model, Shortlists):
        raise DecodingError("this family has no shortlist; leave it out, or train fat with model.shortlist.partners=20")
    return model.shortlisted()


def source_context(model: DensityModel) -> int | None:
    """The longest source that the model can read; None where there is no limit."""
    if not isinstance(model, Conditional):
        raise DecodingError(
            f"this is a {model.task} model, which translates nothing; "
            "give a run of a translation family, such as transformer"
        )
    return model.source_context
