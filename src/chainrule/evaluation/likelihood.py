"""The likelihood of a text under a model, and the protocol by which it was measured.

A perplexity means little without the context that each prediction has, so every score includes its protocol:

- `carried`: one pass from the first token to the last with carried state; a prediction sees all earlier tokens. For
  models with unlimited context.
- `windows`: windows of `context` tokens with a stride of `stride`. Each window starts at BOS, and only tokens that no
  earlier window has scored count, so a prediction sees at least `context − stride` tokens (except in the first
  window) and at most `context − 1`.
- `documents`: each document is a sequence of its own, from BOS to EOS; documents longer than the context are read by
  windows. For conditional models every window is conditioned on the source of its document.
- `whole`: each document at once, given its source, by a parallel model, whose sequence probability does not factorise
  over tokens. Documents that are too long for the model are counted and excluded.

Bits per byte refer to the raw UTF-8 text, so scores with different tokenizers are comparable. A document counts with
the line end that separates it from the next, since its EOS is scored in the place of that line end: so are scores of
documents and of the same text as a stream. Shape letters: N predictions.
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
from chainrule.deadline import NO_DEADLINE, Deadline
from chainrule.errors import ConfigError, DataError, NotANumber
from chainrule.evaluation.scores import MetricValues
from chainrule.interface.base import AutoregressiveModel, DensityModel
from chainrule.interface.capabilities import Branched, TargetScorer
from chainrule.interface.conditional import Conditional, ParallelModel
from chainrule.training.distributed import ONE, Processes, current
from chainrule.types import Batch, Sequences

MAX_LOGITS = 1 << 22  # values per batch of logits; bounds the memory of scoring
MAX_BATCH_TOKENS = 4096
TARGETS_AT_ONCE = 1 << 16  # tokens per call where only the targets are scored
BUFFERED_WINDOWS = 1024  # windows buffered to batch them by length
SOURCE_MISSING = "this model needs a source for each text, and none was given; give pairs"

LONGEST_MEAN_WORD = 10  # characters, white space included; languages that separate words have fewer


class Protocol(Settings):
    """How a text was read; stored with every score."""

    method: Literal["carried", "windows", "documents", "whole"]
    context: int | None = Field(None, description="tokens per window; none: unlimited")
    stride: int | None = Field(None, description="tokens between the starts of windows")
    carry_over: bool = Field(description="whether predictions see all earlier tokens of the text")
    eos: bool = Field(description="whether EOS of each document is scored")
    source: bool = Field(False, description="whether documents are conditioned on their sources")
    source_context: int | None = Field(None, description="maximum source tokens; none: unlimited")
    pieces: int = Field(1, description="parts of the stream that are read independently")
    tokens: int | None = Field(None, description="number of tokens from the start that are scored; none: all")
    gamma: float | None = Field(
        None, description="hybrids: fixed weight of the non-autoregressive branch; none: the learned one"
    )
    words: str = "separated by white space, plus one for each line end"
    bytes: str | None = Field(None, description="what counts as a byte of bits/byte; none: not text")


DOCUMENTS_AT_ONCE = 64  # of a parallel model, between two looks at the clock


class Score(MetricValues):
    """Metrics, and how they were measured."""

    nats_per_token: float
    bits_per_byte: float
    perplexity: float
    word_perplexity: float | None = Field(description="none for text that is not separated into words by spaces")
    accuracy: float | None = Field(
        description="fraction of tokens that were the most probable ones; none for parallel models"
    )
    tokens: int
    bytes: int
    words: int
    unknown: int = Field(description="number of unknown tokens; bits/byte does not include the text that they hide")
    impossible: int = Field(0, description="number of documents with probability 0, which are excluded")
    protocol: Protocol


class Predictions(NamedTuple):
    """Some tokens of a text, in any order, with the logits that predict them."""

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
    """The default protocol of a model and corpus: carried state if the context is unlimited, else half-overlapping."""
    context = model.context
    if isinstance(model, ParallelModel):
        return Protocol(
            method="whole", context=context, carry_over=False, eos=True, source=True,
            source_context=model.source_context, tokens=tokens, bytes=_counted_bytes(corpus),
        )  # fmt: skip
    if stride is not None and (context is None or not 1 <= stride <= context):
        limit = (
            "the model has an unlimited context and needs no windows"
            if context is None
            else f"it must be 1 to {context}"
        )
        raise ConfigError(f"stride {stride} is not possible: {limit}; leave it out")
    if context is not None:
        stride = stride or SlidingWindow.half_overlapping(context).stride
    gamma = model.fixed_gamma if isinstance(model, Branched) else None
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
            bytes=_counted_bytes(corpus),
            gamma=gamma,
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
        bytes=_counted_bytes(corpus),
        gamma=gamma,
    )


def _counted_bytes(corpus: Corpus) -> str | None:
    if not corpus.closed:
        return None  # labels and images
    return "UTF-8" if corpus.offsets is None else "UTF-8, with one line end per document"


class Surprisals(NamedTuple):
    """The surprisal of every scored token, in text order."""

    nats: npt.NDArray[np.float32]  # (N,)
    hits: npt.NDArray[np.bool_]  # (N,) whether the token was the most probable one
    protocol: Protocol


@torch.inference_mode()
def surprisals(
    model: AutoregressiveModel,
    corpus: Corpus,
    protocol: Protocol | None = None,
    *,
    source: Corpus | None = None,
    progress: Callable[[float], None] | None = None,
    deadline: Deadline = NO_DEADLINE,
) -> Surprisals:
    """Surprisals of a corpus, whose documents are conditioned on those of `source` if there is one.

    The model should be in evaluation mode. At the deadline the tokens from the start that have been scored by then
    are returned, and the protocol has their number. Processes that work together share the batches.
    """
    protocol = protocol or protocol_for(model, corpus)
    table = SurprisalTable(min(len(corpus), protocol.tokens or len(corpus)))
    for _ in _filled(table, model, corpus, protocol, source):
        if progress is not None:
            progress(table.done)
        if deadline.passed and table.complete:
            break
    table.merge(current())
    return table.surprisals(protocol)


def _filled(
    table: SurprisalTable, model: AutoregressiveModel, corpus: Corpus, protocol: Protocol, source: Corpus | None
) -> Iterator[None]:
    """Fill the table, piece by piece; without all probabilities where the model does not need them."""
    if isinstance(model, TargetScorer) and source is None and protocol.method in ("carried", "documents"):
        for where, log_probs, hits in _target_scores(model, corpus, protocol, current()):
            table.set(where, -log_probs, hits)
            yield
        return
    for where, targets, logits in predictions(model, corpus, protocol, source, current()):
        table.add(where, targets, logits)
        yield


class SurprisalTable:
    """Collects the surprisals of `count` tokens, whose predictions may come in any order."""

    def __init__(self, count: int) -> None:
        self.nats, self.hits = np.zeros(count, np.float32), np.zeros(count, np.bool_)
        self.scored = np.zeros(count, np.bool_)

    def add(self, where: Tensor, targets: Tensor, logits: Tensor) -> None:
        """Add predictions: indices (N,), targets (N,) and logits (N, V)."""
        self.set(where, F.cross_entropy(logits, targets, reduction="none"), logits.argmax(-1) == targets)

    def set(self, where: Tensor, nats: Tensor, hits: Tensor) -> None:
        """Set the surprisals of tokens by their indices; all (N,)."""
        positions = where.numpy()
        self.nats[positions] = nats.float().cpu().numpy()
        self.hits[positions] = hits.cpu().numpy()
        self.scored[positions] = True

    def merge(self, processes: Processes) -> None:
        """Add what the other processes have scored; no two have scored the same token."""
        processes.sum_arrays(self.nats, self.hits, self.scored)

    @property
    def done(self) -> float:
        return float(self.scored.mean())

    @property
    def complete(self) -> int:
        """Number of tokens from the start without a gap."""
        return len(self.scored) if self.scored.all() else int(self.scored.argmin())

    def surprisals(self, protocol: Protocol) -> Surprisals:
        count = self.complete
        if not count:
            raise DataError("no tokens to score; give a longer text")
        if count < len(self.scored):
            protocol = protocol.model_copy(update={"tokens": count})
        return Surprisals(self.nats[:count], self.hits[:count], protocol)


def score(
    model: DensityModel,
    corpus: Corpus,
    protocol: Protocol | None = None,
    *,
    source: Corpus | None = None,
    progress: Callable[[float], None] | None = None,
) -> Score:
    """Score a corpus, given its sources if there are any. The model should be in evaluation mode."""
    if isinstance(model, ParallelModel):
        return _score_whole(model, corpus, source, protocol or protocol_for(model, corpus), progress)
    assert isinstance(model, AutoregressiveModel)
    return summarise(surprisals(model, corpus, protocol, source=source, progress=progress), corpus)


def summarise(found: Surprisals, corpus: Corpus) -> Score:
    """Metrics from surprisals."""
    total, count = float(found.nats.sum(dtype=np.float64)), len(found.nats)
    return metrics_of(total, count, corpus, found.protocol, accuracy=float(found.hits.mean()))


def metrics_of(
    total: float, count: int, corpus: Corpus, protocol: Protocol, *, accuracy: float | None, impossible: int = 0
) -> Score:
    """Metrics from the total nats of `count` tokens of a corpus."""
    if math.isnan(total):
        raise NotANumber()
    fraction = count / len(corpus)
    return Score(
        nats_per_token=total / count,
        bits_per_byte=total / math.log(2) / max(1, corpus.bytes * fraction),
        perplexity=_exp(total / count),
        word_perplexity=_exp(total / (corpus.words * fraction)) if _has_words(corpus) else None,
        accuracy=accuracy,
        tokens=count,
        bytes=round(corpus.bytes * fraction),
        words=round(corpus.words * fraction),
        unknown=round(corpus.unknown * fraction),
        impossible=impossible,
        protocol=protocol,
    )


def _has_words(corpus: Corpus) -> bool:
    """Whether white space separates words: not in Chinese, DNA or images."""
    return corpus.words > 0 and corpus.characters <= LONGEST_MEAN_WORD * corpus.words


@torch.inference_mode()
def _score_whole(
    model: ParallelModel,
    corpus: Corpus,
    source: Corpus | None,
    protocol: Protocol,
    progress: Callable[[float], None] | None,
) -> Score:
    """Score whole documents in batches of similar length, including the one that contains the last scored token."""
    if source is None or corpus.offsets is None:
        raise DataError(SOURCE_MISSING)
    limit = min(len(corpus), protocol.tokens or len(corpus))
    edges = itertools.pairwise(corpus.offsets.tolist())
    documents = [Window(begin, begin, end, number) for number, (begin, end) in enumerate(edges) if begin < limit]
    lengths = [_length(model, window, source) for window in documents]
    lengths_of = np.array([one.end - one.begin for one in documents])  # of the targets
    nats, possible = np.zeros(len(documents)), np.zeros(len(documents), np.bool_)
    processes, read = current(), 0
    for rows in processes.share(by_length(lengths, len(documents), max(64, MAX_LOGITS // model.vocabulary))):
        fitting = [row for row in rows if lengths_of[row] <= (model.context or math.inf)]
        if fitting:
            batch = _batch(model, corpus.tokens, [documents[row] for row in fitting], source)
            found = model.log_prob(batch).double().cpu().numpy()
            possible[fitting] = found > -math.inf
            nats[fitting] = np.where(found > -math.inf, -found, 0.0)
        read += len(rows)
        if progress is not None:
            progress(read / len(documents))
    processes.sum_arrays(nats, possible)
    count = int(lengths_of[possible].sum())
    if not count:
        raise DataError("no documents to score, or none short enough for the model; give shorter ones")
    impossible = len(documents) - int(possible.sum())
    return metrics_of(float(nats.sum()), count, corpus, protocol, accuracy=None, impossible=impossible)


@torch.inference_mode()
def parallel_surprisals(
    model: ParallelModel, corpus: Corpus, source: Corpus, *, deadline: Deadline = NO_DEADLINE
) -> Surprisals:
    """The nats of each document, divided evenly among its tokens; NaN if it is impossible or too long for the model.

    At the deadline, of the documents that have been scored by then. A token of a parallel model has no rank.
    """
    assert corpus.offsets is not None
    edges = itertools.pairwise(corpus.offsets.tolist())
    documents = [Window(begin, begin, end, number) for number, (begin, end) in enumerate(edges)]
    nats, done = np.full(len(corpus), np.nan, np.float32), 0
    for first in range(0, len(documents), DOCUMENTS_AT_ONCE):
        chunk = documents[first : first + DOCUMENTS_AT_ONCE]
        fitting = [one for one in chunk if one.end - one.begin <= (model.context or math.inf)]
        lengths = [_length(model, window, source) for window in fitting]
        for rows in by_length(lengths, len(fitting), max(64, MAX_LOGITS // model.vocabulary)) if fitting else ():
            group = [fitting[row] for row in rows]
            for window, found in zip(group, model.log_prob(_batch(model, corpus.tokens, group, source)), strict=True):
                if found > -math.inf:
                    nats[window.begin : window.end] = -float(found) / (window.end - window.begin)
        done = chunk[-1].end
        if deadline.passed:
            break
    if not np.isfinite(nats).any():
        raise DataError("no documents to score, or none short enough for the model; give shorter ones")
    protocol = protocol_for(model, corpus, tokens=None if done == len(corpus) else done)
    return Surprisals(nats[:done], np.zeros(done, np.bool_), protocol)


def _exp(nats: float) -> float:
    return math.exp(min(nats, 700.0))  # e^709 is the largest double


def predictions(
    model: AutoregressiveModel,
    corpus: Corpus,
    protocol: Protocol,
    source: Corpus | None = None,
    processes: Processes = ONE,
) -> Iterator[Predictions]:
    """Every scored token once with its logits, in pieces of bounded size; those of this process, if it has others."""
    if (source is not None) != isinstance(model, Conditional):
        raise DataError(
            "this model has no source, and one was given; leave it out" if source is not None else SOURCE_MISSING
        )
    limit = min(len(corpus), protocol.tokens or len(corpus))
    if protocol.method == "carried":
        for begin, end in processes.share(_spans(limit, protocol.pieces)):
            yield from _carried(model, corpus.tokens, begin, end)
    elif protocol.method == "windows":
        assert protocol.context is not None
        assert protocol.stride is not None
        windows = SlidingWindow(protocol.context, protocol.stride).cut(0, limit)
        yield from _windows(model, corpus.tokens, windows, None, processes)
    else:
        assert corpus.offsets is not None
        yield from _windows(model, corpus.tokens, _documents(corpus.offsets, limit, protocol), source, processes)


def _spans(length: int, pieces: int) -> Iterator[tuple[int, int]]:
    edges = np.linspace(0, length, max(1, min(pieces, length)) + 1).astype(int).tolist()
    yield from itertools.pairwise(edges)


def _carried(model: AutoregressiveModel, tokens: np.ndarray, begin: int, end: int) -> Iterator[Predictions]:
    """One pass in chunks; the last prediction of a chunk is for the first token of the next."""
    if begin >= end:
        return
    chunk = max(16, min(MAX_BATCH_TOKENS, MAX_LOGITS // model.vocabulary))
    step = model.start()
    pending = step.logits[0]  # (1, V): the prediction of the next token
    for first in range(begin, end, chunk):
        ids = _ids(tokens, first, min(end, first + chunk), model.device)
        step = model.extend(ids[None], step.state)
        logits = torch.cat([pending, step.logits[0, :-1]])
        pending = step.logits[0, -1:]
        yield Predictions(torch.arange(first, first + len(ids)), ids, logits)


class ScoredTargets(NamedTuple):
    """Some tokens of a text, their log-probabilities, and whether they were the most probable ones; all (N,)."""

    where: Tensor
    log_probs: Tensor
    hits: Tensor


def _target_scores(
    model: TargetScorer, corpus: Corpus, protocol: Protocol, processes: Processes
) -> Iterator[ScoredTargets]:
    """The scored tokens of a corpus without all probabilities; the model has no windows."""
    assert isinstance(model, AutoregressiveModel)
    limit = min(len(corpus), protocol.tokens or len(corpus))
    if protocol.method == "carried":
        spans = _spans(limit, protocol.pieces)
        for begin, end in spans if model.receptive_field is not None else processes.share(spans):
            yield from _carried_scores(model, corpus.tokens, begin, end, processes)
        return
    assert corpus.offsets is not None
    windows = _documents(corpus.offsets, limit, protocol)
    while block := list(itertools.islice(windows, BUFFERED_WINDOWS)):
        lengths = [window.end - window.begin for window in block]
        for rows in processes.share(by_length(lengths, len(block), TARGETS_AT_ONCE)):
            target = _batch(model, corpus.tokens, [block[row] for row in rows], None).target
            log_probs, hits, _ = model.score_tokens(target, hits=True)
            assert hits is not None
            begins = torch.tensor([block[row].begin for row in rows])
            where = torch.arange(target.ids.shape[1]) + begins[:, None]
            mask = target.mask
            yield ScoredTargets(where[mask.cpu()], log_probs[mask], hits[mask])


def _carried_scores(
    model: TargetScorer, tokens: np.ndarray, begin: int, end: int, processes: Processes
) -> Iterator[ScoredTargets]:
    """One pass in chunks. Processes share those of a model that sees the last tokens only, which each reads again."""
    assert isinstance(model, AutoregressiveModel)
    chunks, seen = range(begin, end, TARGETS_AT_ONCE), model.receptive_field
    state, read = None, begin
    for first in chunks if seen is None else processes.share(chunks):
        if first != read:
            assert seen is not None
            before = _ids(tokens, max(begin, first - seen), first, model.device)
            _, _, state = model.score_tokens(Sequences.full(before[None]))
        read = min(end, first + TARGETS_AT_ONCE)
        ids = _ids(tokens, first, read, model.device)
        log_probs, hits, state = model.score_tokens(Sequences.full(ids[None]), state, hits=True)
        assert hits is not None
        yield ScoredTargets(torch.arange(first, read), log_probs[0], hits[0])


def _documents(offsets: np.ndarray, limit: int, protocol: Protocol) -> Iterator[Window]:
    """Documents, or their windows, up to the limit, which may be within a document."""
    for document, (begin, end) in enumerate(itertools.pairwise(offsets.tolist())):
        if begin >= limit:
            return
        sliding = SlidingWindow(protocol.context or end - begin, protocol.stride or 1)
        yield from sliding.cut(begin, min(end, limit), document)


def _windows(
    model: AutoregressiveModel,
    tokens: np.ndarray,
    windows: Iterator[Window],
    source: Corpus | None,
    processes: Processes,
) -> Iterator[Predictions]:
    """Windows in batches of similar length, since a batch is padded to its longest."""
    at_once = MAX_BATCH_TOKENS
    if not model.masks_before_readout:  # then (B, T, V) must fit into memory
        at_once = min(at_once, MAX_LOGITS // model.vocabulary)
    while block := list(itertools.islice(windows, BUFFERED_WINDOWS)):
        lengths = [_length(model, window, source) for window in block]
        for rows in processes.share(by_length(lengths, len(block), at_once)):
            yield from _read(model, tokens, [block[row] for row in rows], source)


def _length(model: DensityModel, window: Window, source: Corpus | None) -> int:
    """Number of tokens of its target or source, whichever is longer."""
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
    chunk_size = max(16, MAX_LOGITS // model.vocabulary)
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
    """The source of a window's document, truncated to the model's source context with EOS at the end."""
    assert source.offsets is not None
    begin, end = source.offsets[window.document : window.document + 2]
    ids = source.tokens[begin:end].astype(np.int64)
    limit = model.source_context if isinstance(model, Conditional) else None
    return ids if limit is None or len(ids) <= limit else np.append(ids[: limit - 1], ids[-1])


def _ids(tokens: np.ndarray, begin: int, end: int, device: torch.device) -> Tensor:
    return torch.from_numpy(tokens[begin:end].astype(np.int64)).to(device)


class Alternative(NamedTuple):
    """A probable token at a position."""

    token: int
    probability: float


class TokenScore(NamedTuple):
    """One token, its surprisal, and the most probable alternatives."""

    token: int
    surprisal: float  # nats
    rank: int  # 1: the most probable token
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
    """Scores of every token of a corpus, in text order."""
    found: list[TokenScore | None] = [None] * len(corpus)
    for where, targets, logits in predictions(model, corpus, protocol or protocol_for(model, corpus), source):
        log_probs = F.log_softmax(logits, dim=-1)
        chosen = log_probs.gather(1, targets[:, None])  # (N, 1)
        ranks = (log_probs > chosen).sum(1) + 1
        top, tokens = log_probs.topk(min(alternatives, model.vocabulary), dim=-1)
        columns = (where, targets, chosen[:, 0], ranks, tokens, top.exp())
        for position, target, log_prob, rank, expected, probabilities in zip(
            *(c.tolist() for c in columns), strict=True
        ):
            others = [Alternative(*pair) for pair in zip(expected, probabilities, strict=True)]
            found[position] = TokenScore(target, -log_prob, rank, others)
    return [entry for entry in found if entry is not None]
