"""The sentences of a text, and how much of a question each of them shares."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

WORD = re.compile(r"\w+")
SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
TEXTS_HELD = 64  # cached


class Sentence(NamedTuple):
    """A part of a text."""

    begin: int  # in characters
    text: str


def words_of(text: str) -> frozenset[str]:
    """The distinct words of a text, in lower case."""
    return frozenset(WORD.findall(text.lower()))


@dataclass(frozen=True)
class Sentences:
    """A text, split after full stops, exclamation and question marks, and at line ends."""

    all: tuple[Sentence, ...]
    words: tuple[frozenset[str], ...]  # of each sentence
    frequencies: Counter[str]  # number of sentences with each word

    @classmethod
    def of(cls, text: str) -> Self:
        edges = [0, *(end for match in SENTENCE_END.finditer(text) for end in match.span()), len(text)]
        parts = zip(edges[::2], edges[1::2], strict=True)
        found = tuple(Sentence(begin, text[begin:end]) for begin, end in parts if text[begin:end].strip())
        words = tuple(words_of(sentence.text) for sentence in found)
        return cls(found, words, Counter(word for one in words for word in one))

    def at(self, position: int) -> int:
        """The index of the sentence at a character of the text."""
        return max(0, bisect_right(self.all, position, key=lambda sentence: sentence.begin) - 1)

    def shares(self, question: str) -> npt.NDArray[np.float64]:
        """(N,) which fraction of the question's words each sentence has, weighted by their rarity in this text.

        The weight of a word is its inverse document frequency, log((N + 1) / (n + ½)) if it is in n of N sentences, so
        that what the whole text is about does not count.
        """
        count = len(self.all)
        weights = {
            word: max(0.0, math.log((count + 1) / (self.frequencies[word] + 0.5))) for word in words_of(question)
        }
        total = sum(weights.values()) or 1.0
        return np.array([sum(weights[word] for word in weights.keys() & own) / total for own in self.words])


@lru_cache(TEXTS_HELD)
def sentences_of(text: str) -> Sentences:
    return Sentences.of(text)


def likeliest_sentence(question: str, context: str) -> str:
    """Return the baseline answer: the first sentence that shares most words with the question."""
    found, asked = sentences_of(context), words_of(question)
    shared = [len(asked & words) for words in found.words]
    return found.all[shared.index(max(shared))].text.strip() if shared else ""
