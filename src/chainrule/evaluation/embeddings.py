"""Evaluation of word vectors: nearest neighbours, analogies, and correlation with human similarity judgements.

All similarities are cosines. Scores include the number of questions with out-of-vocabulary words, because a score over
the others only would favour small vocabularies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field

from chainrule.config import Settings
from chainrule.errors import ConfigError, DataError, close_names
from chainrule.evaluation.scores import MetricValues

Matrix = npt.NDArray[np.float32]

MAX_BATCH_QUESTIONS = 256
TINY = np.finfo(np.float32).tiny  # lower bound on vector lengths
RESTRICTED = 30_000  # most frequent words among which analogies are answered, the usual value


class Neighbour(NamedTuple):
    """A word and its cosine similarity."""

    word: str
    similarity: float


class AnalogyQuestion(NamedTuple):
    """a is to b as c is to d."""

    a: str
    b: str
    c: str
    d: str


class SectionScore(Settings):
    """The score of one section of analogies."""

    correct: int
    answered: int = Field(description="questions whose words are all in the vocabulary")
    questions: int

    @property
    def accuracy(self) -> float | None:
        return self.correct / self.answered if self.answered else None


class AnalogyScore(MetricValues):
    """Analogies by 3CosAdd: the word nearest to b − a + c, excluding the three."""

    sections: dict[str, SectionScore]
    restricted: int = Field(description="number of most frequent words considered")

    @property
    def total(self) -> SectionScore:
        """The sum over all sections."""
        sums = ((getattr(one, name) for one in self.sections.values()) for name in SectionScore.model_fields)
        return SectionScore.parse(dict(zip(SectionScore.model_fields, map(sum, sums), strict=True)))


class SimilarityScore(MetricValues):
    """Correlation of cosines with human judgements of word pairs."""

    spearman: float | None = Field(description="rank correlation; none with fewer than two known pairs")
    pairs: int = Field(description="number of pairs with both words in the vocabulary")
    unknown: int = Field(description="number of pairs with an out-of-vocabulary word")


@dataclass(frozen=True)
class WordVectors:
    """Words with their vectors, by decreasing frequency."""

    words: Sequence[str]
    vectors: Matrix  # (N, D)

    @cached_property
    def indices(self) -> dict[str, int]:
        return {word: index for index, word in enumerate(self.words)}

    @cached_property
    def directions(self) -> Matrix:
        """Unit vectors (N, D); zero vectors stay zero."""
        lengths = np.linalg.norm(self.vectors, axis=1, keepdims=True)
        directions: Matrix = self.vectors / np.maximum(lengths, TINY)
        return directions

    def __len__(self) -> int:
        return len(self.words)

    def index(self, word: str) -> int:
        """Index of a word. Raises ConfigError if it is out of vocabulary."""
        found = self.indices.get(word)
        if found is None:
            close = close_names(word, self.words, count=3)
            remedy = (
                f"did you mean {', '.join(map(repr, close))}?"
                if close
                else "choose a word that occurs in the training text"
            )
            raise ConfigError(f"{word!r} is not in the vocabulary of {len(self):,} words; {remedy}")
        return found

    def nearest(self, word: str, count: int = 10) -> list[Neighbour]:
        """The nearest words by cosine similarity."""
        index = self.index(word)
        return self._best(self.directions[index], count, without=[index])

    def analogy(self, a: str, b: str, c: str, count: int = 10) -> list[Neighbour]:
        """The words d for which a : b = c : d, nearest to b − a + c."""
        indices = [self.index(word) for word in (a, b, c)]
        return self._best(self._targets(np.array([indices]))[0], count, without=indices)

    def similarity(self, one: str, other: str) -> float:
        return float(self.directions[self.index(one)] @ self.directions[self.index(other)])

    def around(self, word: str, count: int) -> tuple[list[str], Matrix]:
        """A word and its neighbours, with coordinates (count + 1, 2) on their first two principal components."""
        names = [word, *(one.word for one in self.nearest(word, count))]
        points = self.directions[[self.indices[name] for name in names]]
        centred = points - points.mean(0)
        _, _, axes = np.linalg.svd(centred, full_matrices=False)
        return names, centred @ axes[:2].T

    def first(self, count: int, *, fold_case: bool = False) -> Self:
        """The most frequent words; with `fold_case` in lower case, where the most frequent spelling wins."""
        if not fold_case:
            return type(self)(self.words[:count], self.vectors[:count])
        folded: dict[str, int] = {}
        for index, word in enumerate(self.words[:count]):
            folded.setdefault(word.lower(), index)
        return type(self)(list(folded), self.vectors[list(folded.values())])

    def _targets(self, indices: npt.NDArray[np.int64]) -> Matrix:
        """Unit vectors (Q, D) of b − a + c for rows of indices a, b, c."""
        a, b, c = (self.directions[column] for column in indices.T)
        targets: Matrix = b - a + c
        targets /= np.maximum(np.linalg.norm(targets, axis=1, keepdims=True), TINY)
        return targets

    def _best(self, direction: Matrix, count: int, without: Sequence[int]) -> list[Neighbour]:
        similarities = self.directions @ direction
        similarities[list(without)] = -np.inf
        count = min(count, len(self) - len(set(without)))
        best = np.argpartition(-similarities, min(count, len(self) - 1))[:count]
        return [
            Neighbour(self.words[index], float(similarities[index])) for index in best[np.argsort(-similarities[best])]
        ]


def score_analogies(
    vectors: WordVectors,
    sections: dict[str, list[AnalogyQuestion]],
    *,
    restricted: int = RESTRICTED,
    progress: Callable[[float], None] | None = None,
) -> AnalogyScore:
    """Accuracy on analogies, ignoring case."""
    known = vectors.first(restricted, fold_case=True)
    found = {}
    for done, (name, questions) in enumerate(sections.items(), start=1):
        rows = [tuple(known.indices.get(word.lower(), -1) for word in question) for question in questions]
        indices = np.array([row for row in rows if min(row) >= 0], dtype=np.int64).reshape(-1, 4)
        correct = 0
        for begin in range(0, len(indices), MAX_BATCH_QUESTIONS):
            some = indices[begin : begin + MAX_BATCH_QUESTIONS]
            similarities = known._targets(some[:, :3]) @ known.directions.T  # (Q, N)
            np.put_along_axis(similarities, some[:, :3], -np.inf, axis=1)
            correct += int(np.count_nonzero(similarities.argmax(1) == some[:, 3]))
        found[name] = SectionScore(correct=correct, answered=len(indices), questions=len(questions))
        if progress is not None:
            progress(done / len(sections))
    return AnalogyScore(sections=found, restricted=min(restricted, len(vectors)))


def score_similarities(vectors: WordVectors, pairs: Sequence[tuple[str, str, float]]) -> SimilarityScore:
    """Spearman correlation of cosines with given similarities, ignoring case."""
    known = vectors.first(len(vectors), fold_case=True)
    known_pairs = [
        (known.similarity(one.lower(), other.lower()), wanted)
        for one, other, wanted in pairs
        if one.lower() in known.indices and other.lower() in known.indices
    ]
    ours, theirs = np.array(known_pairs).reshape(-1, 2).T
    return SimilarityScore(
        spearman=spearman(ours, theirs), pairs=len(known_pairs), unknown=len(pairs) - len(known_pairs)
    )


def spearman(one: npt.NDArray[np.float64], other: npt.NDArray[np.float64]) -> float | None:
    """Spearman rank correlation; None if one side is constant."""
    if len(one) < 2 or one.min() == one.max() or other.min() == other.max():
        return None
    return float(np.corrcoef(ranks(one), ranks(other))[0, 1])


def ranks(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Ranks from 1 (lowest); ties get their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2)[inverse]


# Files


def is_analogies(path: Path) -> bool:
    """Whether a file contains analogies in sections, and not word pairs."""
    return next((line.startswith(":") for _, line in _lines(path)), False)


def read_analogies(path: Path) -> dict[str, list[AnalogyQuestion]]:
    """Read a file such as questions-words.txt: a line `: NAME` begins a section, other lines have four words."""
    sections: dict[str, list[AnalogyQuestion]] = {}
    for number, line in _lines(path):
        if line.startswith(":"):
            current = sections.setdefault(line[1:].strip(), [])
            continue
        words = line.split()
        if len(words) != 4 or not sections:
            raise DataError(f"{str(path)!r}, line {number}: expected four words in a section, got {line[:60]!r}")
        current.append(AnalogyQuestion(*words))
    if not any(sections.values()):
        raise DataError(
            f"{str(path)!r} has no analogies; a line ': NAME' begins a section, other lines have four words"
        )
    return sections


def read_similarities(path: Path) -> list[tuple[str, str, float]]:
    """Read a file such as wordsim353.tsv: two words and a number, by tabs, commas or spaces; # is a comment."""
    pairs: list[tuple[str, str, float]] = []
    for number, line in _lines(path):
        fields = line.replace(",", " ").split()
        try:
            one, other, wanted = fields[0], fields[1], float(fields[2])
        except (IndexError, ValueError):
            if pairs or len(fields) < 3:
                raise DataError(
                    f"{str(path)!r}, line {number}: expected two words and a number, got {line[:60]!r}"
                ) from None
            continue  # a header
        pairs.append((one, other, wanted))
    if not pairs:
        raise DataError(f"{str(path)!r} has no pairs; a line is two words and a number, such as 'tiger cat 7.35'")
    return pairs


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines that are neither empty nor comments, with their numbers."""
    try:
        lines: Iterable[str] = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{str(path)!r} cannot be read ({getattr(error, 'strerror', None) or error}); check the path"
        ) from None
    for number, line in enumerate(lines, start=1):
        if line.strip() and not line.startswith("#"):
            yield number, line.strip()
