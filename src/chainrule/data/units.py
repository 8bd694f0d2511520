"""Whether a text file is one text or a list of short documents, one per line, such as names.

Only a list is read as documents without being asked to. Sentences one per line, headlines and the like can be read
both ways: published figures for the Penn Treebank are those of a stream. For them there is a note.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from statistics import fmean, quantiles
from typing import NamedTuple

from chainrule.data.source import Unit

FEWEST_LINES = 1000
BLANK = 0.001  # fraction of lines; more, and blank lines separate something
UNIQUE = 0.9  # fraction of distinct lines
LIST_WORDS, LIST_LENGTH = 3.0, 30  # mean words and characters of a line of a list
SENTENCE_LENGTH = 300  # mean characters of a line that may be a document of its own
CLOSED = 0.05  # fraction of lines of a list that end with punctuation
SEQUENCE_LENGTH = 20  # characters of a line of a broken sequence
LETTERS = 0.6  # fraction of the characters of a list
IDEOGRAMS, IDEOGRAM_LENGTH = 0.5, 4.5  # if so many characters are ideograms, so few make a name; a verse has more
WRAPPED = 1.25  # longest lines relative to the median; if there is little difference, lines are broken at a width
PUNCTUATION = re.compile(r"[.,;:!?\-—…，。；：！？、」』”\"')\]}]$")
IDEOGRAM = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")


class UnitGuess(NamedTuple):
    """The unit of a text, and a note for the user if it is not obvious."""

    unit: Unit
    note: str | None = None


def guess_unit(sample: str) -> UnitGuess:
    """Guess the unit of a text from its beginning."""
    lines = sample.split("\n")[:-1]  # the last may be incomplete
    if len(lines) < FEWEST_LINES or sum(not line.strip() for line in lines) > BLANK * len(lines):
        return UnitGuess("stream")
    lines = [line.rstrip("\r") for line in lines if line.strip()]
    lengths = sorted(map(len, lines))
    if len(set(lines)) < UNIQUE * len(lines) or fmean(lengths) > SENTENCE_LENGTH or _indented(lines):
        return UnitGuess("stream")
    if _is_list(lines):
        return UnitGuess("documents", "read as a list, one document per line; --set data.unit=stream reads one text")
    if _is_wrapped(lengths) or _has_columns(lines):
        return UnitGuess("stream")
    return UnitGuess("stream", "read as one text; if lines are independent, --set data.unit=documents")


def _is_list(lines: Sequence[str]) -> bool:
    """Whether lines are names or words: short, few words each, mostly letters, without punctuation at the end."""
    text = "".join(lines)
    longest = IDEOGRAM_LENGTH if len(IDEOGRAM.findall(text)) > IDEOGRAMS * len(text) else LIST_LENGTH
    return (
        len(text) <= longest * len(lines)
        and fmean(len(line.split()) for line in lines) <= LIST_WORDS
        and sum(map(str.isalpha, text)) >= LETTERS * len(text)
        and sum(PUNCTUATION.search(line) is not None for line in lines) <= CLOSED * len(lines)
        and not _has_columns(lines)
        and not _is_sequence(lines)
    )


def _indented(lines: Sequence[str]) -> bool:
    return sum(line[0].isspace() for line in lines) > BLANK * len(lines)


def _has_columns(lines: Sequence[str]) -> bool:
    """Whether lines are rows of a table, or records of a log that begin with a number or a date."""
    return sum("\t" in line or any(map(str.isdigit, line[:8])) for line in lines) > len(lines) / 4


def _is_sequence(lines: Sequence[str]) -> bool:
    """Whether a long sequence, such as DNA, is broken at a width: nearly all lines have one length, which is long."""
    lengths = [len(line) for line in lines]
    usual = max(set(lengths), key=lengths.count)
    return usual >= SEQUENCE_LENGTH and lengths.count(usual) > UNIQUE * len(lengths)


def _is_wrapped(lengths: Sequence[int]) -> bool:
    """Whether a text is broken at a width, or is verse: the longest lines are not much longer than most."""
    *_, longest = quantiles(lengths, n=50)
    return longest < WRAPPED * lengths[len(lengths) // 2]
