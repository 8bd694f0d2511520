"""Words as tokens, and line ends.

A word is the text between white space. In raw text, punctuation is split from it: `off,` is `off` and `,`. Text that
was tokenized before stays as it is: where `<unk>` occurs, or where more marks stand alone than adjoin a word.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np

from chainrule.errors import TokenizerError
from chainrule.tokenizers.base import (
    REPLACEMENT,
    CountedTokenizer,
    Ids,
    StringTokenizer,
    Texts,
    parse_size,
    require_text,
    well_formed,
)

if TYPE_CHECKING:
    from chainrule.tokenizers.compiled_words import WordIds

UNKNOWN = "<unk>"  # how corpora such as the Penn Treebank mark unknown words
QUOTE = '"'  # opens and closes in turn
LONG = 1 << 17  # characters from which on words are looked up by compiled code, which has to be loaded
_WORD = re.compile(r"\n|\S+")


class Spacing(NamedTuple):
    """The marks that adjoin the token before or after them, as they mostly do in the training text."""

    before: frozenset[str]
    after: frozenset[str]


class Words(StringTokenizer, CountedTokenizer):
    """`<eos>`, `<unk>`, then words from the most to the least frequent; a line end is a word of its own.

    With a `spacing`, punctuation is split from words.
    """

    kind: ClassVar[str] = "words"

    def __init__(self, words: Sequence[str], spacing: Spacing | None = None, *, lower: bool = False) -> None:
        self.words, self.spacing, self.lower = list(words), spacing, lower
        self._strings = ["", REPLACEMENT, *self.words]
        self._ids = {UNKNOWN: 1} | {word: index for index, word in enumerate(self.words, start=2)}
        if len(self._ids) != len(self.words) + 1 or not all(map(_WORD.fullmatch, self.words)):
            raise ValueError("a word is listed twice, contains white space or is <unk>")
        self._encoded = 0  # characters so far

    @classmethod
    def train(cls, argument: str | None, texts: Texts) -> Self:
        _options(argument)
        require_text(cls.kind, texts)
        return cls.from_counts(argument, cls.count(argument, texts()))

    @classmethod
    def count(cls, argument: str | None, texts: Iterable[str]) -> Counter[str]:
        """Count what is between white space."""
        return _counted(texts, lower=_options(argument).lower)

    @classmethod
    def from_counts(cls, argument: str | None, counts: Counter[str]) -> Self:
        options = _options(argument)
        spacing = None
        if _is_raw(counts) if options.punctuation is None else options.punctuation:
            spacing = _usual_spacing(counts)
            counts = _split_counts(counts)
        frequent = Counter({word: count for word, count in counts.items() if count >= options.least})
        del frequent[UNKNOWN]
        if counts and not frequent:
            raise TokenizerError(f"no word of the text occurs {options.least} times; lower min, or give more text")
        words = by_frequency(frequent, None if options.size is None else options.size - 2)
        return cls(words, spacing, lower=options.lower)

    @property
    def lossless(self) -> bool:
        return False

    @property
    def note(self) -> str:
        if self.spacing is None:
            restored = (
                "words are split at white space only (words:punctuation also splits marks from them); decoding puts "
                "one space between words and none around a line end"
            )
        else:
            restored = (
                "punctuation is split from words (words:whitespace keeps them together); decoding puts spaces around a "
                "mark as the training text mostly does"
            )
        case = "; letters are lower case, and bits/byte does not count their case" if self.lower else ""
        return (
            f"{restored}, so other white space is lost{case}; "
            "a word with an unseen character, like any unseen word, becomes <unk>, shown as U+FFFD"
        )

    def _encode(self, text: str) -> Ids:
        if self.lower:
            text = text.lower()
        self._encoded += len(text)
        if self._encoded >= LONG:
            return self._word_ids.encode(text)
        return np.array([index for word in _WORD.findall(text) for index in self.ids_of(word)], dtype=np.int32)

    @cached_property
    def _word_ids(self) -> WordIds:
        from chainrule.tokenizers.compiled_words import WordIds  # Numba takes time to import

        return WordIds([UNKNOWN, *self.words], None if self.spacing is None else self.ids_of)

    def ids_of(self, word: str) -> list[int]:
        """The ids of what is between white space."""
        return [self._ids.get(part, 1) for part in ([word] if self.spacing is None else split_punctuation(word))]

    def _pieces(self, ids: Sequence[int]) -> list[str]:
        """Return each word with the space that separates it from the previous one."""
        pieces = []
        previous = ""  # in this line
        quoted = False  # whether the line has an open quotation mark
        for index in ids:
            word = self._strings[index]
            if word == QUOTE:
                quoted = not quoted
            joined = not previous or word in ("", "\n") or self._joined(previous, word, quoted=quoted)
            pieces.append(word if joined else " " + word)
            if word:
                previous = "" if word == "\n" else word
                quoted = quoted and bool(previous)
        return pieces

    def _joined(self, previous: str, word: str, *, quoted: bool) -> bool:
        """Whether there is no space between two tokens; `quoted` is the state after the second."""
        if self.spacing is None:
            return False
        closes = word == QUOTE and not quoted
        after_opening = previous == QUOTE and quoted and word != QUOTE
        return closes or after_opening or word in self.spacing.before or previous in self.spacing.after

    def to_json(self) -> dict[str, Any]:
        spacing = self.spacing and {side: sorted(marks) for side, marks in self.spacing._asdict().items()}
        return {"words": self.words, "lower": self.lower, "spacing": spacing}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        given = data.get("spacing")
        spacing = None if given is None else Spacing(frozenset(given["before"]), frozenset(given["after"]))
        return cls(data["words"], spacing, lower=bool(data.get("lower")))


def _counted(texts: Iterable[str], *, lower: bool) -> Counter[str]:
    """The counts of what is between white space."""
    blocks = _blocks(text.lower() if lower else text for text in texts)
    first = next(blocks)
    if len(first) < LONG:
        return Counter(_WORD.findall(first))
    from chainrule.tokenizers.compiled_words import CountedWords

    counted = CountedWords()
    for block in chain([first], blocks):
        counted.add(well_formed(block))
    return Counter(counted.counts())


def _blocks(texts: Iterable[str]) -> Iterator[str]:
    """Yield the texts, separated by spaces, in long blocks; only the last may be shorter."""
    waiting: list[str] = []
    length = 0
    for text in texts:
        waiting.append(text)
        length += len(text)
        if length >= LONG:
            yield " ".join(waiting)
            waiting, length = [], 0
    yield " ".join(waiting)


# Punctuation


def split_punctuation(word: str) -> list[str]:
    """Split a word from its marks: `(3.5)--don't!` is `(`, `3.5`, `)`, `--`, `don't`, `!`."""
    return [match.group() for match in _parts().finditer(word)]


@cache
def _parts() -> re.Pattern[str]:
    """A word, with apostrophes, hyphens and full stops inside it and commas inside a number; or a run of one mark."""
    planes = chain(range(1 << 16), range(0x1F000, 0x1FB00))  # the basic one, and pictographs
    marks = (chr(code) for code in planes if unicodedata.category(chr(code))[0] in "PS" and code != ord("_"))
    listed = re.escape("".join(marks))
    inner = rf"[^\s{listed}]+"
    return re.compile(rf"\n|{UNKNOWN}|{inner}(?:['’.-]{inner}|(?<=\d),(?=\d){inner})*|([{listed}])\1*")


def _is_mark(part: str) -> bool:
    return part not in (UNKNOWN, "\n") and unicodedata.category(part[0])[0] in "PS" and part[0] != "_"


def _is_raw(counts: Counter[str]) -> bool:
    """Whether a text was not tokenized before, by the counts of what is between white space."""
    if UNKNOWN in counts:
        return False
    adjoining = standing = 0
    for word, count in counts.items():
        parts = split_punctuation(word)
        if len(parts) > 1:
            adjoining += count
        elif parts and _is_mark(parts[0]):
            standing += count
    return adjoining > standing


def _split_counts(counts: Counter[str]) -> Counter[str]:
    found: Counter[str] = Counter()
    for word, count in counts.items():
        for part in split_punctuation(word):
            found[part] += count
    return found


def _usual_spacing(counts: Counter[str]) -> Spacing:
    """Find on which sides each mark adjoins other text in at least half of its occurrences."""
    seen: Counter[str] = Counter()
    before: Counter[str] = Counter()
    after: Counter[str] = Counter()
    for mark, has_left, has_right, count in _neighbourhoods(counts):
        seen[mark] += count
        before[mark] += count * has_left
        after[mark] += count * has_right
    usual = (frozenset(mark for mark in seen if 2 * side[mark] >= seen[mark]) for side in (before, after))
    return Spacing(*(marks - {QUOTE} for marks in usual))


def _neighbourhoods(counts: Counter[str]) -> Iterator[tuple[str, bool, bool, int]]:
    """Yield every mark with whether text adjoins it before and after, and how often it occurs so."""
    for word, count in counts.items():
        parts = split_punctuation(word)
        for index, part in enumerate(parts):
            if _is_mark(part):
                yield part, index > 0, index + 1 < len(parts), count


# Options


class _Options(NamedTuple):
    size: int | None = None  # of the vocabulary
    least: int = 1  # occurrences of a word
    punctuation: bool | None = None  # whether it is split from words; none: if the text is raw
    lower: bool = False


def _options(argument: str | None) -> _Options:
    """Read an argument such as 10000, min=5, lower or 10000,min=5,whitespace."""
    found = _Options()
    for part in [] if argument is None else argument.split(","):
        name, _, value = part.partition("=")
        if part == "lower":
            found = found._replace(lower=True)
        elif part in ("whitespace", "punctuation"):
            found = found._replace(punctuation=part == "punctuation")
        elif name == "min" and value.isascii() and value.isdigit() and int(value) >= 1:
            found = found._replace(least=int(value))
        elif part.isascii() and part.isdigit():
            found = found._replace(size=parse_size(Words.kind, part, least=3))
        else:
            raise TokenizerError(
                f"tokenizer 'words:{argument}': {part!r} is not a size, min=N, lower, punctuation or whitespace; "
                "try words:30000,min=5,lower"
            )
    return found


def by_frequency(counts: Counter[str], limit: int | None = None) -> list[str]:
    """Return words from the most to the least frequent, ties in alphabetical order."""
    ranked: Iterable[tuple[str, int]] = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [word for word, _ in ranked][:limit]
