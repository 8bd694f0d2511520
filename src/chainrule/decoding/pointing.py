"""The likeliest span of a passage, by a model of its start and of its end given its start.

The `width` likeliest starts are followed, each to its likeliest end: beam search over targets of two tokens, where the
first token of all, "not here", is left out and its probability told instead. With as many starts as there are places,
the best span is exact.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from chainrule.interface.base import AutoregressiveModel
from chainrule.types import Sequences, select


class Span(NamedTuple):
    """What was found in a passage."""

    first: int  # tokens of the passage, counted from 1
    last: int
    log_prob: float  # nats, of this span
    log_nowhere: float  # nats, of there being no answer here

    @property
    def log_odds(self) -> float:
        """Of this span against no answer."""
        return self.log_prob - self.log_nowhere


@torch.inference_mode()
def best_spans(model: AutoregressiveModel, source: Sequences, *, width: int = 5) -> list[Span]:
    """The best span of each source."""
    step = model.start(source)
    log_probs = F.log_softmax(step.logits[:, 0].double(), -1)  # (B, V)
    begins, starts = log_probs[:, 1:].topk(min(width, log_probs.shape[1] - 1))  # (B, K)
    starts = starts + 1
    rows = torch.arange(len(starts), device=starts.device).repeat_interleave(starts.shape[1])
    ends: Tensor = F.log_softmax(
        model.extend(starts.reshape(-1, 1), select(step.state, rows)).logits[:, 0].double(), -1
    )
    reached, places = ends[:, 1:].max(-1)
    totals, best = (begins + reached.view_as(begins)).max(1)
    chosen = best[:, None]
    found = zip(
        starts.gather(1, chosen)[:, 0].tolist(),
        (places + 1).view_as(starts).gather(1, chosen)[:, 0].tolist(),
        totals.tolist(),
        log_probs[:, 0].tolist(),
        strict=True,
    )
    return [Span(*one) for one in found]
