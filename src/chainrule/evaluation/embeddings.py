"""What word vectors know: nearest neighbours, analogies, and how their similarities rank beside people's.

All similarities are cosines. A score says how many questions the vocabulary could not answer, because a score over the
rest alone would reward a small vocabulary.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field

from chainrule.config import Settings
from chainrule.errors import ConfigError, DataError

Matrix = npt.NDArray[np.float32]

QUESTIONS_AT_ONCE = 256
TINY = np.finfo(np.float32).tiny  # instead of a length of zero
RESTRICTED = 30_000  # words that an answer to an analogy is chosen from, as is the custom


class Neighbour(NamedTuple):
    """A word and how near it is."""

    word: str
    similarity: float


class Question(NamedTuple):
    """a is to b as c is to d."""

    a: str
    b: str
    c: str
    d: str


class SectionScore(Settings):
    """Analogies of one kind."""

    correct: int
    answered: int = Field(description="questions all of whose words are in the vocabulary")
    questions: int

    @property
    def accuracy(self) -> float | None:
        return self.correct / self.answered if self.answered else None


class AnalogyScore(Settings):
    """Analogies by 3CosAdd: the word nearest to b − a + c, the three left out."""

    sections: dict[str, SectionScore]
    restricted: int = Field(description="most frequent words that were considered")

    @property
    def total(self) -> SectionScore:
        """Over all sections."""
        sums = ((getattr(one, name) for one in self.sections.values()) for name in SectionScore.model_fields)
        return SectionScore.parse(dict(zip(SectionScore.model_fields, map(sum, sums), strict=True)))


class SimilarityScore(Settings):
    """Cosines of pairs of words beside the judgement of people."""

    spearman: float | None = Field(description="correlation of the ranks; none where fewer than two pairs are known")
    pairs: int = Field(description="pairs both of whose words are in the vocabulary")
    unknown: int = Field(description="pairs that were left out")


@dataclass(frozen=True)
class WordVectors:
    """Words with their vectors, from the most to the least frequent."""

    words: Sequence[str]
    vectors: Matrix  # (N, D)

    @cached_property
    def places(self) -> dict[str, int]:
        return {word: place for place, word in enumerate(self.words)}

    @cached_property
    def directions(self) -> Matrix:
        """(N, D) of length one; a vector of zeros stays one."""
        lengths = np.linalg.norm(self.vectors, axis=1, keepdims=True)
        directions: Matrix = self.vectors / np.maximum(lengths, TINY)
        return directions

    def __len__(self) -> int:
        return len(self.words)

    def place(self, word: str) -> int:
        """Where a word stands, which must be known."""
        found = self.places.get(word)
        if found is None:
            close = difflib.get_close_matches(word, self.words, n=3, cutoff=0.6)
            remedy = f"did you mean {', '.join(map(repr, close))}?" if close else "choose a word of the training text"
            raise ConfigError(f"{word!r} is not in the vocabulary of {len(self):,} words; {remedy}")
        return found

    def nearest(self, word: str, count: int = 10) -> list[Neighbour]:
        """The words most like a word."""
        place = self.place(word)
        return self._best(self.directions[place], count, without=[place])

    def analogy(self, a: str, b: str, c: str, count: int = 10) -> list[Neighbour]:
        """What is to c as b is to a: the words nearest to b − a + c."""
        places = [self.place(word) for word in (a, b, c)]
        return self._best(self._wanted(np.array([places]))[0], count, without=places)

    def similarity(self, one: str, other: str) -> float:
        return float(self.directions[self.place(one)] @ self.directions[self.place(other)])

    def around(self, word: str, count: int) -> tuple[list[str], Matrix]:
        """A word and its neighbours on a plane, (count + 1, 2): the two directions in which they differ most."""
        names = [word, *(one.word for one in self.nearest(word, count))]
        points = self.directions[[self.places[name] for name in names]]
        centred = points - points.mean(0)
        _, _, axes = np.linalg.svd(centred, full_matrices=False)
        return names, centred @ axes[:2].T

    def first(self, count: int, *, fold_case: bool = False) -> Self:
        """The most frequent words; with `fold_case` in small letters, the most frequent spelling standing for all."""
        if not fold_case:
            return type(self)(self.words[:count], self.vectors[:count])
        folded: dict[str, int] = {}
        for place, word in enumerate(self.words[:count]):
            folded.setdefault(word.lower(), place)
        return type(self)(list(folded), self.vectors[list(folded.values())])

    def _wanted(self, places: npt.NDArray[np.int64]) -> Matrix:
        """(Q, D): the direction of b − a + c for rows a, b, c."""
        a, b, c = (self.directions[column] for column in places.T)
        wanted: Matrix = b - a + c
        wanted /= np.maximum(np.linalg.norm(wanted, axis=1, keepdims=True), TINY)
        return wanted

    def _best(self, direction: Matrix, count: int, without: Sequence[int]) -> list[Neighbour]:
        similarities = self.directions @ direction
        similarities[list(without)] = -np.inf
        count = min(count, len(self) - len(set(without)))
        best = np.argpartition(-similarities, min(count, len(self) - 1))[:count]
        return [
            Neighbour(self.words[place], float(similarities[place])) for place in best[np.argsort(-similarities[best])]
        ]


def score_analogies(
    vectors: WordVectors,
    sections: dict[str, list[Question]],
    *,
    restricted: int = RESTRICTED,
    progress: Callable[[float], None] | None = None,
) -> AnalogyScore:
    """How many analogies come out right, whatever the case of letters."""
    known = vectors.first(restricted, fold_case=True)
    found = {}
    for done, (name, questions) in enumerate(sections.items(), start=1):
        rows = [tuple(known.places.get(word.lower(), -1) for word in question) for question in questions]
        places = np.array([row for row in rows if min(row) >= 0], dtype=np.int64).reshape(-1, 4)
        correct = 0
        for begin in range(0, len(places), QUESTIONS_AT_ONCE):
            some = places[begin : begin + QUESTIONS_AT_ONCE]
            similarities = known._wanted(some[:, :3]) @ known.directions.T  # (Q, N)
            np.put_along_axis(similarities, some[:, :3], -np.inf, axis=1)
            correct += int(np.count_nonzero(similarities.argmax(1) == some[:, 3]))
        found[name] = SectionScore(correct=correct, answered=len(places), questions=len(questions))
        if progress is not None:
            progress(done / len(sections))
    return AnalogyScore(sections=found, restricted=min(restricted, len(vectors)))


def score_similarities(vectors: WordVectors, pairs: Sequence[tuple[str, str, float]]) -> SimilarityScore:
    """The rank correlation of cosines with given similarities, whatever the case of letters."""
    known = vectors.first(len(vectors), fold_case=True)
    there = [
        (known.similarity(one.lower(), other.lower()), wanted)
        for one, other, wanted in pairs
        if one.lower() in known.places and other.lower() in known.places
    ]
    ours, theirs = np.array(there).reshape(-1, 2).T
    return SimilarityScore(spearman=spearman(ours, theirs), pairs=len(there), unknown=len(pairs) - len(there))


def spearman(one: npt.NDArray[np.float64], other: npt.NDArray[np.float64]) -> float | None:
    """The correlation of ranks; none where there is nothing to rank."""
    if len(one) < 2 or one.min() == one.max() or other.min() == other.max():
        return None
    return float(np.corrcoef(ranks(one), ranks(other))[0, 1])


def ranks(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """From the lowest, 1, to the highest; equal values share the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2)[inverse]


# Files


def is_analogies(path: Path) -> bool:
    """Whether a file holds analogies, which stand in sections, and not pairs."""
    return next((line.startswith(":") for _, line in _lines(path)), False)


def read_analogies(path: Path) -> dict[str, list[Question]]:
    """A file such as questions-words.txt: a line `: NAME` begins a section, others hold four words."""
    sections: dict[str, list[Question]] = {}
    for number, line in _lines(path):
        if line.startswith(":"):
            current = sections.setdefault(line[1:].strip(), [])
            continue
        words = line.split()
        if len(words) != 4 or not sections:
            raise DataError(f"{str(path)!r}, line {number}: expected four words in a section, got {line[:60]!r}")
        current.append(Question(*words))
    if not any(sections.values()):
        raise DataError(f"{str(path)!r} holds no analogies; a line ': NAME' begins a section, others hold four words")
    return sections


def read_similarities(path: Path) -> list[tuple[str, str, float]]:
    """A file such as wordsim353.tsv: two words and a number, by tabs, commas or spaces; # begins a comment."""
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
        raise DataError(f"{str(path)!r} holds no pairs; a line is two words and a number, such as 'tiger cat 7.35'")
    return pairs


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines that say something, with their numbers."""
    try:
        lines: Iterable[str] = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{str(path)!r} cannot be read ({getattr(error, 'strerror', None) or error}); check the path"
        ) from None
    for number, line in enumerate(lines, start=1):
        if line.strip() and not line.startswith("#"):
            yield number, line.strip()
