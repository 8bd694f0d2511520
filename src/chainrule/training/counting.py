"""Training by counting: one pass over the data, in pieces that fit into memory."""

from __future__ import annotations

import numpy as np
import torch

from chainrule.data.corpus import Corpus
from chainrule.interface.base import CountModel
from chainrule.training.progress import Reporter
from chainrule.types import Sequences, State

PIECE = 1 << 22  # tokens observed at once
DOCUMENTS = 4096  # documents observed at once


def count(model: CountModel, corpus: Corpus, reporter: Reporter) -> None:
    """Observe a corpus and estimate the model."""
    reporter.begin("counting")
    try:
        if corpus.offsets is None:
            _count_stream(model, corpus, reporter)
        else:
            _count_documents(model, corpus, corpus.offsets, reporter)
        reporter.begin("estimating")
        model.estimate()
    finally:
        reporter.end()


def _count_stream(model: CountModel, corpus: Corpus, reporter: Reporter) -> None:
    state: State | None = None
    for begin in range(0, len(corpus), PIECE):
        piece = torch.from_numpy(corpus.tokens[begin : begin + PIECE].astype(np.int64))
        state = model.observe(Sequences.full(piece[None]), state)
        reporter.update(min(1.0, (begin + PIECE) / len(corpus)), {})


def _count_documents(model: CountModel, corpus: Corpus, offsets: np.ndarray, reporter: Reporter) -> None:
    """Documents of like length are observed together, so that little of a batch is padding."""
    order = np.argsort(np.diff(offsets), kind="stable")
    for begin in range(0, len(order), DOCUMENTS):
        chosen = order[begin : begin + DOCUMENTS]
        rows = [corpus.tokens[offsets[index] : offsets[index + 1]].astype(np.int64) for index in chosen]
        model.observe(Sequences.pack(rows))
        reporter.update(min(1.0, (begin + DOCUMENTS) / len(order)), {})
