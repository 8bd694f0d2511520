"""Chinese words as tokens, segmented by jieba."""

from __future__ import annotations

import functools
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from chainrule.errors import MissingExtra, TokenizerError
from chainrule.tokenizers.base import REPLACEMENT, Ids, StringTokenizer, Texts, parse_size, require_text
from chainrule.tokenizers.words import by_frequency


class Jieba(StringTokenizer):
    """`<eos>`, `<unk>`, every character of the training text, then its words from the most frequent on.

    An out-of-vocabulary word is encoded as characters, so only an unseen character is unknown.
    """

    kind: ClassVar[str] = "jieba"

    def __init__(self, words: Sequence[str]) -> None:
        self.words = list(words)
        self._strings = ["", REPLACEMENT, *self.words]
        self._ids = {word: index for index, word in enumerate(self.words, start=2)}
        if len(self._ids) != len(self.words) or not all(self.words):
            raise ValueError("a word is listed twice or empty")

    @classmethod
    def train(cls, argument: str | None, texts: Texts) -> Self:
        size = None if argument is None else parse_size(cls.kind, argument, least=3)
        require_text(cls.kind, texts)
        counts: Counter[str] = Counter()
        characters: set[str] = set()
        for text in texts():
            counts.update(_cut(text))
            characters.update(text)
        if size is not None and size < 2 + len(characters):
            raise TokenizerError(
                f"tokenizer 'jieba:{size}' is too small for the {len(characters)} characters of the text; "
                f"the size must exceed {2 + len(characters)}"
            )
        several = Counter({word: count for word, count in counts.items() if len(word) > 1})
        words = [*sorted(characters), *by_frequency(several)]
        return cls(words if size is None else words[: size - 2])

    @property
    def note(self) -> str:
        return (
            "decoding restores the text exactly, including white space; an unseen word is encoded as characters, "
            "an unseen character becomes <unk>, shown as U+FFFD"
        )

    def _encode(self, text: str) -> Ids:
        return np.fromiter(self._look_up(text), dtype=np.int32)

    def _look_up(self, text: str) -> Iterator[int]:
        for word in _cut(text):
            index = self._ids.get(word)
            if index is not None:
                yield index
            else:
                for character in word:
                    yield self._ids.get(character, 1)

    def to_json(self) -> dict[str, Any]:
        return {"words": self.words}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        return cls(data["words"])


def _cut(text: str) -> Iterator[str]:
    words: Iterator[str] = _segmenter().cut(text)
    return words


@functools.cache
def _segmenter() -> Any:
    """Return a segmenter with the default dictionary of jieba.

    `jieba.initialize` would read a cache from the temporary folder, where any user may have put it, and print messages
    to the terminal.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escape sequences in jieba's source
            import jieba
    except ImportError:
        raise MissingExtra("splitting Chinese text into words", "jieba") from None
    segmenter = jieba.Tokenizer()
    segmenter.FREQ, segmenter.total = segmenter.gen_pfdict(segmenter.get_dict_file())
    segmenter.initialized = True
    return segmenter
