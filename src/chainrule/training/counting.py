"""Training of count models: one pass over the data, in pieces that fit into memory."""

from __future__ import annotations

import numpy as np
import torch

from chainrule.data.corpus import Corpus
from chainrule.errors import TrainingError, in_units
from chainrule.interface.base import CountModel
from chainrule.memory import available_memory
from chainrule.training.progress import Reporter
from chainrule.types import Sequences, State

TOKENS_AT_ONCE = 1 << 22
DOCUMENTS_AT_ONCE = 4096
ESTIMATING_BYTES = 44  # per event, measured, in addition to its count


def count(model: CountModel, corpus: Corpus, reporter: Reporter) -> None:
    """Let the model observe a corpus, then estimate its parameters."""
    model.require_countable(corpus.tokens, available_memory())
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


def _require_memory(model: CountModel, share: float) -> None:
    """Stop before the counts fill the memory, which would end the process, or others, without a word."""
    needed, memory = model.events_counted * ESTIMATING_BYTES, available_memory()
    if needed > memory:
        raise TrainingError(
            f"after {share:.0%} of the data there are {model.events_counted:,} different n-grams; estimating their "
            f"probabilities takes {in_units(needed)} of memory, and {in_units(memory)} is available; lower model.order "
            "(or model.neighbours), or train on less data"
        )


def _count_stream(model: CountModel, corpus: Corpus, reporter: Reporter) -> None:
    state: State | None = None
    for begin in range(0, len(corpus), TOKENS_AT_ONCE):
        piece = torch.from_numpy(corpus.tokens[begin : begin + TOKENS_AT_ONCE].astype(np.int64))
        state = model.observe(Sequences.full(piece[None]), state)
        _require_memory(model, begin / len(corpus))
        reporter.update(min(1.0, (begin + TOKENS_AT_ONCE) / len(corpus)), {})


def _count_documents(model: CountModel, corpus: Corpus, offsets: np.ndarray, reporter: Reporter) -> None:
    """Documents of similar length are observed together, so that a batch contains little padding."""
    order = np.argsort(np.diff(offsets), kind="stable")
    for begin in range(0, len(order), DOCUMENTS_AT_ONCE):
        chosen = order[begin : begin + DOCUMENTS_AT_ONCE]
        rows = [corpus.tokens[offsets[index] : offsets[index + 1]].astype(np.int64) for index in chosen]
        model.observe(Sequences.pack(rows))
        _require_memory(model, begin / len(order))
        reporter.update(min(1.0, (begin + DOCUMENTS_AT_ONCE) / len(order)), {})
