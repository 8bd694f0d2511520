"""Ensembles: a weighted product of models."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from chainrule.compose.blend import Blend, Evidence
from chainrule.kernels.instructions import Vector
from chainrule.kernels.program import ProgramBuilder

SHORTLIST = 256  # tokens that represent the vocabulary when a gate is fitted
SAMPLED = 64  # number of them that are sampled
TINY = 1e-30  # minimum sampling weight, even where rounding leaves none


class Ensemble(Blend):
    """Log-linear interpolation: a weighted average of the models' log-probabilities, renormalised.

        P(x_t | x_<t) ∝ Π_i P_i(x_t | x_<t)^{w_i}

    w are the scores of the gate: initially 1 / P, and not normalised once fitted, so that overconfident or
    underconfident parts are also tempered. A token needs probability under all parts with weight, where in a mixture
    one is enough (log-linear interpolation, Klakow 1998; product of experts, Hinton 1999).
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

    def describe_combination(self, program: ProgramBuilder, log_probs: Sequence[Vector], scores: Vector) -> None:
        program.combine(log_probs, scores, mixture=False)

    def evidence(
        self, log_probs: Sequence[Tensor], targets: Tensor, features: Tensor, generator: torch.Generator
    ) -> Evidence:
        """Represent a large vocabulary by a shortlist: the most probable tokens, and a sample of the others.

        The target is excluded, since `losses` adds it: if it were only there when sampled, a gate could give it more
        than all probability. Half of the sampling probability follows the ensemble of equal weights, the other half
        is uniform, so that no token of the tail is ignored. A sampled token is weighted by the inverse of its expected
        count, which makes the estimate of the sum over the vocabulary unbiased (importance sampling).
        """
        stacked = torch.stack(list(log_probs), dim=1)  # (N, P, V)
        own = stacked.gather(2, targets[:, None, None].expand(-1, len(log_probs), 1))[..., 0]
        count, _, vocabulary = stacked.shape
        if vocabulary <= SHORTLIST:
            corrections = stacked.new_zeros(count, vocabulary).scatter_(1, targets[:, None], -torch.inf)
            return Evidence(features, own, stacked, corrections)
        average = stacked.mean(1).scatter_(1, targets[:, None], -torch.inf).log_softmax(-1)  # (N, V)
        top = average.topk(SHORTLIST - SAMPLED, dim=-1).indices
        taken = torch.cat([top, targets[:, None]], dim=1)
        rest = average.exp().clamp(min=TINY).scatter(1, taken, 0.0)
        rest = (rest / rest.sum(1, keepdim=True) + 1 / (vocabulary - taken.shape[1])).scatter(1, taken, 0.0) / 2
        drawn = torch.multinomial(rest, SAMPLED, replacement=True, generator=generator)
        shortlist = torch.cat([top, drawn], dim=1)
        others = stacked.gather(2, shortlist[:, None].expand(-1, len(log_probs), -1))
        expected = rest.gather(1, drawn).log() + math.log(SAMPLED)
        return Evidence(features, own, others, torch.cat([own.new_zeros(top.shape), -expected], dim=1))

    @property
    def evidence_size(self) -> int:
        return (len(self.components) + 1) * min(SHORTLIST, self.vocabulary)

    def losses(self, scores: Tensor, evidence: Evidence) -> Tensor:
        own = (scores * evidence.own).sum(-1)
        others = torch.einsum("np,nps->ns", scores, evidence.others) + evidence.corrections
        return torch.logaddexp(own, others.logsumexp(-1)) - own
