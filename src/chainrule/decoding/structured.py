"""Decoders of structured outputs: the best label sequence (Viterbi) and the best answer span.

Both know a model through `start` and `extend` only. Shape letters: B sources, V vocabulary, K starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

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
def best_spans(model: AutoregressiveModel, source: Sequences, *, width: int = 5) -> list[Span]:
    """The best span of each source under a model of its start and of its end given its start.

    This is beam search over targets of two tokens: the `width` most probable starts, each with its most probable end.
    Token 0 means "no answer"; it is excluded, and its probability is returned with the span. The result is exact if
    `width` is the number of positions.
    """
    step = model.start(source)
    log_probs = F.log_softmax(step.logits[:, 0].double(), -1)  # (B, V)
    start_scores, starts = log_probs[:, 1:].topk(min(width, log_probs.shape[1] - 1))  # (B, K)
    starts = starts + 1
    rows = torch.arange(len(starts), device=starts.device).repeat_interleave(starts.shape[1])
    end_log_probs: Tensor = F.log_softmax(
        model.extend(starts.reshape(-1, 1), select(step.state, rows)).logits[:, 0].double(), -1
    )
    end_scores, ends = end_log_probs[:, 1:].max(-1)
    totals, best = (start_scores + end_scores.view_as(start_scores)).max(1)
    chosen = best[:, None]
    found = zip(
        starts.gather(1, chosen)[:, 0].tolist(),
        (ends + 1).view_as(starts).gather(1, chosen)[:, 0].tolist(),
        totals.tolist(),
        log_probs[:, 0].tolist(),
        strict=True,
    )
    return [Span(*one) for one in found]
