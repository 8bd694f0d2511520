"""The predictions of all tokens of a corpus, read in batches of bounded size by a protocol.

Processes that work together share the batches. Shape letters: N predictions.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from chainrule.data.batching import by_length
from chainrule.data.corpus import Corpus
from chainrule.data.windows import SlidingWindow, Window
from chainrule.errors import DataError
from chainrule.evaluation.protocol import Protocol
from chainrule.interface.base import AutoregressiveModel, DensityModel
from chainrule.interface.capabilities import TargetScorer
from chainrule.interface.conditional import Conditional
from chainrule.training.distributed import ONE, Processes
from chainrule.types import Batch, Sequences

MAX_LOGITS = 1 << 22  # values per batch of logits; bounds the memory of scoring
MAX_BATCH_TOKENS = 4096
TARGETS_AT_ONCE = 1 << 16  # tokens per call where only the targets are scored
BUFFERED_WINDOWS = 1024  # windows buffered to batch them by length
SOURCE_MISSING = "this model needs a source for each text, and none was given; give pairs"


class Predictions(NamedTuple):
    """Some tokens of a text, in any order, with the logits that predict them."""

    where: Tensor  # (N,) index of the token in the corpus
    targets: Tensor  # (N,)
    logits: Tensor  # (N, V)


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


def target_scores(
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
            target = batch_of(model, corpus.tokens, [block[row] for row in rows], None).target
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
        lengths = [padded_length(model, window, source) for window in block]
        for rows in processes.share(by_length(lengths, len(block), at_once)):
            yield from _read(model, tokens, [block[row] for row in rows], source)


def padded_length(model: DensityModel, window: Window, source: Corpus | None) -> int:
    """Number of tokens of its target or source, whichever is longer."""
    return max(window.end - window.begin, 0 if source is None else len(_given(model, source, window)))


def _read(
    model: AutoregressiveModel, tokens: np.ndarray, group: list[Window], source: Corpus | None
) -> Iterator[Predictions]:
    batch = batch_of(model, tokens, group, source)
    positions = torch.arange(batch.target.ids.shape[1])
    begins, scored, ends, _ = (torch.tensor(column) for column in zip(*group, strict=True))
    counts = (positions >= (scored - begins)[:, None]) & (positions < (ends - begins)[:, None])  # (B, T)
    where = (positions + begins[:, None])[counts]
    mask = counts.to(model.device)
    chunk_size = max(16, MAX_LOGITS // model.vocabulary)
    logits = model.logits_in_chunks(batch, mask, chunk_size=chunk_size)
    targets = torch.split(batch.target.ids[mask], chunk_size)
    yield from itertools.starmap(Predictions, zip(torch.split(where, chunk_size), targets, logits, strict=True))


def batch_of(model: DensityModel, tokens: np.ndarray, group: list[Window], source: Corpus | None) -> Batch:
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
