"""Copying what the vocabulary lacks: an unknown word of a translation is the source word that it looked at most.

Names and numbers are often the same in both languages, and a vocabulary of words cannot hold them all (Luong et al.
2015). What is copied is the source's own text, not its token, which may be unknown as well.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from chainrule.tokenizers.base import REPLACEMENT


def copied(pieces: Sequence[str], unknown: Sequence[bool], surfaces: Sequence[str], attention: Tensor) -> str:
    """The text of target pieces, where each unknown one is replaced by the surface with the most attention.

    `attention` is (T, S) with T ≥ the pieces and S ≥ the surfaces: what it gives to the EOS of the source is passed
    over, since there is nothing to copy.
    """
    if not surfaces:
        return "".join(pieces)
    looked_at = attention[:, : len(surfaces)].argmax(-1).tolist()
    return "".join(
        piece.replace(REPLACEMENT, surfaces[looked_at[place]]) if lacking else piece
        for place, (piece, lacking) in enumerate(zip(pieces, unknown, strict=True))
    )


def surfaces(text: str, pieces: Sequence[str]) -> list[str]:
    """The part of the text that each of its tokens stands for, without white space around it.

    Pieces are strings that the tokens decode to. Those of known tokens are found in the text one after the other;
    what lies between them belongs to the unknown ones, shared out by words, or else by characters.
    """
    found: list[str] = []
    position, waiting = 0, 0  # in the text; unknown tokens since the last known one
    for piece in pieces:
        word = piece.strip()
        if REPLACEMENT in word and word not in text[position:]:
            waiting += 1
            continue
        start = text.find(word, position) if word else position
        if start < 0:  # the tokenizer has normalised it; what it shows is then the best there is
            start = position
        found += _shared_out(text[position:start], waiting)
        waiting = 0
        found.append(word)
        position = min(len(text), start + len(word))
    return found + _shared_out(text[position:], waiting)


def _shared_out(text: str, tokens: int) -> list[str]:
    """The text of a run of unknown tokens."""
    for parts in (text.split(), list("".join(text.split()))):
        if len(parts) == tokens:
            return parts
    return [text.strip()] * tokens
