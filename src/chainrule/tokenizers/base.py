"""What every tokenizer answers: text to ids, ids to text, and what is lost on the way.

A tokenizer is trained once, saved as one JSON file beside the model, and never changes afterwards. Ids are int32.
The ones that we train put `<eos>` at 0 and, if they have it, `<unk>` at 1. Neither can be produced by writing its
name in a text: EOS is added by whoever knows where a text ends, never found inside one.
"""

from __future__ import annotations

import codecs
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self, TypeAlias, final

import numpy as np
import numpy.typing as npt

from chainrule.errors import TokenizerError
from chainrule.tokenizers.saved import FORMAT, write_json

Ids: TypeAlias = npt.NDArray[np.int32]

Texts: TypeAlias = Callable[[], Iterable[str]]
"""Training text that can be read more than once: each call starts again from the beginning."""

REPLACEMENT = "\ufffd"  # what an unknown token decodes to
_SURROGATES = re.compile("[\ud800-\udfff]")


class Tokenizer(ABC):
    """Text to token ids and back."""

    kind: ClassVar[str]

    @classmethod
    @abstractmethod
    def train(cls, argument: str | None, texts: Texts) -> Self:
        """Learn a vocabulary; `argument` is what follows the colon of the spec, None if there is no colon."""

    @property
    @abstractmethod
    def vocabulary(self) -> int:
        """Number of ids."""

    @property
    def eos(self) -> int:
        """The id that ends a sequence; it decodes to nothing."""
        return 0

    @property
    def unknown(self) -> int | None:
        """The id of everything outside the vocabulary, or None if there is no such thing."""
        return 1

    @property
    @abstractmethod
    def lossless(self) -> bool:
        """Whether decode(encode(text)) == text for every text whose characters are known."""

    @property
    @abstractmethod
    def note(self) -> str:
        """One sentence: what decode gives back, and what an unseen character becomes."""

    @final
    def encode(self, text: str) -> Ids:
        """(T,) ids of the text, without EOS."""
        return self._encode(well_formed(text))

    @final
    def decode(self, ids: Iterable[int]) -> str:
        """The text that the ids stand for: EOS gives nothing, an unknown token U+FFFD."""
        return self._decode(self._checked(ids))

    @final
    def pieces(self, ids: Iterable[int]) -> list[str]:
        """One string a token, for display.

        They join to `decode(ids)`, unless a loaded tokenizer's own decoder looks at more than neighbouring tokens.
        A character that is spread over several tokens is shown with the one that completes it; the others show
        nothing, and neither does EOS.
        """
        return self._pieces(self._checked(ids))

    @abstractmethod
    def _encode(self, text: str) -> Ids:
        """Ids of a text that UTF-8 can spell."""

    @abstractmethod
    def _pieces(self, ids: Sequence[int]) -> list[str]:
        """One string for each of the ids, all of which are in the vocabulary."""

    def _decode(self, ids: Sequence[int]) -> str:
        return "".join(self._pieces(ids))

    def _checked(self, ids: Iterable[int]) -> list[int]:
        array = np.fromiter(ids, dtype=np.int64)
        outside = array[(array < 0) | (array >= self.vocabulary)]
        if outside.size:
            raise TokenizerError(
                f"token id {outside[0]} is outside the vocabulary of {self.vocabulary}; "
                "decode with the tokenizer that the ids were made with"
            )
        checked: list[int] = array.tolist()
        return checked

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """All that is needed to build the same tokenizer again, as plain JSON values."""

    @classmethod
    @abstractmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """The tokenizer that `to_json` described."""

    @final
    def save(self, path: Path | str) -> None:
        """Write one JSON file; a crash leaves the old file or the new one, never half of it."""
        write_json(Path(path), {"format": FORMAT, "kind": self.kind, **self.to_json()})


def well_formed(text: str) -> str:
    """The text with lone surrogates, which UTF-8 cannot spell, replaced by U+FFFD."""
    return text if text.isascii() else _SURROGATES.sub(REPLACEMENT, text)


def spell(surfaces: Sequence[bytes]) -> list[str]:
    """Read bytes as UTF-8 piece by piece; a character goes to the piece that completes it.

    What is not UTF-8 becomes U+FFFD. The strings join to what decoding all of the bytes at once gives.
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    pieces = [decoder.decode(surface) for surface in surfaces]
    if pieces:
        pieces[-1] += decoder.decode(b"", final=True)
    return pieces


def parse_size(kind: str, argument: str | None, *, least: int) -> int:
    """The vocabulary size in a spec such as bpe:8000."""
    if argument is None:
        raise TokenizerError(f"tokenizer {kind!r} needs a vocabulary size; for example {kind}:8000")
    if not (argument.isascii() and argument.isdigit()):
        raise TokenizerError(f"tokenizer {kind + ':' + argument!r}: {argument!r} is not a size; try {kind}:8000")
    if int(argument) < least:
        raise TokenizerError(f"tokenizer {kind + ':' + argument!r} is too small; the smallest is {kind}:{least}")
    return int(argument)


def refuse_argument(kind: str, argument: str | None) -> None:
    """For the kinds that have nothing to set."""
    if argument is not None:
        raise TokenizerError(f"tokenizer {kind!r} takes nothing after it, got {kind + ':' + argument!r}; write {kind}")


def require_text(kind: str, texts: Texts) -> None:
    """Refuse to learn from nothing."""
    if not any(texts()):
        raise TokenizerError(f"tokenizer {kind!r} cannot be trained: the text is empty; check the training data")
