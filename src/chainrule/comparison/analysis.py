"""How sure the figures are, and where the models differ: pure functions on the surprisal of every token.

All models are scored on the same tokens, so their surprisals line up, and differences are taken token by token. Shape
letters: N tokens of the held-out text.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from chainrule.comparison.results import Analysis, Bucket, Excerpt
from chainrule.errors import DataError
from chainrule.tokenizers.base import Tokenizer

Nats: TypeAlias = npt.NDArray[np.floating[Any]]  # (N,)
Integers: TypeAlias = npt.NDArray[np.integer[Any]]
Surprisals: TypeAlias = Mapping[str, Nats]
"""Row name -> surprisal of every token."""

BLOCKS = 200
SHORTEST_BLOCK = 64  # tokens: a few words of characters, a few sentences of words
RESAMPLES = 2000

POSITIONS = tuple(step * 10**power for power in range(1, 12) for step in (1, 3))
LEAST = 100  # tokens in a bucket by position; fewer say nothing
TOKENS_AT_ONCE = 1 << 20

CHARACTERS = 240  # in an excerpt
LEADING = 3  # models whose differences are looked for
END = "∎\n"  # the end of a document, as an excerpt shows it

_IDEOGRAPHS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_WORD = re.compile(rf"\s+|[{_IDEOGRAPHS}]|[^\W{_IDEOGRAPHS}]+(?:['’][^\W{_IDEOGRAPHS}]+)*|[^\w\s]")


def interval(
    nats: Nats, text_bytes: int, *, blocks: int = BLOCKS, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float, float]:
    """The 95 % interval of bits per byte: what another text of the same kind and length might give.

    The circular block bootstrap (Politis and Romano, 1992): texts of the same length are put together from blocks
    drawn anywhere in this one, and their scores ranked. Neighbouring tokens depend on each other, which drawing
    single tokens would ignore; the blocks are long enough to keep most of that dependence inside.
    """
    count = len(nats)
    if not count:
        raise DataError("there is no interval of nothing: the held-out text has no tokens; give a longer one")
    length = min(max(math.ceil(count / blocks), SHORTEST_BLOCK), max(1, count // 10))
    drawn = max(1, round(count / length))
    wrapped = np.concatenate([[0.0], np.cumsum(np.concatenate([nats, nats[:length]]), dtype=np.float64)])
    block_sums = wrapped[length : length + count] - wrapped[:count]  # (N,) of the block that starts at each token
    starts = np.random.default_rng(seed).integers(count, size=(resamples, drawn))
    means = block_sums[starts].mean(1) / length  # nats per token
    low, high = np.quantile(means, (0.025, 0.975)) * count / math.log(2) / text_bytes
    return float(low), float(high)


def paired_difference(
    first: Nats, second: Nats, text_bytes: int, *, blocks: int = BLOCKS, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float, float]:
    """The 95 % interval of bits per byte of the first model minus those of the second, on the same tokens.

    Hard passages are hard for both, so this is far narrower than two intervals side by side. Below zero as a whole:
    the first model is better, and not by the luck of the text.
    """
    return interval(first - second, text_bytes, blocks=blocks, resamples=resamples, seed=seed)


def analyse(
    surprisals: Surprisals,
    tokens: Integers,
    tokenizer: Tokenizer,
    word_counts: Mapping[str, int],
    *,
    offsets: Integers | None = None,
    leading: Sequence[str] | None = None,
) -> Analysis:
    """Where the models differ.

    `surprisals` come best first, and the first three are compared pair by pair unless `leading` names others.
    `word_counts` are those of the training text, by `count_words`. `offsets` say where documents start; None: one
    stream.
    """
    words = _Words.of(tokens, tokenizer)
    leading = list(surprisals)[:LEADING] if leading is None else leading
    return Analysis(
        by_position=by_position(surprisals, len(tokens), offsets),
        by_frequency=_by_frequency(surprisals, words, word_counts, tokens == tokenizer.unknown),
        excerpts=_excerpts(surprisals, words, leading),
    )


def count_words(tokens: Integers, tokenizer: Tokenizer) -> Counter[str]:
    """How often each word stands in a text; the few that cross a border of the pieces read are counted in halves."""
    counts: Counter[str] = Counter()
    for first in range(0, len(tokens), TOKENS_AT_ONCE):
        counts.update(_Words.of(tokens[first : first + TOKENS_AT_ONCE], tokenizer).words)
    del counts[""]
    return counts


class _Words(NamedTuple):
    """A text cut where both a word and a token end, so that every token belongs to one word.

    Of a character tokenizer these are words and punctuation marks, ideographs one by one; of a tokenizer whose tokens
    are longer, whatever it keeps in one piece: `king,` by white space, 长安 by jieba.
    """

    pieces: list[str]  # one a token, as it is shown
    words: list[str]  # "" for white space and the ends of documents
    word_of: npt.NDArray[np.int64]  # (N,) which word a token belongs to
    begins: npt.NDArray[np.bool_]  # (N,) whether a token is the first of its word

    @classmethod
    def of(cls, tokens: Integers, tokenizer: Tokenizer) -> _Words:
        pieces = tokenizer.pieces(tokens.tolist())
        for index in np.flatnonzero(tokens == tokenizer.eos):
            pieces[index] = "\n"
        text = "".join(pieces)
        ends = np.cumsum(np.fromiter(map(len, pieces), dtype=np.int64, count=len(pieces)))
        starts = np.concatenate([[0], ends[:-1]])
        token_edges, word_edges = np.zeros((2, len(text) + 1), dtype=np.bool_)
        token_edges[starts] = word_edges[0] = True
        word_edges[[match.start() for match in _WORD.finditer(text)]] = True
        cuts = np.flatnonzero(token_edges & word_edges)
        words = [text[first:last].strip() for first, last in itertools.pairwise([*cuts.tolist(), len(text)])]
        word_of = np.searchsorted(cuts, starts, side="right") - 1
        for index in np.flatnonzero(tokens == tokenizer.eos):
            pieces[index] = END
        return cls(pieces, words, word_of, np.diff(word_of, prepend=-1) > 0)


def by_position(surprisals: Surprisals, count: int, offsets: Integers | None) -> list[Bucket]:
    """By how many tokens came before; `offsets` say where documents start, None is one stream."""
    positions = np.arange(count)
    if offsets is not None:
        positions -= offsets[np.searchsorted(offsets, positions, side="right") - 1]
    edges = [0]
    for edge in (edge for edge in POSITIONS if edge <= positions.max()):
        if np.count_nonzero((positions >= edges[-1]) & (positions < edge)) >= LEAST:
            edges.append(edge)
    if len(edges) > 1 and np.count_nonzero(positions >= edges[-1]) < LEAST:
        edges.pop()
    labels = [_range(low, high) for low, high in itertools.pairwise(edges)] + [f"{_short(edges[-1])} on"]
    return _buckets(surprisals, np.searchsorted(edges, positions, side="right") - 1, labels)


def _by_frequency(
    surprisals: Surprisals, words: _Words, word_counts: Mapping[str, int], unknown: npt.NDArray[np.bool_]
) -> list[Bucket]:
    digits = np.array([len(str(word_counts[word])) if word in word_counts else 0 for word in words.words])
    most = int(digits.max())
    labels = ["unseen", *(_range(10**power, 10 ** (power + 1)) for power in range(most))]
    labels += ["white space", "not in the vocabulary"]
    white = np.array([not word for word in words.words])
    codes = np.where(white, most + 1, digits)[words.word_of]
    return _buckets(surprisals, np.where(unknown, most + 2, codes), labels)


def _buckets(surprisals: Surprisals, codes: npt.NDArray[np.int64], labels: Sequence[str]) -> list[Bucket]:
    """The mean surprisal of the tokens that share a code; codes that no token has are left out."""
    counts = np.bincount(codes, minlength=len(labels))
    means = {
        name: np.bincount(codes, weights=nats, minlength=len(labels)) / np.maximum(counts, 1) / math.log(2)
        for name, nats in surprisals.items()
    }
    return [
        Bucket(
            label=labels[code],
            tokens=int(counts[code]),
            bits_per_token={name: round(float(mean[code]), 4) for name, mean in means.items()},
        )
        for code in np.flatnonzero(counts).tolist()
    ]


def _range(low: int, high: int) -> str:
    """From `low` up to but without `high`."""
    return f"{low}–{high - 1}" if high <= 1000 else f"{_short(low)}–{_short(high)}"


def _short(number: int) -> str:
    for size, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= size:
            return f"{number // size}{letter}"
    return str(number)


def _excerpts(surprisals: Surprisals, words: _Words, leading: Sequence[str]) -> list[Excerpt]:
    """The start of the text, then for every pair of models the passage that each wins most on; none twice."""
    count = len(words.pieces)
    characters = sum(map(len, words.pieces))
    width = min(count, max(1, round(CHARACTERS * count / max(1, characters))))
    free = np.ones(count, dtype=np.bool_)
    found = [_excerpt("How the held-out text starts", surprisals, words, 0, _word_end(words, width))]
    free[:width] = False
    pairs = itertools.chain.from_iterable((pair, pair[::-1]) for pair in itertools.combinations(leading, 2))
    for winner, loser in pairs:
        gains = _sliding_sums(surprisals[loser] - surprisals[winner], width)
        gains[_sliding_sums(~free, width) > 0.5] = -np.inf
        first = int(gains.argmax())
        if gains[first] <= 0:
            continue
        begin, end = _word_start(words, first), _word_end(words, first + width)
        free[begin:end] = False
        found.append(_excerpt(f"{winner} wins most over {loser} here", surprisals, words, begin, end))
    return found


def _sliding_sums(values: npt.NDArray[Any], width: int) -> npt.NDArray[np.float64]:
    """(N − width + 1,) the sum of `width` neighbours from each place on."""
    totals = np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])
    sums: npt.NDArray[np.float64] = totals[width:] - totals[:-width]
    return sums


def _word_start(words: _Words, place: int) -> int:
    """The first token of the word that the place lies in or, if that is white space, of the word before."""
    while place > 0 and not (words.begins[place] and words.words[words.word_of[place]]):
        place -= 1
    return place


def _word_end(words: _Words, place: int) -> int:
    """Just past the last token of the word that ends at the place or after it."""
    while place < len(words.pieces) and not words.begins[place]:
        place += 1
    return place


def _excerpt(title: str, surprisals: Surprisals, words: _Words, begin: int, end: int) -> Excerpt:
    """A passage for display: a token that shows nothing, such as the first byte of a character, joins the next one."""
    shown = np.array([piece != "" for piece in words.pieces[begin:end]])
    firsts = np.flatnonzero(np.concatenate([[True], shown[:-1]]))
    pieces = ["".join(group) for group in np.split(np.array(words.pieces[begin:end], dtype=object), firsts[1:])]
    bits = {
        name: (np.add.reduceat(nats[begin:end], firsts) / math.log(2)).round(3).tolist()
        for name, nats in surprisals.items()
    }
    return Excerpt(title=title, tokens=pieces, bits=bits)
