"""Training of count models: one pass over the data, in pieces that fit into memory."""

from __future__ import annotations

import numpy as np
import torch

from chainrule.data.corpus import Corpus
from chainrule.interface.base import CountModel
from chainrule.training.progress import Reporter
from chainrule.types import Sequences, State

TOKENS_AT_ONCE = 1 << 22
DOCUMENTS_AT_ONCE = 4096


def count(model: CountModel, corpus: Corpus, reporter: Reporter) -> None:
    """Let the model observe a corpus, then estimate its parameters."""
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
    for begin in range(0, len(corpus), TOKENS_AT_ONCE):
        piece = torch.from_numpy(corpus.tokens[begin : begin + TOKENS_AT_ONCE].astype(np.int64))
        state = model.observe(Sequences.full(piece[None]), state)
        reporter.update(min(1.0, (begin + TOKENS_AT_ONCE) / len(corpus)), {})


def _count_documents(model: CountModel, corpus: Corpus, offsets: np.ndarray, reporter: Reporter) -> None:
    """Documents of similar length are observed together, so that a batch contains little padding."""
    order = np.argsort(np.diff(offsets), kind="stable")
    for begin in range(0, len(order), DOCUMENTS_AT_ONCE):
        chosen = order[begin : begin + DOCUMENTS_AT_ONCE]
        rows = [corpus.tokens[offsets[index] : offsets[index + 1]].astype(np.int64) for index in chosen]
        model.observe(Sequences.pack(rows))
        reporter.update(min(1.0, (begin + DOCUMENTS_AT_ONCE) / len(order)), {})
