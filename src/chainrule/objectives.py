"""What gradient training minimises: a loss summed over predictions.

An objective sees the hidden vectors of real positions only, (N, D), and the tokens they should predict, (N,). A sum
rather than a mean lets the loop divide once by the number of tokens of the whole batch, so that a batch computed in
pieces has exactly the gradient of the batch computed at once, however unequal the pieces are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import final

import torch.nn.functional as F
from torch import Tensor

from chainrule.models.base import NeuralModel


class Objective(ABC):
    """A loss over rows of hidden vectors."""

    @abstractmethod
    def __call__(self, model: NeuralModel, hidden: Tensor, targets: Tensor) -> Tensor:
        """The sum over rows, a scalar in nats."""


@final
class Likelihood(Objective):
    """−Σ log P(x_t | x_<t): the chain rule itself."""

    def __call__(self, model: NeuralModel, hidden: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(model.readout(hidden), targets, reduction="sum")


@final
class SmoothedLikelihood(Objective):
    """Likelihood against targets that give a share ε of their mass to the whole vocabulary (Szegedy et al. 2016)."""

    def __init__(self, epsilon: float) -> None:
        self.epsilon = epsilon

    def __call__(self, model: NeuralModel, hidden: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(model.readout(hidden), targets, reduction="sum", label_smoothing=self.epsilon)
