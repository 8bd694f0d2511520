"""Mixtures: a weighted sum of models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

import torch
from pydantic import model_validator
from torch import Tensor

from chainrule.compose.blend import Blend, BlendConfig, Evidence
from chainrule.compose.gate import MEASURES
from chainrule.kernels.instructions import Vector
from chainrule.kernels.program import ProgramBuilder


class MixtureConfig(BlendConfig):
    @model_validator(mode="after")
    def _probabilities(self) -> Self:
        if self.weights is not None and (min(self.weights) < 0 or sum(self.weights) <= 0):
            given = ", ".join(f"{weight:g}" for weight in self.weights)
            raise ValueError(f"the weights of a mixture must not be negative and must have a positive sum, got {given}")
        return self


class Mixture(Blend):
    """A weighted sum of models over one vocabulary: P = Σ_i γ_i P_i with fixed, learned or context-gated γ.

    γ is the softmax of the gate scores. The sum is at least γ_i P_i for every part, so it is at most −log γ_i nats
    worse than the best of them, and better where different parts are right at different positions (linear
    interpolation, Jelinek & Mercer 1980).
    """

    Config: ClassVar[type[MixtureConfig]] = MixtureConfig

    def initial_scores(self, weights: Tensor) -> Tensor:
        return (weights / weights.sum()).log()

    def weights(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1)

    def combine(self, log_probs: Sequence[Tensor], scores: Tensor) -> Tensor:
        log_weights = scores.log_softmax(-1).unbind(-1)
        weighted = [weight[..., None] + one for weight, one in zip(log_weights, log_probs, strict=True)]
        return torch.stack(weighted).logsumexp(0)

    def describe_combination(self, program: ProgramBuilder, log_probs: Sequence[Vector], scores: Vector) -> None:
        program.combine(log_probs, scores, mixture=True)

    def evidence(
        self, log_probs: Sequence[Tensor], targets: Tensor, features: Tensor, generator: torch.Generator
    ) -> Evidence:
        own = torch.stack([one.gather(1, targets[:, None])[:, 0] for one in log_probs], dim=-1)
        return Evidence(features, own, own.new_empty(*own.shape, 0), own.new_empty(len(own), 0))

    @property
    def evidence_size(self) -> int:
        return (1 + MEASURES) * len(self.components)

    def losses(self, scores: Tensor, evidence: Evidence) -> Tensor:
        return -(scores.log_softmax(-1) + evidence.own).logsumexp(-1)
