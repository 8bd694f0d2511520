"""Confidence intervals, where the models differ, and which to pick: pure functions of per-token surprisals.

All models are scored on the same tokens, so their surprisals are compared token by token. Shape letters: N tokens of
the held-out text.
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

from chainrule.comparison.results import Analysis, ComparisonRow, Excerpt, TokenBucket
from chainrule.errors import DataError
from chainrule.reports.formatting import listed
from chainrule.tokenizers.base import Tokenizer

Nats: TypeAlias = npt.NDArray[np.floating[Any]]  # (N,)
Integers: TypeAlias = npt.NDArray[np.integer[Any]]
Surprisals: TypeAlias = Mapping[str, Nats]
"""Row name -> surprisal of every token."""

BLOCKS = 200
MIN_BLOCK = 64  # tokens: several words if tokens are characters, a few sentences if they are words
RESAMPLES = 2000

POSITIONS = tuple(step * 10**power for power in range(1, 12) for step in (1, 3))
MIN_BUCKET = 100  # tokens in a bucket by position
CHUNK_TOKENS = 1 << 20

EXCERPT_CHARACTERS = 240
LEADING = 3  # number of models that are compared pair by pair
END = "∎\n"  # the end of a document, as displayed in an excerpt
MIN_SAVING = 0.005  # fraction of the bits that a mixture must save to be recommended

_IDEOGRAPHS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_WORD = re.compile(rf"\s+|[{_IDEOGRAPHS}]|[^\W{_IDEOGRAPHS}]+(?:['’][^\W{_IDEOGRAPHS}]+)*|[^\w\s]")


def interval(
    nats: Nats, text_bytes: int, *, blocks: int = BLOCKS, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float, float]:
    """The 95 % confidence interval of bits per byte over texts of the same kind and length.

    The circular block bootstrap (Politis and Romano, 1992): texts of the same length are resampled from blocks of this
    one, and the quantiles of their scores taken. Neighbouring tokens are dependent, which resampling single tokens
    would ignore; the blocks are long enough to contain most of that dependence.
    """
    count = len(nats)
    if not count:
        raise DataError("the held-out text has no tokens; give a longer text")
    length = min(max(math.ceil(count / blocks), MIN_BLOCK), max(1, count // 10))
    drawn = max(1, round(count / length))
    wrapped = np.concatenate([[0.0], np.cumsum(np.concatenate([nats, nats[:length]]), dtype=np.float64)])
    block_sums = wrapped[length : length + count] - wrapped[:count]  # (N,) sum of the block that starts at each token
    starts = np.random.default_rng(seed).integers(count, size=(resamples, drawn))
    means = block_sums[starts].mean(1) / length  # nats per token
    low, high = np.quantile(means, (0.025, 0.975)) * count / math.log(2) / text_bytes
    return float(low), float(high)


def paired_difference(
    first: Nats, second: Nats, text_bytes: int, *, blocks: int = BLOCKS, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float, float]:
    """The 95 % confidence interval of the difference in bits per byte, first model minus second, on the same tokens.

    A paired comparison: difficult passages are difficult for both models, so this interval is far narrower than the
    two separate ones. If it lies below zero, the first model is significantly better.
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

    `surprisals` are ordered best model first; the first three are compared pair by pair unless `leading` names others.
    `word_counts` are those of the training text, by `count_words`. `offsets` are the starts of the documents; None for
    one stream.
    """
    words = _Words.of(tokens, tokenizer)
    leading = list(surprisals)[:LEADING] if leading is None else leading
    return Analysis(
        by_position=by_position(surprisals, len(tokens), offsets),
        by_frequency=_by_frequency(surprisals, words, word_counts, tokens == tokenizer.unknown),
        excerpts=_excerpts(surprisals, words, leading),
    )


def count_words(tokens: Integers, tokenizer: Tokenizer) -> Counter[str]:
    """Word counts of a text, read in chunks; the few words that cross a chunk boundary are counted in two parts."""
    counts: Counter[str] = Counter()
    for first in range(0, len(tokens), CHUNK_TOKENS):
        counts.update(_Words.of(tokens[first : first + CHUNK_TOKENS], tokenizer).words)
    del counts[""]
    return counts


class _Words(NamedTuple):
    """A text split where both a word and a token end, so that every token belongs to one word.

    With a character tokenizer these are words, punctuation marks and single ideographs; with longer tokens, units that
    the tokenizer keeps together: `king,` by white space, 长安 by jieba.
    """

    pieces: list[str]  # one per token, as displayed
    words: list[str]  # "" for white space and the ends of documents
    word_of: npt.NDArray[np.int64]  # (N,) index of the word that a token belongs to
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


def by_position(surprisals: Surprisals, count: int, offsets: Integers | None) -> list[TokenBucket]:
    """Buckets by the number of preceding tokens; `offsets` are the starts of the documents, None for one stream."""
    positions = np.arange(count)
    if offsets is not None:
        positions -= offsets[np.searchsorted(offsets, positions, side="right") - 1]
    edges = [0]
    for edge in (edge for edge in POSITIONS if edge <= positions.max()):
        if np.count_nonzero((positions >= edges[-1]) & (positions < edge)) >= MIN_BUCKET:
            edges.append(edge)
    if len(edges) > 1 and np.count_nonzero(positions >= edges[-1]) < MIN_BUCKET:
        edges.pop()
    labels = [_range(low, high) for low, high in itertools.pairwise(edges)] + [f"{_short(edges[-1])} on"]
    return _buckets(surprisals, np.searchsorted(edges, positions, side="right") - 1, labels)


def _by_frequency(
    surprisals: Surprisals, words: _Words, word_counts: Mapping[str, int], unknown: npt.NDArray[np.bool_]
) -> list[TokenBucket]:
    digits = np.array([len(str(word_counts[word])) if word in word_counts else 0 for word in words.words])
    most = int(digits.max())
    labels = ["unseen", *(_range(10**power, 10 ** (power + 1)) for power in range(most))]
    labels += ["white space", "out of vocabulary"]
    white = np.array([not word for word in words.words])
    codes = np.where(white, most + 1, digits)[words.word_of]
    return _buckets(surprisals, np.where(unknown, most + 2, codes), labels)


def _buckets(surprisals: Surprisals, codes: npt.NDArray[np.int64], labels: Sequence[str]) -> list[TokenBucket]:
    """The mean surprisal of the tokens with each code; codes without tokens are left out."""
    counts = np.bincount(codes, minlength=len(labels))
    means = {
        name: np.bincount(codes, weights=nats, minlength=len(labels)) / np.maximum(counts, 1) / math.log(2)
        for name, nats in surprisals.items()
    }
    return [
        TokenBucket(
            label=labels[code],
            tokens=int(counts[code]),
            bits_per_token={name: round(float(mean[code]), 4) for name, mean in means.items()},
        )
        for code in np.flatnonzero(counts).tolist()
    ]


def _range(low: int, high: int) -> str:
    """Label of the half-open range [low, high)."""
    return f"{low}–{high - 1}" if high <= 1000 else f"{_short(low)}–{_short(high)}"


def _short(number: int) -> str:
    for size, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= size:
            return f"{number // size}{letter}"
    return str(number)


def _excerpts(surprisals: Surprisals, words: _Words, leading: Sequence[str]) -> list[Excerpt]:
    """The start of the text, then for every pair of models the excerpts with each one's largest gain; no overlaps."""
    count = len(words.pieces)
    characters = sum(map(len, words.pieces))
    width = min(count, max(1, round(EXCERPT_CHARACTERS * count / max(1, characters))))
    free = np.ones(count, dtype=np.bool_)
    found = [_excerpt("Start of the held-out text", surprisals, words, 0, _word_end(words, width))]
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
        found.append(_excerpt(f"Largest gain of {winner} over {loser}", surprisals, words, begin, end))
    return found


def _sliding_sums(values: npt.NDArray[Any], width: int) -> npt.NDArray[np.float64]:
    """(N − width + 1,) sums of `width` consecutive values."""
    totals = np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])
    sums: npt.NDArray[np.float64] = totals[width:] - totals[:-width]
    return sums


def _word_start(words: _Words, index: int) -> int:
    """First token of the word that contains the token at `index`; for white space, of the preceding word."""
    while index > 0 and not (words.begins[index] and words.words[words.word_of[index]]):
        index -= 1
    return index


def _word_end(words: _Words, index: int) -> int:
    """Index after the last token of the word that ends at `index` or later."""
    while index < len(words.pieces) and not words.begins[index]:
        index += 1
    return index


def _excerpt(title: str, surprisals: Surprisals, words: _Words, begin: int, end: int) -> Excerpt:
    """An excerpt for display: an invisible token, such as the first byte of a character, is merged with the next."""
    shown = np.array([piece != "" for piece in words.pieces[begin:end]])
    firsts = np.flatnonzero(np.concatenate([[True], shown[:-1]]))
    pieces = ["".join(group) for group in np.split(np.array(words.pieces[begin:end], dtype=object), firsts[1:])]
    bits = {
        name: (np.add.reduceat(nats[begin:end], firsts) / math.log(2)).round(3).tolist()
        for name, nats in surprisals.items()
    }
    return Excerpt(title=title, tokens=pieces, bits=bits)


def recommend(rows: Sequence[ComparisonRow], nats: Surprisals, text_bytes: int, *, unit: str = "byte") -> str:
    """A sentence that names the model to pick, its advantage and its cost. `rows` are ordered best first."""

    def tied(first: ComparisonRow, second: ComparisonRow) -> bool:
        """Whether the difference between two models is not significant on this text."""
        low, high = paired_difference(nats[first.name], nats[second.name], text_bytes)
        return low <= 0 <= high

    families = [row for row in rows if row.kind == "family"]
    leader = families[0]
    ties = [row for row in families[1:] if tied(leader, row)]
    pick = max([leader, *ties], key=lambda row: row.decode_tokens_per_second)
    mixtures = [row for row in rows if row.kind == "mixture"]
    static = next((row for row in mixtures if row.evaluation == "static"), None)
    adaptive = next((row for row in mixtures if row.evaluation == "adaptive"), None)

    def worth(row: ComparisonRow | None) -> bool:
        """Whether a mixture saves enough over the best single family."""
        return row is not None and 1 - row.bits_per_byte / leader.bits_per_byte >= MIN_SAVING and not tied(row, leader)

    if static is not None and worth(static):
        saved = 1 - static.bits_per_byte / leader.bits_per_byte
        speedup = pick.decode_tokens_per_second / static.decode_tokens_per_second
        cost = pick.bits_per_byte / static.bits_per_byte - 1
        sentence = (
            f"Pick the mixture of {listed(list(static.parts))}: {static.bits_per_byte:.3f} bits/{unit} as a static "
            f"model, {saved:.1%} fewer than {leader.name}, the best single family. "
        )
        if adaptive is not None and adaptive.bits_per_byte < static.bits_per_byte and not tied(adaptive, static):
            sentence += (
                f"With a neural cache ({adaptive.name}) it adapts to the text that it reads: "
                f"{adaptive.bits_per_byte:.3f} bits/{unit}, not comparable with static models. "
            )
        if speedup > 1:
            times = f"{float(f'{speedup:.2g}'):,g}"  # two digits, without an exponent
            sentence += f"If speed matters, pick {pick.name}: it decodes {times} times as fast at {cost:.1%} more bits."
        return sentence.strip()
    others = [row for row in families if row not in (pick, *ties, leader)]
    sentence = f"Pick {pick.name}: {pick.bits_per_byte:.3f} bits/{unit}"
    if ties:
        rivals = [row.name for row in [leader, *ties] if row is not pick]
        sentence += f", not significantly different from {listed(rivals)} and the fastest of them to decode"
    if others:
        fewer = 1 - pick.bits_per_byte / others[0].bits_per_byte
        sentence += f", {fewer:.1%} fewer than {others[0].name}, the next best"
    if adaptive is not None and worth(adaptive):
        sentence += (
            f"; only {adaptive.name}, which adapts to the text that it reads by a neural cache, is better, at "
            f"{adaptive.bits_per_byte:.3f} bits/{unit}"
        )
    elif mixtures:
        sentence += "; a mixture with other families saves too little to be worth it"
    return sentence + "."
