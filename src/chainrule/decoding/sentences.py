"""From text to text: what stands between the lines of a file and the ids that a model translates.

No line can stop the others. An empty one stays empty; one that is too long for the model goes through as it is, and
says so in `finished`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from torch import Tensor

from chainrule.decoding.copying import copied, surfaces
from chainrule.decoding.drafts import Drafter
from chainrule.decoding.parallel import write
from chainrule.decoding.translation import Search, Translation, attention, log_probs, source_context, translate
from chainrule.errors import DecodingError
from chainrule.interface.base import AutoregressiveModel
from chainrule.interface.capabilities import is_right_to_left
from chainrule.interface.conditional import ParallelModel
from chainrule.tokenizers import Tokenizer

LONGEST = 1000  # source tokens; a longer line is no sentence
WINDOW = 512  # lines that are held at once in order to batch them by length
CARRIED = ("empty", "too long", "not text")


class Translated(NamedTuple):
    """A text in the other language."""

    text: str
    log_prob: float  # nats, log P(translation | source)
    score: float  # what it was ranked by
    tokens: int
    finished: str  # "eos", "length" where it was cut, or why it was not translated: one of CARRIED

    @classmethod
    def carried(cls, text: str, reason: str) -> Translated:
        """A text that goes through as it is."""
        return cls(text, 0.0, 0.0, 0, reason)

    @property
    def is_carried(self) -> bool:
        return self.finished in CARRIED


class Alignment(NamedTuple):
    """Which source tokens each target token looked at, in the order of both texts."""

    source: list[str]  # S pieces; "" is EOS
    target: list[str]  # T pieces
    weights: Tensor  # (T, S)


@dataclass(frozen=True)
class Translator:
    """A model with the vocabularies of its two languages."""

    model: AutoregressiveModel | ParallelModel
    source_tokenizer: Tokenizer
    tokenizer: Tokenizer
    normalise: Callable[[str], str] = str.strip  # what was done to the text that the model was trained on

    def __post_init__(self) -> None:
        source_context(self.model)  # which refuses a model that has no source

    def translate(
        self,
        texts: Sequence[str],
        search: Search,
        *,
        batch: int = 32,
        longest: int = LONGEST,
        copy_unknown: bool = False,
        draft: Drafter | None = None,
    ) -> list[list[Translated]]:
        """The best translations of each text, best first, in the order of the texts."""
        if copy_unknown:  # a model that cannot tell where it looked says so now, and not at the first unknown word
            attention(self.model, [self.encode_source("")], [self.encode_target("")])
        sources = [self.encode_source(text) for text in texts]
        limit = self._source_limit(longest)
        found: list[list[Translated]] = [[] for _ in texts]
        waiting = []
        for index, (text, source) in enumerate(zip(texts, sources, strict=True)):
            if not text.strip():
                found[index] = [Translated.carried("", "empty")]
            elif len(source) > limit:
                found[index] = [Translated.carried(text, "too long")]
            else:
                waiting.append(index)
        suppress = self._suppressed(copy_unknown)
        results = self._search([sources[index] for index in waiting], search, suppress, batch, draft)
        for index, translations in zip(waiting, results, strict=True):
            written = self._texts(texts[index], sources[index], translations, copy_unknown)
            found[index] = [
                Translated(text, one.log_prob, one.score, len(one.ids), one.finished)
                for text, one in zip(written, translations, strict=True)
            ]
        return found

    def _search(
        self, sources: list[list[int]], search: Search, suppress: list[int], batch: int, draft: Drafter | None
    ) -> list[list[Translation]]:
        """By what the model can do: one token after the other, or all at once."""
        if isinstance(self.model, ParallelModel):
            if draft is not None:
                raise DecodingError("this model writes all tokens at once and needs no guesses; leave out the draft")
            return write(self.model, sources, search, eos=self.tokenizer.eos, suppress=suppress, batch=batch)
        if search.passes is not None or search.length_candidates is not None:
            raise DecodingError(
                "this model writes one token after the other, and passes or length candidates were asked for; "
                "leave them out, or give a run of a parallel family, such as nonautoregressive"
            )
        return translate(
            self.model, sources, search, eos=self.tokenizer.eos, suppress=suppress, batch=batch, draft=draft
        )

    def log_probs(self, sources: Sequence[str], targets: Sequence[str], *, batch: int = 32) -> list[tuple[float, int]]:
        """Of each pair, log P(target | source) in nats, and the tokens of the target, EOS among them.

        A pair that is longer than the model can read or write has minus infinity.
        """
        written = [self.encode_target(text) for text in targets]
        nats = log_probs(self.model, [self.encode_source(text) for text in sources], written, batch=batch)
        return [(value, len(ids)) for value, ids in zip(nats, written, strict=True)]

    def align(self, source: str, target: str) -> Alignment:
        """What each token of the target looked at."""
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

    def _texts(
        self, text: str, source: Sequence[int], translations: Sequence[Translation], copy_unknown: bool
    ) -> list[str]:
        """What the ids of translations stand for."""
        unknown = self.tokenizer.unknown
        if not copy_unknown or not any(unknown in one.ids for one in translations):
            return [self.tokenizer.decode(self._in_reading_order(one.ids)) for one in translations]
        parts = surfaces(self.normalise(text), self.source_tokenizer.pieces(source[:-1]))
        targets = [one.written(self.tokenizer.eos) for one in translations]
        maps = attention(self.model, [source] * len(targets), targets)
        found = []
        for one, weights in zip(translations, maps, strict=True):
            ids = self._in_reading_order(one.ids)
            rows = weights[: len(ids)].flip(0) if is_right_to_left(self.model) else weights
            found.append(copied(self.tokenizer.pieces(ids), [token == unknown for token in ids], parts, rows))
        return found

    def _in_reading_order(self, ids: list[int]) -> list[int]:
        return ids[::-1] if is_right_to_left(self.model) else ids

    def _suppressed(self, copy_unknown: bool) -> list[int]:
        """An unknown token is no text, unless something is to take its place; nor are ids beyond the tokenizer's."""
        unknown = self.tokenizer.unknown
        hidden = [] if unknown is None or copy_unknown else [unknown]
        return [*hidden, *range(self.tokenizer.vocabulary, self.model.vocabulary)]

    def _source_limit(self, longest: int) -> int:
        if longest < 1:
            raise DecodingError(f"the longest source is {longest} tokens; allow at least 1")
        context = source_context(self.model)
        return longest if context is None else min(longest, context)


Window = Callable[[Sequence[str]], list[list[Translated]]]
"""Translates some texts at once."""


def streamed(
    texts: Iterable[str | Translated], translate: Window, *, window: int = WINDOW
) -> Iterator[list[Translated]]:
    """Translate any number of texts in the order given, `window` of them at a time, so that memory is bounded.

    What has been dealt with already, a line that could not be read, keeps its place among them.
    """
    waiting = iter(texts)
    while held := list(islice(waiting, window)):
        results = iter(translate([text for text in held if isinstance(text, str)]))
        for text in held:
            yield next(results) if isinstance(text, str) else [text]
