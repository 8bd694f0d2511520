"""Training text in passages of a few thousand characters: an even sample of a stream of any length.

Trainers of subwords hold what they learn from in memory and take their time over it, while a vocabulary needs far
less text than a model. The sample is spread evenly over the stream, and there is no randomness in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from chainrule.tokenizers.base import Texts

PASSAGE = 4096  # characters, at most


def passages(texts: Texts) -> Iterator[str]:
    """All of the text, cut after a line end where there is one."""
    for text in texts():
        start = 0
        while start < len(text):
            end = start + PASSAGE
            if end < len(text):
                end = text.rfind("\n", start, end) + 1 or end
            yield text[start:end]
            start = end


def sample(texts: Texts, characters: int) -> Iterator[str]:
    """All passages of a text that is no longer than so many characters, else every n-th, to about that length."""
    total = sum(len(text) for text in texts())
    return islice(passages(texts), 0, None, max(1, -(-total // characters)))
