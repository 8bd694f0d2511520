"""The byte-level alphabet of GPT-2: each of the 256 bytes written as one visible character.

Vocabularies of Hugging Face tokenizers are JSON strings, and not every run of bytes is one. So a byte that has a
visible Latin-1 character is written as that, and the others take the characters from U+0100 on, in order.
"""

from __future__ import annotations

_VISIBLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_HIDDEN = sorted(set(range(256)) - set(_VISIBLE))

BYTE_OF: dict[str, int] = {chr(byte): byte for byte in _VISIBLE} | {
    chr(0x100 + index): byte for index, byte in enumerate(_HIDDEN)
}
"""Character of the alphabet to byte."""

ALPHABET = sorted(BYTE_OF)


def surface(token: str) -> bytes:
    """The bytes that a token stands for; one that is not written in the alphabet is plain text."""
    try:
        return bytes(BYTE_OF[character] for character in token)
    except KeyError:
        return token.encode("utf-8")
