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

        They are drawn from the ensemble of equal weights, and each counts for one over its expected number, which
        makes the estimated sum over the vocabulary right on average, and exact where the weights are still equal.
        """
        stacked = torch.stack(list(log_probs), dim=1)  # (N, P, V)
        own = stacked.gather(2, targets[:, None, None].expand(-1, len(log_probs), 1))[..., 0]
        if stacked.shape[2] <= SHORTLIST:
            return Evidence(features, own, stacked, stacked.new_zeros(len(own), stacked.shape[2]))
        together = stacked.mean(1).log_softmax(-1)  # (N, V)
        likeliest = together.topk(SHORTLIST - SAMPLED, dim=-1).indices
        rest = together.exp().clamp(min=TINY).scatter(1, likeliest, 0.0)
        drawn = torch.multinomial(rest, SAMPLED, replacement=True, generator=generator)
        chances = rest.gather(1, drawn) / rest.sum(1, keepdim=True)
        shortlist = torch.cat([likeliest, drawn], dim=1)
        others = stacked.gather(2, shortlist[:, None].expand(-1, len(log_probs), -1))
        corrections = torch.cat([own.new_zeros(likeliest.shape), -chances.log() - math.log(SAMPLED)], dim=1)
        return Evidence(features, own, others, corrections)

    @property
    def evidence_size(self) -> int:
        return (len(self.components) + 1) * min(SHORTLIST, self.vocabulary)

    def losses(self, scores: Tensor, evidence: Evidence) -> Tensor:
        totals = torch.einsum("np,nps->ns", scores, evidence.others) + evidence.corrections
        return totals.logsumexp(-1) - (scores * evidence.own).sum(-1)
