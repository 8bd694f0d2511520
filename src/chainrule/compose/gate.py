"""Gates: how much each part of a mixture or an ensemble has to say, here and now.

A gate gives a score for every part and every prediction. What a score means is the blend's: the mixture takes their
softmax for its weights, the ensemble takes them as exponents. A gate sees nothing but what the parts predict and have
predicted, and the tokens already read; so it works for parts of any family.

Shape letters: B rows, K tokens in a chunk, V vocabulary, P parts, R decays, F features.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from chainrule.types import State

DECAYS = (0.0, 0.9, 0.99)  # of the running means: the last token, about the last 10, and the last 100
MEASURES = 3 + len(DECAYS)  # features of each part
HIDDEN = 32
TABLED = 256  # tokens that the gate knows one by one; the others are one to it. Most tokenizers put the frequent first
FAR = 20.0  # nats: no feature is further out, whatever a part thinks impossible
BLOCK = 256  # tokens over which a running mean is one matrix product


class View(NamedTuple):
    """What a gate goes by at each prediction, and what it remembers after them."""

    features: Tensor  # (B, K, F)
    state: State


class Gate(nn.Module, ABC):
    """Scores of P parts."""

    @abstractmethod
    def start(self, log_probs: Sequence[Tensor]) -> View:
        """Look at the parts' first predictions, (B, 1, V) each."""

    @abstractmethod
    def extend(self, tokens: Tensor, log_probs: Sequence[Tensor], state: State) -> View:
        """Look at tokens (B, K) and at what the parts predict after each of them, (B, K, V) each."""

    @abstractmethod
    def scores(self, features: Tensor) -> Tensor:
        """(..., F) to (..., P)."""

    @abstractmethod
    def begin(self, scores: Tensor) -> None:
        """Give these scores (P,) everywhere, from now on or until the gate is fitted."""


class ConstantGate(Gate):
    """A gate that looks at nothing."""

    constant: Tensor  # (P,)

    def start(self, log_probs: Sequence[Tensor]) -> View:
        return View(log_probs[0].new_empty(*log_probs[0].shape[:2], 0), ())

    def extend(self, tokens: Tensor, log_probs: Sequence[Tensor], state: State) -> View:
        return View(log_probs[0].new_empty(*tokens.shape, 0), ())

    def scores(self, features: Tensor) -> Tensor:
        return self.constant.expand(*features.shape[:-1], -1)

    def begin(self, scores: Tensor) -> None:
        with torch.no_grad():
            self.constant.copy_(scores)


class FixedGate(ConstantGate):
    """The same weights everywhere, as given."""

    def __init__(self, scores: Tensor, vocabulary: int) -> None:
        super().__init__()
        self.register_buffer("constant", scores.clone(), persistent=False)  # the settings hold them


class LearnedGate(ConstantGate):
    """The same weights everywhere, fitted to held-out text."""

    def __init__(self, scores: Tensor, vocabulary: int) -> None:
        super().__init__()
        self.constant = nn.Parameter(scores.clone())


class Memory(NamedTuple):
    predicted: tuple[Tensor, ...]  # (B, V) each: what the parts expect next, to be judged when it comes
    means: Tensor  # (B, P, R) running means of the log-probability that each part gave to the tokens read


class ContextGate(Gate):
    """Weights that follow the text: a small network over how sure each part is, how much it differs from the others,
    how well it has done of late, and the last token.

        f_t = for each part: entropy H(P), largest log-probability, divergence Σ P (log P − mean of the parts' log P),
              and running means of the log-probability that it gave to the tokens read
        scores_t = U tanh(W (f_t − μ) / σ + b + T[x_t]) + c

    A running mean with decay λ is m_t = λ m_{t−1} + (1 − λ) log P(x_t | x_<t), from m_0 = −log V, the uniform guess.
    """

    centre: Tensor
    spread: Tensor
    decays: Tensor

    def __init__(self, scores: Tensor, vocabulary: int) -> None:
        super().__init__()
        parts = len(scores)
        size = parts * MEASURES
        self.guess = -math.log(vocabulary)
        self.register_buffer("decays", torch.tensor(DECAYS), persistent=False)
        self.register_buffer("centre", torch.zeros(size))
        self.register_buffer("spread", torch.ones(size))
        self.inward = nn.Linear(size, HIDDEN)
        self.table = nn.Embedding(min(vocabulary, TABLED + 1) + 1, HIDDEN)  # the first row: nothing was read yet
        self.outward = nn.Linear(HIDDEN, parts)
        self.begin(scores)

    def begin(self, scores: Tensor) -> None:
        with torch.no_grad():
            nn.init.zeros_(self.table.weight)
            nn.init.zeros_(self.outward.weight)
            self.outward.bias.copy_(scores)

    def standardise(self, features: Tensor) -> None:
        """Take the mean and the spread of features (N, F) for those of all text."""
        self.centre.copy_(features[:, :-1].mean(0))
        self.spread.copy_(features[:, :-1].std(0).clamp(min=1e-3))

    def scores(self, features: Tensor) -> Tensor:
        measured, last = features[..., :-1], features[..., -1]
        hidden = self.inward((measured - self.centre) / self.spread) + self.table(last.long())
        return cast(Tensor, self.outward(torch.tanh(hidden)))

    def start(self, log_probs: Sequence[Tensor]) -> View:
        rows = log_probs[0].shape[0]
        means = log_probs[0].new_full((rows, len(log_probs), len(DECAYS)), self.guess)
        return self._view(log_probs, means[:, None], means, means.new_zeros(rows, 1))

    def extend(self, tokens: Tensor, log_probs: Sequence[Tensor], state: State) -> View:
        predicted, before = cast(Memory, state)
        judged = torch.stack(  # (B, K, P): the first token was predicted by what is remembered, the others just now
            [
                torch.cat([_at(first, tokens[:, :1]), _at(later[:, :-1], tokens[:, 1:])], dim=1)
                for first, later in zip((one[:, None] for one in predicted), log_probs, strict=True)
            ],
            dim=-1,
        )
        means = running_means(judged.clamp(min=-FAR), before, self.decays)
        return self._view(log_probs, means, means[:, -1], 1 + tokens.clamp(max=TABLED))

    def _view(self, log_probs: Sequence[Tensor], means: Tensor, after: Tensor, rows: Tensor) -> View:
        """Features from predictions (B, K, V) each, running means (B, K, P, R), and rows of the table (B, K).

        The row is a feature like the others, the last of them, so that whoever keeps features keeps one tensor.
        """
        average = torch.stack(tuple(log_probs)).mean(0)
        measures = []
        for one in log_probs:
            chances = one.exp()
            entropy = -(chances * one).sum(-1)
            apart = -entropy - (chances * average).sum(-1)
            measures += [entropy, one.amax(-1), apart.clamp(max=FAR)]
        features = torch.cat([torch.stack(measures, dim=-1), means.flatten(2), rows[..., None].to(means)], dim=-1)
        return View(features, Memory(tuple(one[:, -1].clone() for one in log_probs), after))


GATES: Mapping[str, type[FixedGate | LearnedGate | ContextGate]] = {
    "fixed": FixedGate,
    "learned": LearnedGate,
    "context": ContextGate,
}


def _at(log_probs: Tensor, tokens: Tensor) -> Tensor:
    """(B, K, V) and (B, K) to (B, K)."""
    return log_probs.gather(-1, tokens[..., None])[..., 0]


def running_means(values: Tensor, before: Tensor, decays: Tensor) -> Tensor:
    """m_t = λ m_{t−1} + (1 − λ) x_t for x (B, K, P) from m_0 (B, P, R): (B, K, P, R).

    Over a block this is a product with the lower-triangular matrix (1 − λ) λ^{t−s}, so only blocks are a loop.
    """
    found = []
    for block in torch.split(values, BLOCK, dim=1):
        steps = torch.arange(block.shape[1], device=values.device)
        ages = (steps[:, None] - steps).clamp(min=0)
        kernel = ((1 - decays[:, None, None]) * decays[:, None, None] ** ages).tril()  # (R, K, K)
        fading = decays ** (steps[:, None] + 1)  # (K, R)
        means = torch.einsum("rts,bsp->btpr", kernel, block) + before[:, None] * fading[:, None]
        before = means[:, -1]
        found.append(means)
    return torch.cat(found, dim=1)
