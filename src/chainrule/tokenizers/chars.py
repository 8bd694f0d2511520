"""Characters as tokens: one id for each Unicode code point of the training text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from chainrule.tokenizers.base import (
    REPLACEMENT,
    CountedTokenizer,
    Ids,
    StringTokenizer,
    Texts,
    refuse_argument,
    require_text,
)

CODE_POINTS = 0x110000  # in Unicode


class Chars(StringTokenizer, CountedTokenizer):
    """`<eos>`, `<unk>`, then the known characters in the order of their code points."""

    kind: ClassVar[str] = "chars"

    def __init__(self, characters: str) -> None:
        if list(characters) != sorted(set(characters)):
            raise ValueError("the characters are not in the order of their code points")
        self.characters = characters
        self._strings = ["", REPLACEMENT, *characters]
        self._ids = np.full(CODE_POINTS, 1, dtype=np.int32)  # code point to id; 1 is <unk>
        self._ids[code_points(characters)] = np.arange(2, 2 + len(characters), dtype=np.int32)

    @classmethod
    def train(cls, argument: str | None, texts: Texts) -> Self:
        refuse_argument(cls.kind, argument)
        require_text(cls.kind, texts)
        return cls(alphabet(texts()))

    @classmethod
    def count(cls, argument: str | None, texts: Iterable[str]) -> Counter[str]:
        """Every character counts once: only the set of characters matters."""
        refuse_argument(cls.kind, argument)
        return Counter(alphabet(texts))

    @classmethod
    def from_counts(cls, argument: str | None, counts: Counter[str]) -> Self:
        return cls("".join(sorted(counts)))

    @property
    def note(self) -> str:
        return "decoding restores the text exactly; an unseen character becomes <unk>, shown as U+FFFD"

    def _encode(self, text: str) -> Ids:
        ids: Ids = self._ids[code_points(text)]
        return ids

    def to_json(self) -> dict[str, Any]:
        return {"characters": self.characters}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        return cls(data["characters"])


def code_points(text: str) -> npt.NDArray[np.uint32]:
    """Return the code points (T,) of a text, without a Python loop."""
    return np.frombuffer(text.encode("utf-32-le"), dtype="<u4")


def alphabet(texts: Iterable[str]) -> str:
    """Return every character of the texts once, sorted; the memory does not depend on the length of the texts."""
    seen = np.zeros(CODE_POINTS, dtype=np.bool_)
    for text in texts:
        seen[code_points(text)] = True
    return "".join(map(chr, np.flatnonzero(seen)))
