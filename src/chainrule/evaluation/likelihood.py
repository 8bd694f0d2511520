"""How likely a model finds a text, and by which protocol that was measured.

A perplexity means little without the context that each prediction saw, so every score carries its protocol:

- `carried`: one pass from the first token to the last; a prediction sees all that came before it. For models that
  read sequences of any length.
- `windows`: windows of `context` tokens, moved by `stride`. Each window is read from BOS, and only the tokens that
  no earlier window has scored count, so a prediction sees at least `context − stride` tokens (but for the first
  window), at most `context − 1`.
- `documents`: each document is a sequence of its own, from BOS to its EOS; documents longer than the context are
  read by windows. With a source, as for translation, every window is read given the source of its document.
- `whole`: each document at once, given its source, by a parallel model, whose probability of a whole does not fall into
  those of its tokens. Documents that the model cannot write at all, being too long, are counted and left out.

Bits per byte refer to the raw UTF-8 text, so scores of different tokenizers compare. Shape letters: N predictions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from chainrule.config import Settings
from chainrule.data.batching import by_length
from chainrule.data.corpus import Corpus
from chainrule.data.windows import SlidingWindow, Window
from chainrule.errors import ConfigError, DataError
from chainrule.interface.base import AutoregressiveModel, DensityModel
from chainrule.interface.conditional import Conditional, ParallelModel
from chainrule.types import Batch, Sequences

LOGITS_AT_ONCE = 1 << 22  # numbers in one piece of logits; bounds the memory of scoring
TOKENS_AT_ONCE = 4096
WINDOWS_AT_ONCE = 1024  # that are looked at together, to batch those of like length
SOURCE_MISSING = "this model translates, and its text was given without a source; give pairs"


class Protocol(Settings):
    """How a text was read; stored with every number."""

    method: Literal["carried", "windows", "documents", "whole"]
    context: int | None = Field(None, description="tokens that a window holds; none: no limit")
    stride: int | None = Field(None, description="tokens that a window moves by")
    carry_over: bool = Field(description="whether a prediction sees across segments to the start of the text")
    eos: bool = Field(description="whether the end of each document is predicted and counted")
    source: bool = Field(False, description="whether each document was read given its source")
    source_context: int | None = Field(None, description="tokens of a source that were read; none: all")
    pieces: int = Field(1, description="parts of the stream that were read independently, each from its own start")
    tokens: int | None = Field(None, description="only so many tokens from the start were scored; none: all")
    words: str = "separated by white space, plus one for each line end"


class Score(Settings):
    """The numbers, and what they rest on."""

    nats_per_token: float
    bits_per_byte: float
    perplexity: float
    word_perplexity: float
    accuracy: float | None = Field(
        description="share of tokens that were the model's first choice; none where it has no next token"
    )
    tokens: int
    bytes: int
    words: int
    unknown: int = Field(description="tokens outside the vocabulary; bits/byte is too low by what they hide")
    impossible: int = Field(0, description="whole documents that the model cannot write; they are not in the numbers")
    protocol: Protocol


class Predictions(NamedTuple):
    """Some tokens of a text, in any order, with the logits that predicted them."""

    where: Tensor  # (N,) index of the token in the corpus
    targets: Tensor  # (N,)
    logits: Tensor  # (N, V)


def protocol_for(
    model: DensityModel,
    corpus: Corpus,
    *,
    stride: int | None = None,
    pieces: int = 1,
    tokens: int | None = None,
) -> Protocol:
    """The usual way to read this corpus with this model: no limit where the model has none, else half-overlapping."""
    context = model.context
    if isinstance(model, ParallelModel):
        return Protocol(
            method="whole", context=context, carry_over=False, eos=True, source=True,
            source_context=model.source_context, tokens=tokens,
        )  # fmt: skip
    if stride is not None and (context is None or not 1 <= stride <= context):
        limit = "the model has no context limit, so there are no windows" if context is None else f"1 to {context}"
        raise ConfigError(f"stride {stride} cannot be used: {limit}")
    if context is not None:
        stride = stride or SlidingWindow.half_overlapping(context).stride
    if corpus.offsets is not None:
        return Protocol(
            method="documents",
            context=context,
            stride=stride,
            carry_over=False,
            eos=corpus.closed,
            source=isinstance(model, Conditional),
            source_context=model.source_context if isinstance(model, Conditional) else None,
            tokens=tokens,
        )
    method: Literal["carried", "windows"] = "carried" if context is None else "windows"
    return Protocol(
        method=method,
        context=context,
        stride=stride,
        carry_over=context is None,
        eos=False,
        pieces=pieces if context is None else 1,
        tokens=tokens,
    )


class Surprisals(NamedTuple):
    """What every scored token cost, in the order of the text: the evidence behind a score."""

    nats: npt.NDArray[np.float32]  # (N,)
    hits: npt.NDArray[np.bool_]  # (N,) whether the token was the model's first choice
    protocol: Protocol


@torch.inference_mode()
def surprisals(
    model: AutoregressiveModel,
    corpus: Corpus,
    protocol: Protocol | None = None,
    *,
    source: Corpus | None = None,
    progress: Callable[[float], None] | None = None,
) -> Surprisals:
    """Read a corpus, each of its documents given that of `source` where there is one.

    The model should be in evaluation mode.
    """
    protocol = protocol or protocol_for(model, corpus)
    expected = min(len(corpus), protocol.tokens or len(corpus))
    nats, hits = np.zeros(expected, np.float32), np.zeros(expected, np.bool_)
    count = 0
    for where, targets, logits in predictions(model, corpus, protocol, source):
        places = where.numpy()
        nats[places] = F.cross_entropy(logits, targets, reduction="none").float().cpu().numpy()
        hits[places] = (logits.argmax(-1) == targets).cpu().numpy()
        count += len(places)
        if progress is not None:
            progress(count / expected)
    if not count:
        raise DataError("there is nothing to score: the text has no tokens; give a longer one")
    return Surprisals(nats, hits, protocol)


def score(
    model: DensityModel,
    corpus: Corpus,
    protocol: Protocol | None = None,
    *,
    source: Corpus | None = None,
    progress: Callable[[float], None] | None = None,
) -> Score:
    """Score a corpus, given its sources where there are some. The model should be in evaluation mode."""
    if isinstance(model, ParallelModel):
        return _score_whole(model, corpus, source, protocol or protocol_for(model, corpus), progress)
    assert isinstance(model, AutoregressiveModel)
    return summarise(surprisals(model, corpus, protocol, source=source, progress=progress), corpus)


def summarise(found: Surprisals, corpus: Corpus) -> Score:
    """The numbers that a reader wants."""
    total, count = float(found.nats.sum(dtype=np.float64)), len(found.nats)
    return figures(total, count, corpus, found.protocol, accuracy=float(found.hits.mean()))


def figures(
    total: float, count: int, corpus: Corpus, protocol: Protocol, *, accuracy: float | None, impossible: int = 0
) -> Score:
    """From the nats of so many tokens of a corpus."""
    share = count / len(corpus)
    return Score(
        nats_per_token=total / count,
        bits_per_byte=total / math.log(2) / max(1, corpus.bytes * share),
        perplexity=_exp(total / count),
        word_perplexity=_exp(total / max(1, corpus.words * share)),
        accuracy=accuracy,
        tokens=count,
        bytes=round(corpus.bytes * share),
        words=round(corpus.words * share),
        unknown=round(corpus.unknown * share),
        impossible=impossible,
        protocol=protocol,
    )


@torch.inference_mode()
def _score_whole(
    model: ParallelModel,
    corpus: Corpus,
    source: Corpus | None,
    protocol: Protocol,
    progress: Callable[[float], None] | None,
) -> Score:
    """Documents in groups of like length, each at once; those that the limit on tokens cuts through are whole too."""
    if source is None or corpus.offsets is None:
        raise DataError(SOURCE_MISSING)
    limit = min(len(corpus), protocol.tokens or len(corpus))
    edges = itertools.pairwise(corpus.offsets.tolist())
    documents = [Window(begin, begin, end, number) for number, (begin, end) in enumerate(edges) if begin < limit]
    lengths = [_length(model, window, source) for window in documents]
    total, count, impossible, read = 0.0, 0, 0, 0
    for rows in by_length(lengths, len(documents), max(64, LOGITS_AT_ONCE // model.vocabulary)):
        group = [documents[row] for row in rows]
        fitting = [one for one in group if one.end - one.begin <= (model.context or math.inf)]
        nats = model.log_prob(_batch(model, corpus.tokens, fitting, source)).double() if fitting else torch.zeros(0)
        possible = nats > -math.inf
        total -= float(nats[possible].sum())
        count += sum(one.end - one.begin for one, found in zip(fitting, possible.tolist(), strict=True) if found)
        impossible += len(group) - int(possible.sum())
        read += len(group)
        if progress is not None:
            progress(read / len(documents))
    if not count:
        raise DataError("there is nothing to score: no text, or none that the model can write; give shorter ones")
    return figures(total, count, corpus, protocol, accuracy=None, impossible=impossible)


def _exp(nats: float) -> float:
    return math.exp(min(nats, 700.0))  # e^709 is the largest double


def predictions(
    model: AutoregressiveModel, corpus: Corpus, protocol: Protocol, source: Corpus | None = None
) -> Iterator[Predictions]:
    """Every scored token once, with its logits, in pieces of bounded size."""
    if (source is not None) != isinstance(model, Conditional):
        raise DataError(
            "this model reads one text, and a source was given; leave the source out"
            if source is not None
            else SOURCE_MISSING
        )
    limit = min(len(corpus), protocol.tokens or len(corpus))
    if protocol.method == "carried":
        for begin, end in _spans(limit, protocol.pieces):
            yield from _carried(model, corpus.tokens, begin, end)
    elif protocol.method == "windows":
        assert protocol.context is not None
        assert protocol.stride is not None
        windows = SlidingWindow(protocol.context, protocol.stride).cut(0, limit)
        yield from _windows(model, corpus.tokens, windows)
    else:
        assert corpus.offsets is not None
        yield from _windows(model, corpus.tokens, _documents(corpus.offsets, limit, protocol), source)


def _spans(length: int, pieces: int) -> Iterator[tuple[int, int]]:
    edges = np.linspace(0, length, max(1, min(pieces, length)) + 1).astype(int).tolist()
    yield from itertools.pairwise(edges)


def _carried(model: AutoregressiveModel, tokens: np.ndarray, begin: int, end: int) -> Iterator[Predictions]:
    """One pass in chunks; the last prediction of a chunk is for the first token of the next."""
    if begin >= end:
        return
    chunk = max(16, min(TOKENS_AT_ONCE, LOGITS_AT_ONCE // model.vocabulary))
    step = model.start()
    waiting = step.logits[0]  # (1, V): the prediction of the next token to be read
    for first in range(begin, end, chunk):
        ids = _ids(tokens, first, min(end, first + chunk), model.device)
        step = model.extend(ids[None], step.state)
        logits = torch.cat([waiting, step.logits[0, :-1]])
        waiting = step.logits[0, -1:]
        yield Predictions(torch.arange(first, first + len(ids)), ids, logits)


def _documents(offsets: np.ndarray, limit: int, protocol: Protocol) -> Iterator[Window]:
    """Whole documents, or their windows, until the limit is reached, which may be within a document."""
    for document, (begin, end) in enumerate(itertools.pairwise(offsets.tolist())):
        if begin >= limit:
            return
        sliding = SlidingWindow(protocol.context or end - begin, protocol.stride or 1)
        yield from sliding.cut(begin, min(end, limit), document)


def _windows(
    model: AutoregressiveModel, tokens: np.ndarray, windows: Iterator[Window], source: Corpus | None = None
) -> Iterator[Predictions]:
    """Many windows in one batch, those of like length together, since a batch is padded to its longest."""
    at_once = TOKENS_AT_ONCE
    if not model.masks_before_readout:  # then (B, T, V) must fit into memory
        at_once = min(at_once, LOGITS_AT_ONCE // model.vocabulary)
    while block := list(itertools.islice(windows, WINDOWS_AT_ONCE)):
        lengths = [_length(model, window, source) for window in block]
        for rows in by_length(lengths, len(block), at_once):
            yield from _read(model, tokens, [block[row] for row in rows], source)


def _length(model: DensityModel, window: Window, source: Corpus | None) -> int:
    """Tokens of its longer side."""
    return max(window.end - window.begin, 0 if source is None else len(_given(model, source, window)))


def _read(
    model: AutoregressiveModel, tokens: np.ndarray, group: list[Window], source: Corpus | None
) -> Iterator[Predictions]:
    batch = _batch(model, tokens, group, source)
    positions = torch.arange(batch.target.ids.shape[1])
    begins, scored, ends, _ = (torch.tensor(column) for column in zip(*group, strict=True))
    counts = (positions >= (scored - begins)[:, None]) & (positions < (ends - begins)[:, None])  # (B, T)
    where = (positions + begins[:, None])[counts]
    mask = counts.to(model.device)
    chunk_size = max(16, LOGITS_AT_ONCE // model.vocabulary)
    logits = model.logits_in_chunks(batch, mask, chunk_size=chunk_size)
    targets = torch.split(batch.target.ids[mask], chunk_size)
    yield from itertools.starmap(Predictions, zip(torch.split(where, chunk_size), targets, logits, strict=True))


def _batch(model: DensityModel, tokens: np.ndarray, group: list[Window], source: Corpus | None) -> Batch:
    target = Sequences.pack([tokens[window.begin : window.end].astype(np.int64) for window in group])
    given = None
    if source is not None:
        given = Sequences.pack([_given(model, source, window) for window in group])
    return Batch(target, given).to(model.device)


def _given(model: DensityModel, source: Corpus, window: Window) -> npt.NDArray[np.int64]:
    """The source of a window's document; of one that the model cannot read whole, the beginning and its EOS."""
    assert source.offsets is not None
    begin, end = source.offsets[window.document : window.document + 2]
    ids = source.tokens[begin:end].astype(np.int64)
    limit = model.source_context if isinstance(model, Conditional) else None
    return ids if limit is None or len(ids) <= limit else np.append(ids[: limit - 1], ids[-1])


def _ids(tokens: np.ndarray, begin: int, end: int, device: torch.device) -> Tensor:
    return torch.from_numpy(tokens[begin:end].astype(np.int64)).to(device)


class Alternative(NamedTuple):
    """A token that the model might have expected."""

    token: int
    probability: float


class TokenScore(NamedTuple):
    """One token, how surprising it was, and what was expected instead."""

    token: int
    surprisal: float  # nats
    rank: int  # 1: the model's first choice
    alternatives: list[Alternative]


@torch.inference_mode()
def token_scores(
    model: AutoregressiveModel,
    corpus: Corpus,
    protocol: Protocol | None = None,
    *,
    source: Corpus | None = None,
    alternatives: int = 5,
) -> list[TokenScore]:
    """Every token of a corpus by itself, in the order of the text."""
    found: list[TokenScore | None] = [None] * len(corpus)
    for where, targets, logits in predictions(model, corpus, protocol or protocol_for(model, corpus), source):
        log_probs = F.log_softmax(logits, dim=-1)
        chosen = log_probs.gather(1, targets[:, None])  # (N, 1)
        ranks = (log_probs > chosen).sum(1) + 1
        top, tokens = log_probs.topk(min(alternatives, model.vocabulary), dim=-1)
        columns = (where, targets, chosen[:, 0], ranks, tokens, top.exp())
        for place, target, log_prob, rank, expected, probabilities in zip(*(c.tolist() for c in columns), strict=True):
            others = [Alternative(*pair) for pair in zip(expected, probabilities, strict=True)]
            found[place] = TokenScore(target, -log_prob, rank, others)
    return [entry for entry in found if entry is not None]
