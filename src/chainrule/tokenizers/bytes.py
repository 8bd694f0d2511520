"""Bytes: the 256 bytes of UTF-8. Nothing to learn, nothing unknown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np

from chainrule.tokenizers.base import Ids, Texts, Tokenizer, refuse_argument, spell

_SURFACES = [b"", *(bytes([value]) for value in range(256))]


class Bytes(Tokenizer):
    """`<eos>` is 0 and byte b is b + 1."""

    kind: ClassVar[str] = "bytes"

    @classmethod
    def train(cls, argument: str | None, texts: Texts) -> Self:
        refuse_argument(cls.kind, argument)
        return cls()

    @property
    def vocabulary(self) -> int:
        return len(_SURFACES)

    @property
    def unknown(self) -> int | None:
        return None

    @property
    def lossless(self) -> bool:
        return True

    @property
    def note(self) -> str:
        return "decode gives any text back exactly; every character is spelled in bytes, so none is unseen"

    def _encode(self, text: str) -> Ids:
        return np.frombuffer(text.encode("utf-8"), dtype=np.uint8).astype(np.int32) + np.int32(1)

    def _pieces(self, ids: Sequence[int]) -> list[str]:
        return spell([_SURFACES[index] for index in ids])

    def to_json(self) -> dict[str, Any]:
        return {}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        return cls()
