"""Bytes as tokens, and the byte-level alphabet of GPT-2.

Vocabularies of Hugging Face tokenizers are JSON strings, which cannot contain arbitrary bytes. So each byte is written
as one visible character: its Latin-1 character if that is visible, else a character from U+0100 on, in order.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np

from chainrule.tokenizers.base import ByteTokenizer, Ids, Texts, refuse_argument

_VISIBLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_HIDDEN = sorted(set(range(256)) - set(_VISIBLE))

BYTE_OF: dict[str, int] = {chr(byte): byte for byte in _VISIBLE} | {
    chr(0x100 + index): byte for index, byte in enumerate(_HIDDEN)
}
"""Character of the alphabet to byte."""

ALPHABET = sorted(BYTE_OF)


def surface(token: str) -> bytes:
    """Return the bytes of a token; one that is not written in the alphabet is plain text."""
    try:
        return bytes(BYTE_OF[character] for character in token)
    except KeyError:
        return token.encode("utf-8")


class Bytes(ByteTokenizer):
    """The bytes of UTF-8: `<eos>` is 0 and byte b is b + 1. Nothing is trained."""

    kind: ClassVar[str] = "bytes"

    def __init__(self) -> None:
        self._surfaces = [b"", *(bytes([value]) for value in range(256))]

    @classmethod
    def train(cls, argument: str | None, texts: Texts) -> Self:
        refuse_argument(cls.kind, argument)
        return cls()

    def _encode(self, text: str) -> Ids:
        return np.frombuffer(text.encode("utf-8"), dtype=np.uint8).astype(np.int32) + np.int32(1)

    def to_json(self) -> dict[str, Any]:
        return {}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        return cls()
