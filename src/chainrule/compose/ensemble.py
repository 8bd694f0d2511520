"""A weighted product of models."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from chainrule.compose.blend import Blend, Evidence

SHORTLIST = 256  # tokens that stand for the vocabulary when a gate is fitted
SAMPLED = 64  # so many of them are drawn
TINY = 1e-30  # a chance for every token, even where rounding leaves none


class Ensemble(Blend):
    """A weighted product of models over one vocabulary: P ∝ Π_i P_i^{w_i}, the average of log-probabilities.

    w is the gate's scores themselves: they begin at 1 / P and, once fitted, need not sum to one, so that parts which
    are too sure or not sure enough are tempered too. A token must please all parts that have a say, where a mixture
    is content with one (log-linear interpolation, Klakow, 1998; product of experts, Hinton, 1999).
    """

    def initial_scores(self, weights: Tensor) -> Tensor:
        return weights

    def weights(self, scores: Tensor) -> Tensor:
        return scores

    def combine(self, log_probs: Sequence[Tensor], scores: Tensor) -> Tensor:
        weights = scores.unbind(-1)
        total = weights[0][..., None] * log_probs[0]
        for weight, one in zip(weights[1:], log_probs[1:], strict=True):
            total = torch.addcmul(total, weight[..., None], one)
        return total.log_softmax(-1)

    def evidence(
        self, log_probs: Sequence[Tensor], targets: Tensor, features: Tensor, generator: torch.Generator
    ) -> Evidence:
        """A large vocabulary is represented by a shortlist: the likeliest tokens, and some drawn from the others.

        What came is no part of it, since `losses` counts it by itself: were it only there by chance, a gate could
        give it more than all probability. Half of the chance to be drawn goes by the ensemble of equal weights, and
        half is the same for all, so that none is put into the tail unseen. A drawn token counts for one over its
        expected number, which makes the estimated sum over the vocabulary right on average.
        """
        stacked = torch.stack(list(log_probs), dim=1)  # (N, P, V)
        own = stacked.gather(2, targets[:, None, None].expand(-1, len(log_probs), 1))[..., 0]
        count, _, vocabulary = stacked.shape
        if vocabulary <= SHORTLIST:
            corrections = stacked.new_zeros(count, vocabulary).scatter_(1, targets[:, None], -torch.inf)
            return Evidence(features, own, stacked, corrections)
        together = stacked.mean(1).scatter_(1, targets[:, None], -torch.inf).log_softmax(-1)  # (N, V)
        likeliest = together.topk(SHORTLIST - SAMPLED, dim=-1).indices
        taken = torch.cat([likeliest, targets[:, None]], dim=1)
        rest = together.exp().clamp(min=TINY).scatter(1, taken, 0.0)
        rest = (rest / rest.sum(1, keepdim=True) + 1 / (vocabulary - taken.shape[1])).scatter(1, taken, 0.0) / 2
        drawn = torch.multinomial(rest, SAMPLED, replacement=True, generator=generator)
        shortlist = torch.cat([likeliest, drawn], dim=1)
        others = stacked.gather(2, shortlist[:, None].expand(-1, len(log_probs), -1))
        expected = rest.gather(1, drawn).log() + math.log(SAMPLED)
        return Evidence(features, own, others, torch.cat([own.new_zeros(likeliest.shape), -expected], dim=1))

    @property
    def evidence_size(self) -> int:
        return (len(self.components) + 1) * min(SHORTLIST, self.vocabulary)

    def losses(self, scores: Tensor, evidence: Evidence) -> Tensor:
        own = (scores * evidence.own).sum(-1)
        others = torch.einsum("np,nps->ns", scores, evidence.others) + evidence.corrections
        return torch.logaddexp(own, others.logsumexp(-1)) - own
