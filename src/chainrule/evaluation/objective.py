"""The held-out loss of models with their own training objective and no likelihood.

Random parts of such a loss, such as the choice of masked tokens, use a fixed seed: the loss of a text is reproducible,
and losses of one family are comparable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from pydantic import Field

from chainrule.config import Settings
from chainrule.data.batching import cut_documents
from chainrule.data.corpus import Corpus
from chainrule.errors import DataError
from chainrule.evaluation.scores import MetricValues
from chainrule.interface.base import OwnObjective
from chainrule.training.distributed import current
from chainrule.types import Batch, Sequences

TOKENS_AT_ONCE = 4096


class ObjectiveProtocol(Settings):
    """How the text was read."""

    method: str = "own objective"
    context: int = Field(description="maximum tokens of the stream, or of a document, per sequence")
    stride: int = Field(description="tokens between the starts of consecutive sequences; equal to context")
    carry_over: bool = False
    eos: bool = Field(description="whether EOS of documents is included")
    seed: int = Field(description="random seed of the loss")
    tokens: int | None = Field(None, description="number of tokens from the start that were read; none: all")


class ObjectiveScore(MetricValues):
    """The loss, and how it was measured."""

    nats_per_token: float = Field(description="the loss that training minimises, per token")
    tokens: int
    protocol: ObjectiveProtocol


@torch.inference_mode()
def objective_score(
    model: OwnObjective,
    corpus: Corpus,
    *,
    length: int,
    tokens: int | None = None,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> ObjectiveScore:
    """The loss of a text, or of its first tokens, in sequences of `length`. The model should be in evaluation mode."""
    limit = min(len(corpus), tokens or len(corpus))
    total, count = 0.0, 0.0
    for number, texts in current().share(enumerate(_pieces(corpus, length, limit))):
        batch = Batch(texts).to(model.device)
        with torch.random.fork_rng():
            torch.manual_seed(seed + number)
            noise = model.draw_noise(batch)
        total += float(model.loss(batch, noise))
        count += int(texts.lengths.sum())
        if progress is not None:
            progress(min(1.0, count / limit))
    total, count = current().sum(total, count)
    if progress is not None:
        progress(min(1.0, count / limit))
    if not count:
        raise DataError("no tokens to score; give a longer text")
    return ObjectiveScore(
        nats_per_token=total / count,
        tokens=int(count),
        protocol=ObjectiveProtocol(
            context=length, stride=length, eos=corpus.offsets is not None, seed=seed, tokens=tokens
        ),
    )


def _pieces(corpus: Corpus, length: int, limit: int) -> Iterator[Sequences]:
    """The sequences of the text in order, in batches."""
    edges = np.array([0, limit]) if corpus.offsets is None else np.asarray(corpus.offsets)
    starts, lengths = cut_documents(edges, length)
    rows = max(1, TOKENS_AT_ONCE // length)
    for begin in range(0, int(np.count_nonzero(starts < limit)), rows):
        chosen = zip(starts[begin : begin + rows], lengths[begin : begin + rows], strict=True)
        yield Sequences.pack([corpus.tokens[start : start + size].astype(np.int64) for start, size in chosen])
