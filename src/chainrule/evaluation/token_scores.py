"""The score of every single token of a text: its surprisal, its rank and the most probable alternatives."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F

from chainrule.data.corpus import Corpus
from chainrule.evaluation.predictions import predictions
from chainrule.evaluation.protocol import Protocol, protocol_for
from chainrule.interface.base import AutoregressiveModel


class Alternative(NamedTuple):
    """A probable token at a position."""

    token: int
    probability: float


class TokenScore(NamedTuple):
    """One token, its surprisal, and the most probable alternatives."""

    token: int
    surprisal: float  # nats
    rank: int  # 1: the most probable token
    alternatives: list[Alternative]


@torch.inference_mode()
def token_scores(
    model: AutoregressiveModel,
    corpus: Corpus,
    protocol: Protocol | None = None,
    *,
    source: Corpus | None = None,
    alternatives: int = 5,
) -> list[TokenScore]:
    """Scores of every token of a corpus, in text order."""
    found: list[TokenScore | None] = [None] * len(corpus)
    for where, targets, logits in predictions(model, corpus, protocol or protocol_for(model, corpus), source):
        log_probs = F.log_softmax(logits, dim=-1)
        chosen = log_probs.gather(1, targets[:, None])  # (N, 1)
        ranks = (log_probs > chosen).sum(1) + 1
        top, tokens = log_probs.topk(min(alternatives, model.vocabulary), dim=-1)
        columns = (where, targets, chosen[:, 0], ranks, tokens, top.exp())
        for position, target, log_prob, rank, expected, probabilities in zip(
            *(c.tolist() for c in columns), strict=True
        ):
            others = [Alternative(*pair) for pair in zip(expected, probabilities, strict=True)]
            found[position] = TokenScore(target, -log_prob, rank, others)
    return [entry for entry in found if entry is not None]
