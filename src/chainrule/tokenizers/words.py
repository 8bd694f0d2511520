"""Words as tokens: the text between white space, and line ends."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any, ClassVar, Self

import numpy as np

from chainrule.errors import TokenizerError
from chainrule.tokenizers.base import REPLACEMENT, Ids, StringTokenizer, Texts, parse_size, require_text

UNKNOWN = "<unk>"  # how corpora such as the Penn Treebank mark unknown words
_WORD = re.compile(r"\n|\S+")


class Words(StringTokenizer):
    """`<eos>`, `<unk>`, then words from the most to the least frequent; a line end is a word of its own."""

    kind: ClassVar[str] = "words"

    def __init__(self, words: Sequence[str]) -> None:
        self.words = list(words)
        self._strings = ["", REPLACEMENT, *self.words]
        self._ids = {UNKNOWN: 1} | {word: index for index, word in enumerate(self.words, start=2)}
        if len(self._ids) != len(self.words) + 1 or not all(map(_WORD.fullmatch, self.words)):
            raise ValueError("a word is listed twice, contains white space or is <unk>")

    @classmethod
    def train(cls, argument: str | None, texts: Texts) -> Self:
        size, least = _limits(argument)
        require_text(cls.kind, texts)
        counts: Counter[str] = Counter()
        for text in texts():
            counts.update(_WORD.findall(text))
        del counts[UNKNOWN]
        frequent = Counter({word: count for word, count in counts.items() if count >= least})
        if counts and not frequent:
            raise TokenizerError(f"no word of the text occurs {least} times; lower min, or give more text")
        return cls(by_frequency(frequent, None if size is None else size - 2))

    @property
    def lossless(self) -> bool:
        return False

    @property
    def note(self) -> str:
        return (
            "decoding puts one space between words and none around a line end, so other white space is lost; "
            "a word with an unseen character, like any unseen word, becomes <unk>, shown as U+FFFD"
        )

    def _encode(self, text: str) -> Ids:
        words: list[str] = _WORD.findall(text)
        return np.fromiter(map(self._ids.get, words, repeat(1)), dtype=np.int32, count=len(words))

    def _pieces(self, ids: Sequence[int]) -> list[str]:
        """Return each word with the space that separates it from the previous one."""
        pieces = []
        inside_line = False  # whether the line has a word already
        for index in ids:
            word = self._strings[index]
            pieces.append(" " + word if inside_line and word not in ("", "\n") else word)
            if word:
                inside_line = word != "\n"
        return pieces

    def to_json(self) -> dict[str, Any]:
        return {"words": self.words}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        return cls(data["words"])


def _limits(argument: str | None) -> tuple[int | None, int]:
    """Return the vocabulary size and the minimum count of an argument such as 10000, min=5 or 10000,min=5."""
    size, least = None, 1
    for part in [] if argument is None else argument.split(","):
        name, equals, value = part.partition("=")
        if not equals:
            size = parse_size(Words.kind, part, least=3)
        elif name == "min" and value.isascii() and value.isdigit() and int(value) >= 1:
            least = int(value)
        else:
            raise TokenizerError(f"tokenizer 'words:{argument}': {part!r} is not a limit; try words:30000,min=5")
    return size, least


def by_frequency(counts: Counter[str], limit: int | None = None) -> list[str]:
    """Return words from the most to the least frequent, ties in alphabetical order."""
    ranked: Iterable[tuple[str, int]] = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [word for word, _ in ranked][:limit]
