"""Unknown word replacement: an unknown token of a translation becomes the source word with the most attention.

Names and numbers are often the same in both languages, and a word vocabulary cannot hold them all (Luong et al. 2015).
The text of the source is copied, not its token, which may be unknown as well.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from chainrule.tokenizers.base import REPLACEMENT


def replace_unknown(pieces: Sequence[str], unknown: Sequence[bool], surfaces: Sequence[str], attention: Tensor) -> str:
    """The text of target pieces, each unknown one replaced by the source surface form with the most attention.

    `attention` is (T, S) with T ≥ len(pieces) and S ≥ len(surfaces). Attention to the source EOS is ignored, since
    there is nothing to copy.
    """
    if not surfaces:
        return "".join(pieces)
    attended = attention[:, : len(surfaces)].argmax(-1).tolist()
    return "".join(
        piece.replace(REPLACEMENT, surfaces[attended[index]]) if is_unknown else piece
        for index, (piece, is_unknown) in enumerate(zip(pieces, unknown, strict=True))
    )


def surface_forms(text: str, pieces: Sequence[str]) -> list[str]:
    """The part of the text that each of its tokens covers, without surrounding white space.

    Pieces are the strings that the tokens decode to. Those of known tokens are located in the text from left to right;
    the text between them belongs to the unknown tokens, divided by words or else by characters.
    """
    found: list[str] = []
    position, pending = 0, 0  # in the text; unknown tokens since the last known one
    for piece in pieces:
        word = piece.strip()
        if REPLACEMENT in word and word not in text[position:]:
            pending += 1
            continue
        start = text.find(word, position) if word else position
        if start < 0:  # the tokenizer has normalised the word; its piece is the best approximation
            start = position
        found += _divide(text[position:start], pending)
        pending = 0
        found.append(word)
        position = min(len(text), start + len(word))
    return found + _divide(text[position:], pending)


def _divide(text: str, tokens: int) -> list[str]:
    """The surface forms of consecutive unknown tokens."""
    for parts in (text.split(), list("".join(text.split()))):
        if len(parts) == tokens:
            return parts
    return [text.strip()] * tokens
