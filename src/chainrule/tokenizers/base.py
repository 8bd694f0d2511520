"""The tokenizer interface: text to token ids and back.

A tokenizer is trained once, saved as one JSON file beside the model, and never changes afterwards. Ids are int32.
Tokenizers trained here have `<eos>` at 0 and, if any, `<unk>` at 1. Neither can occur by writing its name in a text:
EOS is added by the caller at the end of a document.
"""

from __future__ import annotations

import codecs
import json
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Self, TypeAlias, final

import numpy as np
import numpy.typing as npt

from chainrule.errors import TokenizerError
from chainrule.files import write_whole

Ids: TypeAlias = npt.NDArray[np.int32]

Texts: TypeAlias = Callable[[], Iterable[str]]
"""Training text that can be read several times: each call starts from the beginning."""

FORMAT = 1  # of tokenizer files
REPLACEMENT = "\ufffd"  # what an unknown token decodes to
PASSAGE = 4096  # maximum characters in a passage of training text
_SURROGATES = re.compile("[\ud800-\udfff]")


class Tokenizer(ABC):
    """Text to token ids and back."""

    kind: ClassVar[str]

    @classmethod
    @abstractmethod
    def train(cls, argument: str | None, texts: Texts) -> Self:
        """Train a vocabulary; `argument` is the part of the spec after the colon, None if there is no colon."""

    @property
    @abstractmethod
    def vocabulary(self) -> int:
        """Number of ids."""

    @property
    def eos(self) -> int:
        """The end-of-sequence id; it decodes to the empty string."""
        return 0

    @property
    def unknown(self) -> int | None:
        """The id of out-of-vocabulary text, or None if every text is in the vocabulary."""
        return 1

    @property
    @abstractmethod
    def lossless(self) -> bool:
        """Whether decode(encode(text)) == text for every text of known characters."""

    @property
    @abstractmethod
    def note(self) -> str:
        """One sentence on what decoding restores and how unseen characters are encoded."""

    @final
    def encode(self, text: str) -> Ids:
        """Return the ids (T,) of a text, without EOS."""
        return self._encode(well_formed(text))

    @final
    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids; EOS decodes to nothing, an unknown token to U+FFFD."""
        return self._decode(self._checked(ids))

    @final
    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Return one string per token, for display.

        They join to `decode(ids)`, unless the decoder of a loaded tokenizer depends on more than adjacent tokens. A
        character that spans several tokens belongs to the last of them; the others are empty, as is EOS.
        """
        return self._pieces(self._checked(ids))

    @abstractmethod
    def _encode(self, text: str) -> Ids:
        """Encode a text without lone surrogates."""

    @abstractmethod
    def _pieces(self, ids: Sequence[int]) -> list[str]:
        """Return one string per id; all ids are in the vocabulary."""

    def _decode(self, ids: Sequence[int]) -> str:
        return "".join(self._pieces(ids))

    def _checked(self, ids: Iterable[int]) -> list[int]:
        array = np.fromiter(ids, dtype=np.int64)
        outside = array[(array < 0) | (array >= self.vocabulary)]
        if outside.size:
            raise TokenizerError(
                f"token id {outside[0]} is outside the vocabulary of {self.vocabulary}; "
                "decode with the tokenizer that has encoded the text"
            )
        checked: list[int] = array.tolist()
        return checked

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return everything needed to restore the tokenizer, as plain JSON values."""

    @classmethod
    @abstractmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Restore the tokenizer from the values of `to_json`."""

    @final
    def __reduce__(self) -> tuple[Callable[[dict[str, Any]], Self], tuple[dict[str, Any]]]:
        """Other processes get what a file would contain."""
        return type(self).from_json, (self.to_json(),)

    @final
    def save(self, path: Path | str) -> None:
        """Write one JSON file, atomically."""
        write_whole(Path(path), self.to_text())

    @final
    def to_text(self) -> str:
        """Return what `save` writes."""
        data = {"format": FORMAT, "kind": self.kind, **self.to_json()}
        return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


class CountedTokenizer(Tokenizer):
    """A tokenizer that is trained by counting: parts of a text can be counted independently, and their counts added."""

    @classmethod
    @abstractmethod
    def count(cls, argument: str | None, texts: Iterable[str]) -> Counter[str]:
        """Count a part of the training text; `argument` is that of `train`."""

    @classmethod
    @abstractmethod
    def from_counts(cls, argument: str | None, counts: Counter[str]) -> Self:
        """The tokenizer of a text with these counts."""


class StringTokenizer(Tokenizer):
    """A tokenizer whose tokens are strings: `<eos>`, `<unk>`, then the entries of its vocabulary."""

    _strings: list[str]  # what each id decodes to

    @property
    def vocabulary(self) -> int:
        return len(self._strings)

    @property
    def lossless(self) -> bool:
        return True

    def _pieces(self, ids: Sequence[int]) -> list[str]:
        return [self._strings[index] for index in ids]


class ByteTokenizer(Tokenizer):
    """A tokenizer whose tokens are byte strings that include all 256 bytes, so that every text can be encoded."""

    _surfaces: list[bytes]  # what each id decodes to

    @property
    def vocabulary(self) -> int:
        return len(self._surfaces)

    @property
    def unknown(self) -> int | None:
        return None

    @property
    def lossless(self) -> bool:
        return True

    @property
    def note(self) -> str:
        return "decoding restores any text exactly; an unseen character is encoded as bytes"

    def _pieces(self, ids: Sequence[int]) -> list[str]:
        return decode_bytes([self._surfaces[index] for index in ids])

    def _decode(self, ids: Sequence[int]) -> str:
        return b"".join([self._surfaces[index] for index in ids]).decode(errors="replace")


def read_json(path: Path) -> dict[str, Any]:
    """Read a tokenizer file: JSON with `format`, `kind` and the values of `to_json`."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TokenizerError(f"there is no tokenizer file {str(path)!r}; check the path") from None
    except OSError as error:
        raise TokenizerError(f"tokenizer file {str(path)!r} cannot be read: {error.strerror}") from None
    except ValueError as error:  # invalid JSON or UTF-8
        raise TokenizerError(f"tokenizer file {str(path)!r} is damaged: {error}; restore or retrain it") from None
    if not isinstance(data, dict) or not isinstance(data.get("format"), int):
        raise TokenizerError(
            f"{str(path)!r} is not a tokenizer file of chainrule; "
            "for a tokenizer.json of Hugging Face use the spec huggingface:FILE"
        )
    if data["format"] > FORMAT:
        raise TokenizerError(
            f"tokenizer file {str(path)!r} has format {data['format']}, this version reads up to {FORMAT}; "
            "upgrade chainrule"
        )
    return data


def well_formed(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot encode, by U+FFFD."""
    try:
        text.encode()  # ten times as fast as a search
    except UnicodeEncodeError:
        return _SURROGATES.sub(REPLACEMENT, text)
    return text


def decode_bytes(surfaces: Sequence[bytes]) -> list[str]:
    """Decode byte strings as UTF-8, one string each; a character belongs to the piece that completes it.

    Invalid UTF-8 becomes U+FFFD. The strings join to the decoding of all bytes at once.
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    pieces = [decoder.decode(surface) for surface in surfaces]
    if pieces:
        pieces[-1] += decoder.decode(b"", final=True)
    return pieces


def parse_size(kind: str, argument: str | None, *, least: int) -> int:
    """Return the vocabulary size of a spec such as bpe:8000."""
    if argument is None:
        raise TokenizerError(f"tokenizer {kind!r} needs a vocabulary size; for example {kind}:8000")
    if not (argument.isascii() and argument.isdigit()):
        raise TokenizerError(f"tokenizer {kind + ':' + argument!r}: {argument!r} is not a size; try {kind}:8000")
    if int(argument) < least:
        raise TokenizerError(f"tokenizer {kind + ':' + argument!r} is too small; the smallest is {kind}:{least}")
    return int(argument)


def refuse_argument(kind: str, argument: str | None) -> None:
    """Raise TokenizerError if a spec without options has an argument."""
    if argument is not None:
        raise TokenizerError(f"tokenizer {kind!r} takes no argument, got {kind + ':' + argument!r}; write {kind}")


def require_text(kind: str, texts: Texts) -> None:
    """Raise TokenizerError if the training text is empty."""
    if not any(texts()):
        raise TokenizerError(f"tokenizer {kind!r} cannot be trained: the text is empty; check the training data")


def passages(texts: Texts) -> Iterator[str]:
    """Yield the text in passages of at most PASSAGE characters, cut after a line end if possible."""
    for text in texts():
        start = 0
        while start < len(text):
            end = start + PASSAGE
            if end < len(text):
                end = text.rfind("\n", start, end) + 1 or end
            yield text[start:end]
            start = end


def sample(texts: Texts, characters: int) -> Iterator[str]:
    """Yield every n-th passage, about `characters` characters in all; the whole text if it is not longer.

    Subword trainers keep their training text in memory and are slow, and a vocabulary needs far less text than a model.
    The sample is spread evenly over the text and involves no randomness.
    """
    total = sum(len(text) for text in texts())
    return islice(passages(texts), 0, None, max(1, -(-total // characters)))
