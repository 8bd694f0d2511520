"""What gradient training minimises: a loss summed over predictions.

Objective
├── Likelihood            the chain rule itself
├── SmoothedLikelihood    ... with a share of the mass spread over the vocabulary
├── BranchLikelihood      ... of a mixture and of its branches
└── NoiseObjective        for large vocabularies: the true word against words drawn as noise
    ├── NoiseContrastive  is it text or noise?
    └── SampledSoftmax    which of these words is the true one?

An objective sees the hidden vectors of real positions only, (N, D), and the tokens they should predict, (N,). A sum
rather than a mean lets the loop divide once by the number of tokens of the whole batch, so that a batch computed in
pieces has exactly the gradient of the batch computed at once, however unequal the pieces are.

Shape letters: N predictions, M different words of noise, V vocabulary, D width.
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
from chainrule.nn.negative_sampling import AliasTable


class Objective(ABC):
    """A loss over rows of hidden vectors."""

    measures_surprisal: ClassVar[bool] = False
    """Whether the loss is −log P of the tokens, so that it may be stated as bits per byte."""

    @abstractmethod
    def __call__(self, model: NeuralModel, hidden: Tensor, targets: Tensor) -> Tensor:
        """The sum over rows, a scalar in nats."""

    def drawn(self) -> Objective:
        """The objective of one step: what is random about it is drawn here, once for all pieces of a batch."""
        return self


class Reporting(ABC):
    """Beside an objective: one that has more to tell of a model than its loss."""

    @abstractmethod
    def figures(self, model: NeuralModel, hidden: Tensor) -> dict[str, float]:
        """What a user should see when the model is validated, from hidden vectors (N, D)."""


@final
class Likelihood(Objective):
    """−Σ log P(x_t | x_<t): the chain rule itself."""

    measures_surprisal = True

    def __call__(self, model: NeuralModel, hidden: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(model.readout(hidden), targets, reduction="sum")


@final
class SmoothedLikelihood(Objective):
    """Likelihood against targets that give a share ε of their mass to the whole vocabulary (Szegedy et al. 2016)."""

    def __init__(self, epsilon: float) -> None:
        self.epsilon = epsilon

    def __call__(self, model: NeuralModel, hidden: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(model.readout(hidden), targets, reduction="sum", label_smoothing=self.epsilon)


@final
class BranchLikelihood(Objective, Reporting):
    """−Σ log P of a mixture of two branches, and λ times that of either: −log P(x) − λ log P₁(x) − λ log P₂(x).

    By P alone the branch that predicts better gets nearly all of the gradient, since that is shared out as the
    branches' shares in P(x) are, and the other one never learns to predict.
    """

    def __init__(self, weight: float, epsilon: float = 0.0) -> None:
        self.weight = weight  # λ
        self.epsilon = epsilon  # of each target's mass, spread over the vocabulary

    def __call__(self, model: NeuralModel, hidden: Tensor, targets: Tensor) -> Tensor:
        assert isinstance(model, Branched)
        branches = model.branch_log_probs(hidden)  # (2, N, V)
        own = branches.gather(-1, targets.expand(2, -1)[..., None])  # (2, N, 1): all that is needed without smoothing
        loss = -self._weighed(model, own, hidden)
        if not self.epsilon:
            return loss
        return (1 - self.epsilon) * loss - self.epsilon / branches.shape[-1] * self._weighed(model, branches, hidden)

    def _weighed(self, model: Branched, log_probs: Tensor, hidden: Tensor) -> Tensor:
        return model.mix(log_probs, hidden).sum() + self.weight * log_probs.sum()

    def figures(self, model: NeuralModel, hidden: Tensor) -> dict[str, float]:
        assert isinstance(model, Branched)
        return {"gamma": float(model.shares(hidden).detach().mean())}


class Words(NamedTuple):
    """Words drawn as noise, each named once."""

    ids: Tensor  # (M,)
    counts: Tensor  # (M,) how often it was drawn


class Noise:
    """The unigram distribution q of a text, with 1 added to every count.

    A word that cannot be drawn would never be told from the text, and nothing would lower its score.
    """

    def __init__(self, counts: npt.ArrayLike) -> None:
        raised = np.asarray(counts, dtype=np.float64) + 1.0
        self.probabilities = raised / raised.sum()  # (V,)
        self.table = AliasTable(self.probabilities)

    @property
    def vocabulary(self) -> int:
        return len(self.probabilities)

    @property
    def levels(self) -> Tensor:
        """(V,) log V q(w): the logits of a model that knows how frequent words are, and nothing else."""
        return torch.from_numpy(np.log(self.probabilities * self.vocabulary)).to(torch.get_default_dtype())

    def draw(self, count: int, *, generator: torch.Generator | None = None) -> Words:
        """Frequent words come up again and again; each is named, and later scored, only once."""
        return Words(*torch.unique(self.table.draw(count, generator=generator), return_counts=True))


class NoiseObjective(Objective):
    """The true word against words of noise that all predictions of a step share: only their rows are scored."""

    def __init__(self, noise: Noise, count: int) -> None:
        self.noise = noise
        self.count = count
        self.words: Words | None = None  # those of one step; none: others each time that the objective is used

    @final
    def drawn(self) -> Self:
        fixed = copy.copy(self)
        fixed.words = self.noise.draw(self.count)
        return fixed

    @final
    def __call__(self, model: NeuralModel, hidden: Tensor, targets: Tensor) -> Tensor:
        words = self.words or self.noise.draw(self.count)
        words = Words(words.ids.to(targets.device), words.counts.to(targets.device))
        return self.loss(tabled(model).scores(hidden, targets, words.ids), targets, words)

    @abstractmethod
    def loss(self, scores: Scores, targets: Tensor, words: Words) -> Tensor:
        """The sum over rows, from the logits of the targets and of the words."""


@final
class NoiseContrastive(NoiseObjective, Reporting):
    """Noise-contrastive estimation (Gutmann & Hyvärinen 2010; for language models Mnih & Teh 2012).

    A word w comes from the text, or with odds of 1 to k from the noise q. With s(w) the model's logit, c = log V, and
    Δ(w) = s(w) − c − log k q(w), the loss of a prediction is

        −log σ(Δ(x)) − Σ_j log σ(−Δ(w_j)),    w_1 … w_k drawn from q

    As k grows its gradient becomes that of the likelihood. The normaliser Σ_w exp(s(w) − c) is taken as 1 and never
    computed; the loss itself draws it there, and `figures` tell how near it is. The constant c makes it about 1 from
    the start, whether a readout has a bias or not. A softmax does not see c, so evaluation is exact as ever.
    """

    def __init__(self, noise: Noise, count: int) -> None:
        super().__init__(noise, count)
        self.constant = math.log(noise.vocabulary)  # c
        self.even = noise.levels + math.log(count)  # (V,) logits at which text and noise are equally likely

    def loss(self, scores: Scores, targets: Tensor, words: Words) -> Tensor:
        even = self.even.to(targets.device)
        text = F.logsigmoid(scores.own - even[targets])  # (N,)
        noise = F.logsigmoid(even[words.ids] - scores.shared)  # (N, M)
        return -text.sum() - (noise.sum(0) * words.counts).sum()

    def figures(self, model: NeuralModel, hidden: Tensor) -> dict[str, float]:
        normalisers = model.readout(hidden).logsumexp(-1) - self.constant
        return {"log_normaliser": float(normalisers.detach().mean())}


@final
class SampledSoftmax(NoiseObjective):
    """A softmax over the true word and the words drawn, corrected for how likely each was to be there.

    With π(w) = 1 − (1 − q(w))^k the probability that k draws contain w, and C the target and the words drawn,

        −log softmax_{w ∈ C}(s(w) − log π(w))  at the target

    (Bengio & Senécal 2008; Jean et al. 2015). Were words present independently of each other, its optimum would be that
    of the likelihood; draws come near to that, and with all words drawn it is the likelihood. Like a softmax it
    does not care about the normaliser.
    """

    def __init__(self, noise: Noise, count: int) -> None:
        super().__init__(noise, count)
        presence = -np.expm1(count * np.log1p(-noise.probabilities))  # π
        self.log_presence = torch.from_numpy(np.log(presence)).to(torch.get_default_dtype())  # (V,)

    def loss(self, scores: Scores, targets: Tensor, words: Words) -> Tensor:
        presence = self.log_presence.to(targets.device)
        own = scores.own - presence[targets]
        shared = scores.shared - presence[words.ids]
        shared = shared.masked_fill(words.ids == targets[:, None], -math.inf)  # the target stands there already
        return F.cross_entropy(torch.cat([own[:, None], shared], dim=1), torch.zeros_like(targets), reduction="sum")


def tabled(model: NeuralModel) -> TabledReadout:
    """The model, as one whose words can be scored one by one."""
    if not isinstance(model, TabledReadout):
        raise ConfigError(
            f"{type(model).__name__} cannot score a few words without the others, as noise objectives do; "
            "set train.objective=likelihood"
        )
    return model
