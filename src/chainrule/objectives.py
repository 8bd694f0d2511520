"""Training objectives: losses summed over next-token predictions.

Objective
├── Likelihood            the negative log-likelihood (cross-entropy)
├── SmoothedLikelihood    ... with label smoothing
├── BranchLikelihood      ... of a mixture model and of each of its branches
└── NoiseObjective        for large vocabularies: the target against sampled noise words
    ├── NoiseContrastive  binary classification of text against noise (NCE)
    └── SampledSoftmax    softmax over the target and the noise words

An objective takes the hidden vectors of unpadded positions, (N, D), and their target tokens, (N,). It returns a sum
rather than a mean: the training loop divides once by the number of tokens of the whole batch, so that accumulating
gradients over micro-batches of any sizes gives exactly the gradient of the whole batch.

Shape letters: N predictions, M distinct noise words, V vocabulary, D width.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple, Self, final

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from chainrule.errors import ConfigError
from chainrule.interface.base import NeuralModel, Scores, TabledReadout
from chainrule.interface.capabilities import Branched
from chainrule.nn.chunked import chunked_cross_entropy
from chainrule.nn.negative_sampling import AliasTable

MOST_LOGITS = 1 << 23
"""Number of logits of a batch, above which the cross-entropy is computed in chunks."""


class Objective(ABC):
    """A loss over hidden vectors and their targets."""

    measures_surprisal: ClassVar[bool] = False
    """Whether the loss is −log P of the targets, so that it can be reported as bits per byte."""

    @abstractmethod
    def __call__(self, model: NeuralModel, hidden: Tensor, targets: Tensor) -> Tensor:
        """The loss summed over predictions, a scalar in nats."""

    def for_step(self) -> Objective:
        """The objective of one optimizer step. Noise is sampled here, once for all micro-batches of the step."""
        return self


class ReportsMetrics(ABC):
    """An objective that reports metrics besides its loss."""

    @abstractmethod
    def metrics(self, model: NeuralModel, hidden: Tensor) -> dict[str, float]:
        """Metrics to log at validation, computed from hidden vectors (N, D)."""


@final
class Likelihood(Objective):
    """Negative log-likelihood, −Σ log P(x_t | x_<t)."""

    measures_surprisal = True

    def __call__(self, model: NeuralModel, hidden: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(model, hidden, targets)


@final
class SmoothedLikelihood(Objective):
    """Cross-entropy with label smoothing: a fraction ε of the target mass is uniform (Szegedy et al. 2016)."""

    def __init__(self, epsilon: float) -> None:
        self.epsilon = epsilon

    def __call__(self, model: NeuralModel, hidden: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(model, hidden, targets, label_smoothing=self.epsilon)


def cross_entropy(model: NeuralModel, hidden: Tensor, targets: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    """The summed cross-entropy of a model's readout; large logits (N, V) are never in memory at once."""
    if isinstance(model, TabledReadout) and len(hidden) * model.vocabulary > MOST_LOGITS:
        weight, bias = model.readout_table()
        if weight.dtype == hidden.dtype or torch.is_autocast_enabled(hidden.device.type):
            return chunked_cross_entropy(
                hidden, weight[: model.vocabulary], bias, targets, label_smoothing=label_smoothing
            )
    logits = model.readout(hidden)
    if torch.finfo(logits.dtype).bits < 32:  # a sum of many losses overflows, or loses its digits
        logits = logits.float()
    return F.cross_entropy(logits, targets, reduction="sum", label_smoothing=label_smoothing)


@final
class BranchLikelihood(Objective, ReportsMetrics):
    """Negative log-likelihood of a two-branch mixture plus that of each branch: −log P − λ log P₁ − λ log P₂.

    The gradient of log P alone is split by the branches' posterior responsibilities. The branch that predicts better
    would get nearly all of it, and the other would not learn.

    P₂ may be missing for some predictions, where P = P₁: a second softmax over a large vocabulary costs as much as the
    rest of a model, so a model may compute it for a random `share` of its rows only. Its loss is scaled up by that.
    """

    def __init__(self, weight: float, epsilon: float = 0.0, share: float = 1.0) -> None:
        self.weight = weight  # λ
        self.epsilon = epsilon  # label smoothing
        self.share = share

    def __call__(self, model: NeuralModel, hidden: Tensor, targets: Tensor) -> Tensor:
        assert isinstance(model, Branched)
        logits = model.branch_logits(hidden, 0)  # (N, V)
        losses = F.cross_entropy(logits, targets, reduction="none", label_smoothing=self.epsilon)
        chosen = model.has_second(hidden)  # (N,)
        hidden, targets = hidden[chosen], targets[chosen]
        branches = torch.stack([logits[chosen], model.branch_logits(hidden, 1)]).log_softmax(-1)  # (2, M, V)
        second = self._loss(branches[1], targets) / self.share
        return (
            losses[~chosen].sum()
            + self._mixture_loss(model, branches, hidden, targets)
            + self.weight * (losses.sum() + second)
        )

    def _mixture_loss(self, model: Branched, branches: Tensor, hidden: Tensor, targets: Tensor) -> Tensor:
        if self.epsilon:
            return self._loss(model.mix(branches, hidden), targets)
        return -model.mix(branches.gather(-1, targets.expand(2, -1)[..., None]), hidden).sum()

    def _loss(self, log_probs: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy with label smoothing of log-probabilities (M, V)."""
        own = log_probs.gather(-1, targets[:, None]).sum()
        return -own if not self.epsilon else -(1 - self.epsilon) * own - self.epsilon * log_probs.mean(-1).sum()

    def metrics(self, model: NeuralModel, hidden: Tensor) -> dict[str, float]:
        assert isinstance(model, Branched)
        return {"gamma": float(model.shares(hidden).detach().mean())}


class NoiseSample(NamedTuple):
    """A multiset of noise words: the distinct ids and their multiplicities."""

    ids: Tensor  # (M,)
    counts: Tensor  # (M,)


class Noise:
    """The unigram distribution q of the training data, with add-one smoothing.

    Without it the score of an unseen word would never be pushed down, because the word is never sampled.
    """

    def __init__(self, counts: npt.ArrayLike) -> None:
        raised = np.asarray(counts, dtype=np.float64) + 1.0
        self.probabilities = raised / raised.sum()  # (V,)
        self.table = AliasTable(self.probabilities)

    @classmethod
    def uniform(cls, vocabulary: int) -> Noise:
        """The uniform distribution over the vocabulary."""
        return cls(np.zeros(vocabulary))

    @property
    def vocabulary(self) -> int:
        return len(self.probabilities)

    @property
    def unigram_logits(self) -> Tensor:
        """(V,) log V q(w): the output bias of a unigram model."""
        return torch.from_numpy(np.log(self.probabilities * self.vocabulary)).to(torch.get_default_dtype())

    def draw(self, count: int, *, generator: torch.Generator | None = None) -> NoiseSample:
        """Sample `count` words with replacement. Repeated words are merged, so each is scored only once."""
        return NoiseSample(*torch.unique(self.table.draw(count, generator=generator), return_counts=True))


class NoiseObjective(Objective):
    """The target against noise words shared by all predictions of a step: logits of these words only."""

    def __init__(self, noise: Noise, count: int) -> None:
        self.noise = noise
        self.count = count
        self.sample: NoiseSample | None = None  # of the current step; None: a fresh sample for every call

    @final
    def for_step(self) -> Self:
        fixed = copy.copy(self)
        fixed.sample = self.noise.draw(self.count)
        return fixed

    @final
    def __call__(self, model: NeuralModel, hidden: Tensor, targets: Tensor) -> Tensor:
        ids, counts = self.sample or self.noise.draw(self.count)
        sample = NoiseSample(ids.to(targets.device), counts.to(targets.device))
        return self.loss(require_table(model).scores(hidden, targets, sample.ids), targets, sample)

    @abstractmethod
    def loss(self, scores: Scores, targets: Tensor, sample: NoiseSample) -> Tensor:
        """The loss summed over predictions, given the logits of the targets and of the noise words."""


@final
class NoiseContrastive(NoiseObjective, ReportsMetrics):
    """Noise-contrastive estimation (Gutmann & Hyvärinen 2010; for language models Mnih & Teh 2012).

    Classify words as text or noise, with k noise words from q for each word of text. With s(w) the model's logit,
    c = log V, and Δ(w) = s(w) − c − log k q(w), the loss of a prediction is

        −log σ(Δ(x)) − Σ_j log σ(−Δ(w_j)),    w_1 … w_k drawn from q

    As k grows, its gradient approaches that of the likelihood. The normaliser Σ_w exp(s(w) − c) is assumed to be 1 and
    never computed; the loss itself drives it to 1, and `metrics` reports how close it is. The constant c makes it about
    1 at initialisation, whether or not the readout has a bias. Evaluation uses the softmax, which is invariant to c.
    """

    def __init__(self, noise: Noise, count: int) -> None:
        super().__init__(noise, count)
        self.constant = math.log(noise.vocabulary)  # c
        self.even_odds = noise.unigram_logits + math.log(count)  # (V,) logits at which Δ = 0

    def loss(self, scores: Scores, targets: Tensor, sample: NoiseSample) -> Tensor:
        even_odds = self.even_odds.to(targets.device)
        text = F.logsigmoid(scores.own - even_odds[targets])  # (N,)
        noise = F.logsigmoid(even_odds[sample.ids] - scores.shared)  # (N, M)
        return -text.sum() - (noise.sum(0) * sample.counts).sum()

    def metrics(self, model: NeuralModel, hidden: Tensor) -> dict[str, float]:
        normalisers = model.readout(hidden).logsumexp(-1) - self.constant
        return {"log_normaliser": float(normalisers.detach().mean())}


@final
class SampledSoftmax(NoiseObjective):
    """Sampled softmax: a softmax over the target and the noise words, corrected for their inclusion probabilities.

    With π(w) = 1 − (1 − q(w))^k the probability that k draws contain w, and C the target and the noise words,

        −log softmax_{w ∈ C}(s(w) − log π(w))  at the target

    (Bengio & Senécal 2008; Jean et al. 2015). If words were included independently, its optimum would be that of the
    likelihood. Sampling k words approximates this; with C the whole vocabulary it is the likelihood. Like the full
    softmax, it is invariant to the normaliser.
    """

    def __init__(self, noise: Noise, count: int) -> None:
        super().__init__(noise, count)
        inclusion = -np.expm1(count * np.log1p(-noise.probabilities))  # π
        self.log_inclusion = torch.from_numpy(np.log(inclusion)).to(torch.get_default_dtype())  # (V,)

    def loss(self, scores: Scores, targets: Tensor, sample: NoiseSample) -> Tensor:
        log_inclusion = self.log_inclusion.to(targets.device)
        own = scores.own - log_inclusion[targets]
        shared = scores.shared - log_inclusion[sample.ids]
        shared = shared.masked_fill(sample.ids == targets[:, None], -math.inf)  # the target is counted once
        return F.cross_entropy(torch.cat([own[:, None], shared], dim=1), torch.zeros_like(targets), reduction="sum")


def require_table(model: NeuralModel) -> TabledReadout:
    """The model, if it can compute logits of selected words only. Raises ConfigError otherwise."""
    if not isinstance(model, TabledReadout):
        raise ConfigError(
            f"{type(model).__name__} has no linear readout, which train.objective=nce and sampled need to compute the "
            "logits of a few words only; set train.objective=likelihood"
        )
    return model
