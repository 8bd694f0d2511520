"""The likelihood of images in their usual units.

With N images of D = H · W · C values each, nats/image = Σ −log P(x) / N and bits/dim = nats/image / (D log 2).
"""

from __future__ import annotations

import math
from typing import Self

from pydantic import Field

from chainrule.config import ImageForm
from chainrule.evaluation.likelihood import Score
from chainrule.evaluation.protocol import Protocol
from chainrule.evaluation.scores import MetricValues


class ImageScore(MetricValues):
    """Metrics, and how they were measured."""

    nats_per_image: float
    bits_per_dim: float = Field(description="bits for each channel of each pixel")
    nats_per_token: float
    accuracy: float | None = Field(description="fraction of values that were the most probable ones")
    tokens: int
    images: int
    protocol: Protocol

    @classmethod
    def of(cls, score: Score, form: ImageForm) -> Self:
        return cls(
            nats_per_image=score.nats_per_token * form.size,
            bits_per_dim=score.nats_per_token / math.log(2),
            nats_per_token=score.nats_per_token,
            accuracy=score.accuracy,
            tokens=score.tokens,
            images=score.tokens // form.size,
            protocol=score.protocol,
        )
