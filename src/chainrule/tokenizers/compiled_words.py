r"""Words of long texts, by compiled code: distinct words by number, their counts, and their ids.

This is the fast form of `re.findall(r"\n|\S+", text)` and a dictionary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from chainrule.kernels.words import DISTINCT, FOUND, POSITION, STATE, fill_slots, number_words
from chainrule.tokenizers.base import Ids

Numbers = npt.NDArray[np.int32]

WORDS_HELD = 1 << 20  # whose ids are remembered
WORDS, LETTERS = 1 << 12, 1 << 16  # for which there is space at first
FILLED = 4  # slots of the hash table per word for which there is space


class WordIndex:
    """The distinct words of texts, numbered in the order in which they were added."""

    def __init__(self, words: Iterable[str] = ()) -> None:
        self._count = 0
        self._hashes = np.zeros(WORDS, np.int64)
        self._ends = np.zeros(WORDS, np.int64)
        self._letters = np.zeros(LETTERS, np.uint8)
        self._slots = np.zeros(FILLED * WORDS, np.int64)
        self.numbers(" ".join(words), grow=True)

    def __len__(self) -> int:
        return self._count

    def words(self, begin: int = 0) -> list[str]:
        """The words from a number on."""
        edges = np.concatenate([[0], self._ends[: self._count]])[begin:]
        text = self._letters[edges[0] : edges[-1]].tobytes()
        return [text[start:end].decode() for start, end in pairwise((edges - edges[0]).tolist())]

    def numbers(self, text: str, *, grow: bool) -> Numbers:
        """The number of each word of a text; of one that is not known −1, or a new one if the index may grow."""
        data = np.frombuffer(text.encode(), np.uint8)
        found = np.empty(len(data), np.int32)
        state = np.zeros(STATE, np.int64)
        state[DISTINCT] = self._count
        while True:
            number_words(data, grow, self._slots, self._hashes, self._ends, self._letters, found, state)
            self._count = int(state[DISTINCT])
            if state[POSITION] == len(data):
                return found[: state[FOUND]]
            self._double(len(data))

    def _double(self, letters: int) -> None:
        """Make space for twice as many words, and for so many letters at least."""
        self._hashes = np.concatenate([self._hashes, np.zeros_like(self._hashes)])
        self._ends = np.concatenate([self._ends, np.zeros_like(self._ends)])
        more = np.zeros(max(letters, len(self._letters)), np.uint8)
        self._letters = np.concatenate([self._letters, more])
        self._slots = np.zeros(2 * len(self._slots), np.int64)
        fill_slots(self._hashes, self._count, self._slots)


class CountedWords:
    """Counts the distinct words of texts."""

    def __init__(self) -> None:
        self.index = WordIndex()
        self._counts = np.zeros(0, np.int64)

    def add(self, text: str) -> None:
        numbers = self.index.numbers(text, grow=True)
        more = np.bincount(numbers, minlength=len(self.index))
        more[: len(self._counts)] += self._counts
        self._counts = more

    def counts(self) -> dict[str, int]:
        return dict(zip(self.index.words(), self._counts.tolist(), strict=True))


class WordIds:
    """Encodes long texts as `tokenizers.words` does.

    `words` are those with the ids 1, 2, …; any other has the id 1, unless `split` gives the ids of what is between
    white space.
    """

    def __init__(self, words: Iterable[str], split: Callable[[str], list[int]] | None) -> None:
        self._index = WordIndex(words if split is None else ())
        self._split = split
        self._begin_again()

    def _begin_again(self) -> None:
        self._ids = np.zeros(0, np.int32)  # of all known words, one after the other
        self._ends = np.zeros(1, np.int64)  # of word n at n + 1

    def encode(self, text: str) -> Ids:
        if self._split is None:
            ids: Ids = np.maximum(self._index.numbers(text, grow=False) + np.int32(1), np.int32(1))
            return ids
        if len(self._index) > WORDS_HELD:
            self._index = WordIndex()
            self._begin_again()
        numbers = self._index.numbers(text, grow=True)
        self._learn(self._split, self._index.words(len(self._ends) - 1))
        starts, lengths = self._ends[numbers], np.diff(self._ends)[numbers]
        shifts = starts - (np.cumsum(lengths) - lengths)
        found: Ids = self._ids[np.repeat(shifts, lengths) + np.arange(lengths.sum())]
        return found

    def _learn(self, split: Callable[[str], list[int]], words: list[str]) -> None:
        """Add the ids of new words."""
        if words:
            new = [split(word) for word in words]
            self._ids = np.concatenate([self._ids, np.array([index for ids in new for index in ids], np.int32)])
            self._ends = np.concatenate([self._ends, self._ends[-1] + np.cumsum([len(ids) for ids in new])])
