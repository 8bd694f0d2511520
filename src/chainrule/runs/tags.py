"""Runs of taggers: which tag does each word have?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from chainrule.data.conllu import encode_tagged, read_tagged, spelled, written
from chainrule.data.parallel import PairedCorpus
from chainrule.data.source import normalisation_of
from chainrule.decoding.beam import beam_search
from chainrule.decoding.generation import Generation
from chainrule.decoding.structured import viterbi
from chainrule.errors import ConfigError, nearest
from chainrule.evaluation.labels import LabelScore, label_score
from chainrule.models.tagger import Tagger
from chainrule.runs.predicting import HELD, PredictingRun, Said, held, in_groups
from chainrule.types import Sequences

SEARCHES = ("viterbi", "greedy", "beam")


class Tags(NamedTuple):
    """A sentence with its tags."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    log_prob: float  # nats, of these tags given the words


@dataclass(frozen=True, kw_only=True)
class TagRun(PredictingRun):
    """A model of tags given words."""

    does = "tags words"

    model: Tagger

    @property
    def labels(self) -> tuple[str, ...]:
        return self.model.config.labels

    def tag(
        self,
        sentences: Iterable[Sequence[str]],
        *,
        search: str | None = None,
        beam: int = 5,
        window: int = HELD,
    ) -> Iterator[Tags | None]:
        """The best tags of each sentence, in order; None for one without words. Any number of sentences may come.

        By default the search is exact where it can be (see `decoding.structured`), and a beam elsewhere.
        """
        normalise = normalisation_of(self.config.data)

        def tag(now: Sequence[Sequence[str]]) -> list[Tags]:
            rows = [
                self.tokenizer.encode(spelled([written(word, normalise) for word in words])).tolist() for words in now
            ]
            found = self.decode(rows, [len(words) for words in now], search=search, beam=beam)
            return [
                Tags(tuple(words), tuple(self.labels[one] for one in best.ids), best.log_prob)
                for words, best in zip(now, found, strict=True)
            ]

        return held(sentences, tag, window=window)

    def decode(
        self,
        rows: Sequence[Sequence[int]],
        lengths: Sequence[int],
        *,
        search: str | None = None,
        beam: int = 5,
        progress: Callable[[float], None] | None = None,
    ) -> list[Generation]:
        """The best tags of encoded sentences, each of so many words."""
        search = search or ("viterbi" if self.model.receptive_field == 1 else "beam")
        if search not in SEARCHES:
            raise ConfigError(f"unknown search {search!r}; {nearest(search, SEARCHES)}")

        def compute(group: Sequence[int]) -> list[Generation]:
            source = Sequences.pack([rows[row] for row in group], self.model.device)
            counts = [lengths[row] for row in group]
            if search == "viterbi":
                return viterbi(self.model, counts, source=source)
            width = 1 if search == "greedy" else beam
            found = beam_search(self.model, [[]] * len(group), width=width, length=counts, source=source)
            return [best for best, *_ in found]

        return in_groups([len(row) for row in rows], compute, progress=progress)

    def said(self, lines: Iterable[str], *, search: str | None = None, beam: int = 5) -> Iterator[Said | None]:
        for found in self.tag((line.split() for line in lines), search=search, beam=beam):
            yield None if found is None else Said(" ".join(found.tags), found._asdict())

    def score(
        self,
        data: str,
        *,
        search: str | None = None,
        beam: int = 5,
        progress: Callable[[float], None] | None = None,
    ) -> LabelScore:
        pairs = encode_tagged(read_tagged(data, self.config.data), self.tokenizer, self.labels)
        result = self.compare(pairs, search=search, beam=beam, progress=progress)
        self.keep_score(result, pairs.target, data)
        return result

    def compare(
        self,
        pairs: PairedCorpus,
        *,
        search: str | None = None,
        beam: int = 5,
        progress: Callable[[float], None] | None = None,
    ) -> LabelScore:
        """The score of encoded sentences with their tags."""
        rows = [row.tolist() for row in pairs.source.documents()]
        right = [row.tolist() for row in pairs.target.documents()]
        found = self.decode(rows, [len(tags) for tags in right], search=search, beam=beam, progress=progress)
        whole = sum(one.ids == tags for one, tags in zip(found, right, strict=True)) / len(right)
        return label_score(
            [tag for tags in right for tag in tags],
            [tag for one in found for tag in one.ids],
            self.labels,
            texts=len(right),
            whole=whole,
        )

    def about(self) -> dict[str, Any]:
        return super().about() | {"labels": ", ".join(self.labels), "known_words": self.model.config.words}
