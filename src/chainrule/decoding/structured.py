"""Decoders of structured outputs: the best label sequence (Viterbi) and the best answer span.

Both know a model through `start` and `extend` only. Shape letters: B sources, V vocabulary, K starts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from chainrule.decoding.generation import Generation
from chainrule.errors import DecodingError
from chainrule.interface.base import AutoregressiveModel
from chainrule.types import Sequences, select


@torch.inference_mode()
def viterbi(model: AutoregressiveModel, lengths: Sequence[int], *, source: Sequences | None = None) -> list[Generation]:
    """The most probable sequence of each length under a first-order model, exactly (Viterbi 1967).

        best_1(y) = log P(y),    best_t(y) = max_x best_{t−1}(x) + log P(y | x at t − 1)

    The batch has one row for each possible last token. Row i is conditioned on source i if the model has sources.
    """
    if model.receptive_field is None or model.receptive_field > 1:
        raise DecodingError(
            "the Viterbi algorithm needs a first-order model, whose predictions depend on the previous token only; "
            "use beam search, or train with model.order=1"
        )
    if not lengths:
        return []
    if min(lengths) < 1:
        raise DecodingError(f"got a length of {min(lengths)} tokens; lengths must be at least 1")
    rows, vocabulary, device = len(lengths), model.vocabulary, model.device
    wanted = torch.tensor(lengths, device=device)
    step = model.start(source, batch_size=rows)
    best = F.log_softmax(step.logits[:, -1].double(), -1)  # (B, V)
    state = select(step.state, torch.arange(rows, device=device).repeat_interleave(vocabulary))
    last = torch.arange(vocabulary, device=device).repeat(rows)[:, None]  # (B V, 1): every possible last token
    unchanged = torch.arange(vocabulary, device=device).expand(rows, -1)
    backpointers = []  # (B, V) each: the previous token on the best path to each token
    for length in range(1, max(lengths)):
        step = model.extend(last, state)
        state = step.state
        table = F.log_softmax(step.logits[:, -1].double(), -1).view(rows, vocabulary, vocabulary)
        reached, before = (best[..., None] + table).max(1)
        continues = (wanted > length)[:, None]
        best = torch.where(continues, reached, best)
        backpointers.append(torch.where(continues, before, unchanged))
    scores, token = best.max(1)
    ids = [token]
    for before in reversed(backpointers):
        ids.append(before.gather(1, ids[-1][:, None])[:, 0])
    paths = torch.stack(ids[::-1], dim=1).tolist()  # a row that has ended repeats its last token
    return [
        Generation(path[:length], score, "length")
        for path, length, score in zip(paths, lengths, scores.tolist(), strict=True)
    ]


class Span(NamedTuple):
    """An answer span in a passage."""

    first: int  # token positions in the passage, counted from 1
    last: int
    log_prob: float  # nats, of this span
    log_no_answer: float  # nats, of the passage having no answer

    @property
    def log_odds(self) -> float:
        """Log-odds of this span against no answer."""
        return self.log_prob - self.log_no_answer


@torch.inference_mode()
def top_spans(model: AutoregressiveModel, source: Sequences, *, starts: int = 5, ends: int = 1) -> list[list[Span]]:
    """The most probable spans of each source, best first, under a model of their start and of their end given it.

    This is beam search over targets of two tokens: the most probable starts, each with its most probable ends. Token 0
    means "no answer"; it is excluded, and its probability is returned with the spans. Impossible spans, such as those
    that end before they start or after the passage, are left out. The best span is exact if `starts` is the number of
    positions.
    """
    step = model.start(source)
    log_probs = F.log_softmax(step.logits[:, 0].double(), -1)  # (B, V)
    possible = log_probs.shape[1] - 1
    start_scores, first = log_probs[:, 1:].topk(min(starts, possible))  # (B, K)
    rows = torch.arange(len(first), device=first.device).repeat_interleave(first.shape[1])
    end_log_probs: Tensor = F.log_softmax(
        model.extend((first + 1).reshape(-1, 1), select(step.state, rows)).logits[:, 0].double(), -1
    )
    end_scores, last = end_log_probs[:, 1:].topk(min(ends, possible))
    shape = (*first.shape, last.shape[-1])  # B, K starts, their ends
    totals = start_scores[..., None] + end_scores.view(shape)
    found = zip(
        (first + 1)[..., None].expand(shape).flatten(1).tolist(),
        (last + 1).view(shape).flatten(1).tolist(),
        totals.flatten(1).tolist(),
        log_probs[:, 0].tolist(),
        strict=True,
    )
    return [
        sorted(
            (Span(*span, none) for span in zip(begins, ends_, scores, strict=True) if math.exp(span[2]) > 0),
            key=lambda span: -span.log_prob,
        )
        for begins, ends_, scores, none in found
    ]


def highest_expected_f1(begins: Sequence[int], ends: Sequence[int], log_weights: Sequence[float]) -> int:
    """The index of the interval with the highest expected F1 (minimum Bayes risk; Kumar & Byrne 2004).

        argmax_i Σ_j P(j) F1(i, j),    F1(i, j) = 2 |i ∩ j| / (|i| + |j|),    P(j) ∝ exp(log_weights_j)

    Interval i is [begins_i, ends_i). The most probable interval may be one of many in a place where nothing else is
    probable; this one agrees with the probable ones as much as possible.
    """
    begin, end = (np.asarray(values, dtype=np.float64) for values in (begins, ends))
    size = end - begin
    shared = np.minimum(end[:, None], end) - np.maximum(begin[:, None], begin)
    agreement = 2 * np.maximum(shared, 0.0) / (size[:, None] + size)
    weights = np.exp(np.asarray(log_weights) - np.max(log_weights))
    return int((agreement @ weights).argmax())
