"""Training of count models: one pass over the data, in pieces that fit into memory."""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from chainrule.data.corpus import Corpus
from chainrule.data.token_files import TokenFile
from chainrule.data.workers import local_workers, on_executor, results, worker_count
from chainrule.errors import TrainingError, in_units
from chainrule.files import writing
from chainrule.interface.base import CountModel
from chainrule.interface.capabilities import DiskCounts
from chainrule.memory import available_memory, parse_size
from chainrule.training.progress import Reporter
from chainrule.types import Sequences, State

TOKENS_AT_ONCE = 1 << 22
PART = 1 << 26  # tokens that a worker counts at most
DOCUMENTS_AT_ONCE = 4096
ESTIMATING_BYTES = 44  # per event, measured, in addition to its count


@contextlib.contextmanager
def counts_on_disk(model: CountModel, path: Path, memory: str | None) -> Iterator[None]:
    """Let a model use only so much memory in this block; its files are in a hidden folder beside `path`.

    The tables of the model are in these files, too, so they must have been saved when the block ends.
    """
    if memory is None:
        yield
        return
    assert isinstance(model, DiskCounts)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.counts.") as folder:
            model.count_on_disk(Path(folder), parse_size(memory))
            yield


def count(model: CountModel, corpus: Corpus, reporter: Reporter) -> None:
    """Let the model observe a corpus, then estimate its parameters."""
    on_disk = isinstance(model, DiskCounts) and model.tokens_at_once is not None
    text = TokenFile.of(corpus.tokens, corpus.offsets)
    if not on_disk:
        model.require_countable(corpus.tokens, available_memory())
    reporter.begin("counting")
    try:
        if on_disk and text is not None:
            assert isinstance(model, DiskCounts)
            _count_parts(model, text, reporter)
        elif corpus.offsets is None:
            _count_stream(model, corpus, reporter)
        else:
            _count_documents(model, corpus, corpus.offsets, reporter)
        reporter.begin("merging and estimating" if on_disk else "estimating")
        model.estimate(lambda share: reporter.update(share, {}))
    finally:
        reporter.end()


def _count_parts(model: DiskCounts, text: TokenFile, reporter: Reporter) -> None:
    """Count a text in a file: in this process, or by several workers, each of which counts parts of it."""
    workers = min(worker_count(), math.ceil(text.length / PART))
    if workers == 1:
        [job] = model.count_jobs(text, text.length, 1.0)
        model.add_counts(job(lambda share: reporter.update(share, {})))
        return
    share = 1.0 if on_executor() else 1 / workers  # other machines have memory of their own
    number = workers * math.ceil(text.length / (workers * PART))  # none waits for a last part that is longer
    jobs = model.count_jobs(text, math.ceil(text.length / number), share)
    with local_workers(workers):  # which end before the counts of all parts take their memory
        for number, (_, counts) in enumerate(results(_counted, [(job,) for job in jobs]), start=1):
            model.add_counts(counts)
            reporter.update(number / len(jobs), {})


def _counted(job: Callable[..., Any]) -> Any:
    return job(None)


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
    size = _tokens_at_once(model)
    for begin in range(0, len(corpus), size):
        piece = torch.from_numpy(corpus.tokens[begin : begin + size].astype(np.int64))
        state = model.observe(Sequences.full(piece[None]), state)
        _require_memory(model, begin / len(corpus))
        reporter.update(min(1.0, (begin + size) / len(corpus)), {})


def _tokens_at_once(model: CountModel) -> int:
    limit = model.tokens_at_once if isinstance(model, DiskCounts) else None
    return TOKENS_AT_ONCE if limit is None else min(TOKENS_AT_ONCE, limit)


def _count_documents(model: CountModel, corpus: Corpus, offsets: np.ndarray, reporter: Reporter) -> None:
    """Documents of similar length are observed together, so that a batch contains little padding."""
    lengths = np.diff(offsets)
    order = np.argsort(lengths, kind="stable")
    size, begin = _tokens_at_once(model), 0
    while begin < len(order):
        chosen = order[begin : begin + DOCUMENTS_AT_ONCE]
        chosen = chosen[: max(1, int(np.searchsorted(np.cumsum(lengths[chosen]), size)))]
        rows = [corpus.tokens[offsets[index] : offsets[index + 1]].astype(np.int64) for index in chosen]
        model.observe(Sequences.pack(rows))
        _require_memory(model, begin / len(order))
        begin += len(chosen)
        reporter.update(begin / len(order), {})
