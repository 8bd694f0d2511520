"""Translation of text: a model with its tokenizers, streams of lines, and agreement of two models.

A line never stops the others. An empty one stays empty; one that is too long for the model is returned as it is, and
`finished` gives the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from torch import Tensor

from chainrule.decoding.copying import replace_unknown, surface_forms
from chainrule.decoding.drafts import Drafter
from chainrule.decoding.translation import (
    Search,
    Translation,
    attention,
    decode_sources,
    log_probs,
    source_context,
)
from chainrule.errors import DecodingError
from chainrule.interface.base import AutoregressiveModel
from chainrule.interface.capabilities import is_right_to_left
from chainrule.interface.conditional import ParallelModel
from chainrule.tokenizers import Tokenizer

MAX_SOURCE_TOKENS = 1000  # longer lines are not sentences
BUFFERED_LINES = 512  # lines buffered to batch them by length
UNTRANSLATED = ("empty", "too long", "not text")


class TranslatedText(NamedTuple):
    """One translation of a text."""

    text: str
    log_prob: float  # nats, log P(translation | source)
    score: float  # the ranking score
    tokens: int
    finished: str  # "eos", "length" if it was cut, or the reason why it was not translated: one of UNTRANSLATED

    @classmethod
    def untranslated(cls, text: str, reason: str) -> TranslatedText:
        """A text that is returned as it is."""
        return cls(text, 0.0, 0.0, 0, reason)

    @property
    def is_untranslated(self) -> bool:
        return self.finished in UNTRANSLATED


class Alignment(NamedTuple):
    """Cross-attention weights between the tokens of two texts, both in reading order."""

    source: list[str]  # S pieces; "" is EOS
    target: list[str]  # T pieces
    weights: Tensor  # (T, S)


@dataclass(frozen=True)
class Translator:
    """A model with the tokenizers of its source and target."""

    model: AutoregressiveModel | ParallelModel
    source_tokenizer: Tokenizer
    tokenizer: Tokenizer
    normalise: Callable[[str], str] = str.strip  # the normalisation of the training data

    def __post_init__(self) -> None:
        source_context(self.model)  # raises DecodingError for a model without a source

    def translate_stream(
        self,
        texts: Iterable[str | TranslatedText],
        search: Search,
        *,
        batch: int = 32,
        longest: int = MAX_SOURCE_TOKENS,
        copy_unknown: bool = False,
        agree_with: Translator | None = None,
        draft: Drafter | None = None,
        window: int = BUFFERED_LINES,
    ) -> Iterator[list[TranslatedText]]:
        """Translate any number of texts in order, buffering `window` of them at a time, so that memory is bounded.

        Items that are results already, such as lines that could not be decoded, are passed through. With `agree_with`,
        the candidates of both models are ranked by both (see `agreement`).
        """
        if agree_with is not None:
            if draft is not None:
                raise DecodingError("agreement of two runs needs beam search, which cannot use a draft; leave it out")
            if copy_unknown:
                raise DecodingError("unknown words cannot be copied when two runs must agree; leave out copy_unknown")

        def translate_window(lines: Sequence[str]) -> list[list[TranslatedText]]:
            if agree_with is not None:
                return agreement(self, agree_with, lines, search, batch=batch, longest=longest)
            return self.translate_texts(
                lines, search, batch=batch, longest=longest, copy_unknown=copy_unknown, draft=draft
            )

        return _buffered(texts, translate_window, window)

    def translate_texts(
        self,
        texts: Sequence[str],
        search: Search,
        *,
        batch: int = 32,
        longest: int = MAX_SOURCE_TOKENS,
        copy_unknown: bool = False,
        draft: Drafter | None = None,
    ) -> list[list[TranslatedText]]:
        """The best translations of each text, best first, in the order of the texts."""
        if copy_unknown:  # a model without cross-attention fails here, and not at the first unknown word
            attention(self.model, [self.encode_source("")], [self.encode_target("")])
        sources = [self.encode_source(text) for text in texts]
        limit = self._source_limit(longest)
        found: list[list[TranslatedText]] = [[] for _ in texts]
        fitting = []
        for index, (text, source) in enumerate(zip(texts, sources, strict=True)):
            if not text.strip():
                found[index] = [TranslatedText.untranslated("", "empty")]
            elif len(source) > limit:
                found[index] = [TranslatedText.untranslated(text, "too long")]
            else:
                fitting.append(index)
        results = decode_sources(
            self.model,
            [sources[index] for index in fitting],
            search,
            eos=self.tokenizer.eos,
            suppress=self.suppressed(copy_unknown),
            batch=batch,
            draft=draft,
        )
        for index, translations in zip(fitting, results, strict=True):
            decoded = self._decode(texts[index], sources[index], translations, copy_unknown)
            found[index] = [
                TranslatedText(text, one.log_prob, one.score, len(one.ids), one.finished)
                for text, one in zip(decoded, translations, strict=True)
            ]
        return found

    def log_probs(self, sources: Sequence[str], targets: Sequence[str], *, batch: int = 32) -> list[tuple[float, int]]:
        """Log P(target | source) in nats of each pair, and the number of target tokens, including EOS.

        A pair that exceeds the model's context has minus infinity.
        """
        target_ids = [self.encode_target(text) for text in targets]
        nats = log_probs(self.model, [self.encode_source(text) for text in sources], target_ids, batch=batch)
        return [(value, len(ids)) for value, ids in zip(nats, target_ids, strict=True)]

    def align(self, source: str, target: str) -> Alignment:
        """The attention of each target token over the source tokens."""
        source_ids, target_ids = self.encode_source(source), self.encode_target(target)
        [weights] = attention(self.model, [source_ids], [target_ids])
        if is_right_to_left(self.model):
            weights = weights[[*range(len(target_ids) - 2, -1, -1), len(target_ids) - 1]]
            target_ids = [*target_ids[-2::-1], target_ids[-1]]
        return Alignment(self.source_tokenizer.pieces(source_ids), self.tokenizer.pieces(target_ids), weights)

    def encode_source(self, text: str) -> list[int]:
        return [*self.source_tokenizer.encode(self.normalise(text)).tolist(), self.source_tokenizer.eos]

    def encode_target(self, text: str) -> list[int]:
        """Ids in the order of the model; EOS is last in either direction."""
        return [*self._in_reading_order(self.tokenizer.encode(self.normalise(text)).tolist()), self.tokenizer.eos]

    def _with_text(self, ids: Sequence[int]) -> list[int]:
        """The ids without those that have no text, such as the sentinels of a span model."""
        return [index for index in ids if index < self.tokenizer.vocabulary]

    def _decode(
        self, text: str, source: Sequence[int], translations: Sequence[Translation], copy_unknown: bool
    ) -> list[str]:
        """The texts of translations of one source."""
        unknown = self.tokenizer.unknown
        if not copy_unknown or not any(unknown in one.ids for one in translations):
            return [self.tokenizer.decode(self._in_reading_order(self._with_text(one.ids))) for one in translations]
        surfaces = surface_forms(self.normalise(text), self.source_tokenizer.pieces(source[:-1]))
        targets = [one.with_eos(self.tokenizer.eos) for one in translations]
        maps = attention(self.model, [source] * len(targets), targets)
        found = []
        for one, weights in zip(translations, maps, strict=True):
            ids = self._in_reading_order(one.ids)
            rows = weights[: len(ids)].flip(0) if is_right_to_left(self.model) else weights
            is_unknown = [token == unknown for token in ids]
            found.append(replace_unknown(self.tokenizer.pieces(ids), is_unknown, surfaces, rows))
        return found

    def _in_reading_order(self, ids: list[int]) -> list[int]:
        return ids[::-1] if is_right_to_left(self.model) else ids

    def suppressed(self, copy_unknown: bool) -> list[int]:
        """Ids without a text: the unknown token unless it is to be replaced, and ids beyond the tokenizer's."""
        unknown = self.tokenizer.unknown
        hidden = [] if unknown is None or copy_unknown else [unknown]
        return [*hidden, *range(self.tokenizer.vocabulary, self.model.vocabulary)]

    def _source_limit(self, longest: int) -> int:
        if longest < 1:
            raise DecodingError(f"the maximum source length is {longest} tokens; it must be at least 1")
        context = source_context(self.model)
        return longest if context is None else min(longest, context)


def _buffered(
    texts: Iterable[str | TranslatedText], process: Callable[[Sequence[str]], list[list[TranslatedText]]], window: int
) -> Iterator[list[TranslatedText]]:
    remaining = iter(texts)
    while buffered := list(islice(remaining, window)):
        results = iter(process([text for text in buffered if isinstance(text, str)]))
        for text in buffered:
            yield next(results) if isinstance(text, str) else [text]


def agreement(
    one: Translator,
    other: Translator,
    texts: Sequence[str],
    search: Search,
    *,
    batch: int = 32,
    longest: int = MAX_SOURCE_TOKENS,
) -> list[list[TranslatedText]]:
    """The `n_best` translations of each text by the mean score of two models (Liu et al. 2016).

    The candidates are those of both searches. A left-to-right model is best at the beginning of a sentence, a
    right-to-left model at its end, and what both find probable is better than the choice of either. The models may
    differ in direction, family and vocabulary, since they are compared by text. Each score is log P normalised by the
    model's own number of tokens; `log_prob` is the mean too.
    """
    wide = search.model_copy(update={"n_best": search.beam})
    found = [translator.translate_texts(texts, wide, batch=batch, longest=longest) for translator in (one, other)]
    merged = [{result.text: result for result in (*first, *second)} for first, second in zip(*found, strict=True)]
    untranslated = [any(result.is_untranslated for result in results.values()) for results in merged]
    pairs = [
        (text, target)
        for text, results, skipped in zip(texts, merged, untranslated, strict=True)
        for target in ([] if skipped else results)
    ]
    sources, targets = [source for source, _ in pairs], [target for _, target in pairs]
    scored = [translator.log_probs(sources, targets, batch=batch) for translator in (one, other)]
    scores = dict(zip(pairs, zip(*scored, strict=True), strict=True))

    def rescored(text: str, result: TranslatedText) -> TranslatedText:
        both = scores[text, result.text]
        return result._replace(
            log_prob=sum(nats for nats, _ in both) / 2,
            score=sum(search.score(nats, tokens) for nats, tokens in both) / 2,
        )

    ranked = []
    for text, results, skipped in zip(texts, merged, untranslated, strict=True):
        candidates = list(results.values())
        if not skipped:
            candidates = sorted((rescored(text, result) for result in candidates), key=lambda result: -result.score)
        ranked.append(candidates[: search.n_best])
    return ranked
