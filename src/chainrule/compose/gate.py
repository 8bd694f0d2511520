"""Gates: the weight of each part of a mixture or an ensemble at each prediction.

A gate computes a score for every part and prediction. The mixture takes the softmax of the scores as its weights, the
ensemble takes them as exponents. The inputs of a gate are the current and past predictions of the parts and the tokens
read so far, so it works for parts of any family.

Shape letters: B rows, K tokens in a chunk, V vocabulary, P parts, R decays, F features.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from chainrule.kernels.instructions import TANH, Vector
from chainrule.kernels.program import ProgramBuilder
from chainrule.kernels.step import EXACT, LIKE, is_enabled
from chainrule.types import State

DECAYS = (0.0, 0.9, 0.99)  # of the running means: over the last token, about the last 10, and the last 100
MEASURES = 3 + len(DECAYS)  # features per part
HIDDEN = 32
EMBEDDED = 256  # tokens with their own embedding, others share one; most tokenizers order tokens by frequency
MAX_SURPRISAL = 20.0  # nats, bound on features of tokens that are impossible under a part
BLOCK = 256  # tokens for which running means are computed by one matrix product


class GateFeatures(NamedTuple):
    """The features of a gate at each prediction, and its state after them."""

    features: Tensor  # (B, K, F)
    state: State


class Gate(nn.Module, ABC):
    """Computes scores of P parts."""

    @abstractmethod
    def start(self, log_probs: Sequence[Tensor]) -> GateFeatures:
        """Features of the first predictions of the parts, (B, 1, V) each."""

    @abstractmethod
    def extend(self, tokens: Tensor, log_probs: Sequence[Tensor], state: State) -> GateFeatures:
        """Features after each of the tokens (B, K), from the predictions of the parts there, (B, K, V) each."""

    @abstractmethod
    def scores(self, features: Tensor) -> Tensor:
        """Scores (..., P) from features (..., F)."""

    @abstractmethod
    def describe(self, program: ProgramBuilder, log_probs: Sequence[Vector], slot: int) -> Vector:
        """`extend` and `scores` in a compiled step; the state begins at the state tensor `slot`."""

    @abstractmethod
    def set_constant(self, scores: Tensor) -> None:
        """Set the gate to these scores (P,) for all predictions; fitting may change it."""


class ConstantGate(Gate):
    """A gate without features."""

    constant: Tensor  # (P,)

    def start(self, log_probs: Sequence[Tensor]) -> GateFeatures:
        return GateFeatures(log_probs[0].new_empty(*log_probs[0].shape[:2], 0), ())

    def extend(self, tokens: Tensor, log_probs: Sequence[Tensor], state: State) -> GateFeatures:
        return GateFeatures(log_probs[0].new_empty(*tokens.shape, 0), ())

    def scores(self, features: Tensor) -> Tensor:
        return self.constant.expand(*features.shape[:-1], -1)

    def describe(self, program: ProgramBuilder, log_probs: Sequence[Vector], slot: int) -> Vector:
        return program.constant(self.constant)

    def set_constant(self, scores: Tensor) -> None:
        with torch.no_grad():
            self.constant.copy_(scores)


class FixedGate(ConstantGate):
    """Constant weights, as given."""

    def __init__(self, scores: Tensor, vocabulary: int) -> None:
        super().__init__()
        self.register_buffer("constant", scores.clone(), persistent=False)  # stored in the settings


class LearnedGate(ConstantGate):
    """Constant weights, fitted to held-out text."""

    def __init__(self, scores: Tensor, vocabulary: int) -> None:
        super().__init__()
        self.constant = nn.Parameter(scores.clone())


class ContextGateState(NamedTuple):
    predicted: tuple[Tensor, ...]  # (B, V) per part: predictions of the next token
    means: Tensor  # (B, P, R) running means of the log-probabilities of past tokens under each part


class ContextGate(Gate):
    """Weights that depend on the context: a small network over the confidence of each part, its divergence from the
    others, its recent performance, and the last token.

        f_t = for each part: entropy H(P), largest log-probability, divergence Σ P (log P − mean of the parts' log P),
              and running means of its log-probabilities of past tokens
        scores_t = U tanh(W (f_t − μ) / σ + b + T[x_t]) + c

    A running mean with decay λ is m_t = λ m_{t−1} + (1 − λ) log P(x_t | x_<t), from the uniform m_0 = −log V.
    """

    mean: Tensor
    deviation: Tensor
    decays: Tensor

    def __init__(self, scores: Tensor, vocabulary: int) -> None:
        super().__init__()
        parts = len(scores)
        size = parts * MEASURES
        self.uniform = -math.log(vocabulary)
        self.register_buffer("decays", torch.tensor(DECAYS), persistent=False)
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("deviation", torch.ones(size))
        self.input = nn.Linear(size, HIDDEN)
        self.embedding = nn.Embedding(min(vocabulary, EMBEDDED + 1) + 1, HIDDEN)  # first row: empty history
        self.output = nn.Linear(HIDDEN, parts)
        self.set_constant(scores)

    def set_constant(self, scores: Tensor) -> None:
        with torch.no_grad():
            nn.init.zeros_(self.embedding.weight)
            nn.init.zeros_(self.output.weight)
            self.output.bias.copy_(scores)

    def standardise(self, features: Tensor) -> None:
        """Estimate the mean and standard deviation of the features from (N, F)."""
        self.mean.copy_(features[:, :-1].mean(0))
        self.deviation.copy_(features[:, :-1].std(0).clamp(min=1e-3))

    def scores(self, features: Tensor) -> Tensor:
        measures, last = features[..., :-1], features[..., -1]
        hidden = self.input((measures - self.mean) / self.deviation) + self.embedding(last.long())
        return cast(Tensor, self.output(torch.tanh(hidden)))

    def describe(self, program: ProgramBuilder, log_probs: Sequence[Vector], slot: int) -> Vector:
        features = program.gate_features(
            log_probs, slot, slot + len(log_probs), self.decays, self.mean, self.deviation, MEASURES
        )
        hidden = program.embed(self.embedding.weight[1:])
        program.activate(program.apply(self.input, features, add_to=hidden), TANH)
        return program.apply(self.output, hidden)

    def start(self, log_probs: Sequence[Tensor]) -> GateFeatures:
        rows = log_probs[0].shape[0]
        means = log_probs[0].new_full((rows, len(log_probs), len(DECAYS)), self.uniform)
        return self._features(log_probs, means[:, None], means, means.new_zeros(rows, 1))

    def extend(self, tokens: Tensor, log_probs: Sequence[Tensor], state: State) -> GateFeatures:
        predicted, before = cast(ContextGateState, state)
        past = torch.stack(  # (B, K, P): the first token was predicted in the previous call
            [
                torch.cat([_at(first, tokens[:, :1]), _at(later[:, :-1], tokens[:, 1:])], dim=1)
                for first, later in zip((one[:, None] for one in predicted), log_probs, strict=True)
            ],
            dim=-1,
        )
        means = running_means(past.clamp(min=-MAX_SURPRISAL), before, self.decays)
        return self._features(log_probs, means, means[:, -1], 1 + tokens.clamp(max=EMBEDDED))

    def _features(self, log_probs: Sequence[Tensor], means: Tensor, after: Tensor, rows: Tensor) -> GateFeatures:
        """Features from predictions (B, K, V) each, running means (B, K, P, R), and embedding rows (B, K).

        The embedding row is the last feature, so that all features are in one tensor.
        """
        measures = measures_of(log_probs)
        features = torch.cat([measures.flatten(2), means.flatten(2), rows[..., None].to(means)], dim=-1)
        return GateFeatures(features, ContextGateState(tuple(one[:, -1].clone() for one in log_probs), after))


GATES: Mapping[str, type[FixedGate | LearnedGate | ContextGate]] = {
    "fixed": FixedGate,
    "learned": LearnedGate,
    "context": ContextGate,
}


def measures_of(log_probs: Sequence[Tensor]) -> Tensor:
    """Entropy, maximum and divergence from the average (B, K, P, 3) of predictions (B, K, V) each."""
    first = log_probs[0]
    if is_enabled() and first.device.type == "cpu" and first.dtype in EXACT and not torch.is_grad_enabled():
        found = _compiled_measures(log_probs)
    else:
        average = torch.stack(tuple(log_probs)).mean(0)
        columns = []
        for one in log_probs:
            probabilities = one.exp()
            entropy = -(probabilities * one).sum(-1)
            columns.append(torch.stack([entropy, one.amax(-1), -entropy - (probabilities * average).sum(-1)], dim=-1))
        found = torch.stack(columns, dim=-2)
    return torch.cat([found[..., :2], found[..., 2:].clamp(max=MAX_SURPRISAL)], dim=-1)


def _compiled_measures(log_probs: Sequence[Tensor]) -> Tensor:
    """The same in one pass over memory, without the divergence's bound."""
    from chainrule.kernels.caching import load_or_compile
    from chainrule.kernels.distributions import measures

    rows = [one.contiguous() for one in log_probs]
    shape, dtype = rows[0].shape, rows[0].dtype
    found = np.empty((shape[:-1].numel(), len(rows), 3))
    addresses = np.array([one.data_ptr() for one in rows])
    arguments = (addresses, len(found), shape[-1], found, LIKE[dtype])
    if dtype not in _ready:
        load_or_compile(measures, arguments)
        _ready.add(dtype)
    measures(*arguments)
    return torch.from_numpy(found).to(dtype).view(*shape[:-1], len(rows), 3)


_ready: set[torch.dtype] = set()  # types for which the compiled function is loaded


def _at(log_probs: Tensor, tokens: Tensor) -> Tensor:
    """Log-probabilities (B, K) of tokens (B, K) from (B, K, V)."""
    return log_probs.gather(-1, tokens[..., None])[..., 0]


def running_means(values: Tensor, before: Tensor, decays: Tensor) -> Tensor:
    """m_t = λ m_{t−1} + (1 − λ) x_t for x (B, K, P) from m_0 (B, P, R): (B, K, P, R).

    Within a block this is a product with the lower-triangular matrix (1 − λ) λ^{t−s}; the loop is over blocks.
    """
    found = []
    for block in torch.split(values, BLOCK, dim=1):
        steps = torch.arange(block.shape[1], device=values.device)
        ages = (steps[:, None] - steps).clamp(min=0)
        kernel = ((1 - decays[:, None, None]) * decays[:, None, None] ** ages).tril()  # (R, K, K)
        decayed = decays ** (steps[:, None] + 1)  # (K, R)
        means = torch.einsum("rts,bsp->btpr", kernel, block) + before[:, None] * decayed[:, None]
        before = means[:, -1]
        found.append(means)
    return torch.cat(found, dim=1)
