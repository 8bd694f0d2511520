"""The likelihood of a corpus under a model, as metrics that state how it was measured (`evaluation.protocol`).

Bits per byte refer to the raw UTF-8 text, so scores with different tokenizers are comparable. A document counts with
the line end that separates it from the next, since its EOS is scored in the place of that line end: so are scores of
documents and of the same text as a stream. Shape letters: N tokens.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from chainrule.data.batching import by_length
from chainrule.data.corpus import Corpus
from chainrule.data.windows import Window
from chainrule.deadline import NO_DEADLINE, Deadline
from chainrule.errors import DataError, NotANumber
from chainrule.evaluation.predictions import (
    MAX_LOGITS,
    SOURCE_MISSING,
    batch_of,
    padded_length,
    predictions,
    target_scores,
)
from chainrule.evaluation.protocol import Protocol, protocol_for
from chainrule.evaluation.scores import MetricValues
from chainrule.interface.base import AutoregressiveModel, DensityModel
from chainrule.interface.capabilities import TargetScorer
from chainrule.interface.conditional import ParallelModel
from chainrule.training.distributed import Processes, current

LONGEST_MEAN_WORD = 10  # characters, white space included; languages that separate words have fewer
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
    if progress is not None:
        progress(table.done)  # by all processes
    return table.surprisals(protocol)


def _filled(
    table: SurprisalTable, model: AutoregressiveModel, corpus: Corpus, protocol: Protocol, source: Corpus | None
) -> Iterator[None]:
    """Fill the table, piece by piece; without all probabilities where the model does not need them."""
    if isinstance(model, TargetScorer) and source is None and protocol.method in ("carried", "documents"):
        for where, log_probs, hits in target_scores(model, corpus, protocol, current()):
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
    lengths = [padded_length(model, window, source) for window in documents]
    lengths_of = np.array([one.end - one.begin for one in documents])  # of the targets
    nats, possible = np.zeros(len(documents)), np.zeros(len(documents), np.bool_)
    processes, read = current(), 0
    for rows in processes.share(by_length(lengths, len(documents), max(64, MAX_LOGITS // model.vocabulary))):
        fitting = [row for row in rows if lengths_of[row] <= (model.context or math.inf)]
        if fitting:
            batch = batch_of(model, corpus.tokens, [documents[row] for row in fitting], source)
            found = model.log_prob(batch).double().cpu().numpy()
            possible[fitting] = found > -math.inf
            nats[fitting] = np.where(found > -math.inf, -found, 0.0)
        read += len(rows)
        if progress is not None:
            progress(read / len(documents))
    processes.sum_arrays(nats, possible)
    if progress is not None:
        progress(1.0)
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
        lengths = [padded_length(model, window, source) for window in fitting]
        for rows in by_length(lengths, len(fitting), max(64, MAX_LOGITS // model.vocabulary)) if fitting else ():
            group = [fitting[row] for row in rows]
            for window, found in zip(group, model.log_prob(batch_of(model, corpus.tokens, group, source)), strict=True):
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
