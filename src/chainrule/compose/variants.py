"""Blends of the same parts, read together: with and without neural caches.

A neural cache interpolates a model's own prediction, so the parts need to read a text only once for both.

Shape letters: B rows, K tokens in a chunk, V vocabulary, N predictions, F features.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from chainrule.compose.blend import Blend, normalised
from chainrule.compose.neural_cache import NeuralCache
from chainrule.data.batching import by_length
from chainrule.data.corpus import Corpus
from chainrule.errors import ConfigError
from chainrule.interface.base import AutoregressiveModel, readable
from chainrule.types import Batch, Sequences, State

LOGITS_AT_ONCE = 1 << 22
TOKENS_AT_ONCE = 4096
DOCUMENTS_TOGETHER = 256

LogProbs = tuple[Tensor, ...]  # of each part


class GateInputs(NamedTuple):
    """Predictions as one blend sees them."""

    log_probs: LogProbs  # (N, V) of each part
    features: Tensor  # (N, F) of the gate


class BlendPredictions(NamedTuple):
    """Some tokens of a text, in any order, with the predictions of the parts."""

    where: Tensor  # (N,) index of the token in the corpus
    targets: Tensor  # (N,)
    inputs: list[GateInputs]  # of each blend


class _Outputs(NamedTuple):
    log_probs: list[LogProbs]  # of each blend: (B, K, V) per part
    features: list[Tensor]  # (B, K, F)
    parts: list[State]
    gates: list[State]


class Variants:
    """One blend, or two of the same parts: without neural caches, and with them."""

    def __init__(self, *blends: Blend) -> None:
        *plain, self.reader = blends
        for blend in plain:
            inner = [_inner(part) for part in self.reader.components]
            if [id(_inner(part)) for part in blend.components] != [id(part) for part in inner] or len(blends) > 2:
                raise ConfigError("these blends have different parts; give the same parts without and with caches")
        self.blends = list(blends)

    @property
    def parts(self) -> Sequence[AutoregressiveModel]:
        return self.reader.components

    @torch.no_grad()
    def predictions(self, corpus: Corpus, source: Corpus | None = None) -> Iterator[BlendPredictions]:
        """Every token of the corpus once: a stream in its order, documents of similar length together.

        With a source, each document is predicted from the document of the source with the same number.
        """
        at_once = max(16, min(TOKENS_AT_ONCE, LOGITS_AT_ONCE // self.reader.vocabulary))
        if corpus.offsets is None:
            return self._of_stream(corpus, at_once)
        return self._of_documents(corpus, corpus.offsets, at_once, source)

    def _of_stream(self, corpus: Corpus, at_once: int) -> Iterator[BlendPredictions]:
        """One pass with carried state; the last prediction of a chunk is for the first token of the next."""
        pending = self._begin()
        for first in range(0, len(corpus), at_once):
            with torch.no_grad():
                ids = torch.from_numpy(corpus.tokens[first : first + at_once].astype(np.int64)).to(self.reader.device)
                found = self._read(ids[None], pending)
                inputs = [
                    GateInputs(
                        tuple(_shifted(early, late) for early, late in zip(before, after, strict=True)),
                        _shifted(features_before, features),
                    )
                    for before, after, features_before, features in zip(
                        pending.log_probs, found.log_probs, pending.features, found.features, strict=True
                    )
                ]
            pending = found
            yield BlendPredictions(torch.arange(first, first + len(ids)), ids, inputs)

    def _of_documents(
        self, corpus: Corpus, offsets: np.ndarray, at_once: int, source: Corpus | None
    ) -> Iterator[BlendPredictions]:
        """Each document from BOS, in batches of documents of similar length."""
        lengths = np.diff(offsets).tolist()
        given = None if source is None else list(source.documents())
        for group in _groups(lengths, at_once):
            with torch.no_grad():
                rows = Sequences.pack(
                    [corpus.tokens[offsets[one] : offsets[one + 1]].astype(np.int64) for one in group]
                )
                limit = self.reader.source_context
                read = None if given is None else Sequences.pack([np.asarray(given[one])[:limit] for one in group])
                batch = Batch(rows, read).to(self.reader.device)
                mask = batch.target.mask
                inputs = [
                    GateInputs(tuple(one[mask] for one in log_probs), self._features(blend, batch, log_probs)[mask])
                    for blend, log_probs in zip(self.blends, self._batch(batch), strict=True)
                ]
            where = (torch.from_numpy(offsets[:-1][group])[:, None] + torch.arange(rows.ids.shape[1]))[rows.mask]
            yield BlendPredictions(where, batch.target.ids[mask], inputs)

    def _begin(self) -> _Outputs:
        steps = [part.start(batch_size=1) for part in self.parts]
        log_probs = tuple(normalised(step.logits) for step in steps)  # a cache is empty at the start
        gates = [blend.gate.start(log_probs) for blend in self.blends]
        return _Outputs(
            [log_probs] * len(self.blends),
            [gate.features for gate in gates],
            [step.state for step in steps],
            [gate.state for gate in gates],
        )

    def _read(self, tokens: Tensor, before: _Outputs) -> _Outputs:
        plain, final, states = [], [], []
        for part, state in zip(self.parts, before.parts, strict=True):
            if isinstance(part, NeuralCache) and len(self.blends) > 1:
                own, step = part.extend_both(tokens, state)
                plain.append(normalised(own))
            else:
                step = part.extend(tokens, state)
                plain.append(normalised(step.logits))
            final.append(plain[-1] if not isinstance(part, NeuralCache) else normalised(step.logits))
            states.append(step.state)
        log_probs = [tuple(final)] if len(self.blends) == 1 else [tuple(plain), tuple(final)]
        gates = [
            blend.gate.extend(tokens, one, state)
            for blend, one, state in zip(self.blends, log_probs, before.gates, strict=True)
        ]
        return _Outputs(log_probs, [gate.features for gate in gates], states, [gate.state for gate in gates])

    def _batch(self, batch: Batch) -> list[LogProbs]:
        """Log-probabilities (B, T, V) of each part for each blend."""
        plain, final = [], []
        for part in self.parts:
            if isinstance(part, NeuralCache) and len(self.blends) > 1:
                own, logits = part.logits_both(batch)
                plain.append(normalised(own))
                final.append(normalised(logits))
            else:
                plain.append(normalised(part.logits(batch)))
                final.append(plain[-1])
        return [tuple(final)] if len(self.blends) == 1 else [tuple(plain), tuple(final)]

    @staticmethod
    def _features(blend: Blend, batch: Batch, log_probs: LogProbs) -> Tensor:
        return blend.gate_features(readable(batch.target), log_probs)


def _groups(lengths: Sequence[int], at_once: int) -> Iterator[list[int]]:
    """Documents of similar length among each few hundred, so that the first of a text are read first."""
    for begin in range(0, len(lengths), DOCUMENTS_TOGETHER):
        block = lengths[begin : begin + DOCUMENTS_TOGETHER]
        for group in by_length(block, len(block), at_once):
            yield [begin + index for index in group]


def _shifted(early: Tensor, late: Tensor) -> Tensor:
    """(K, …) the last of the earlier predictions, then all of the later ones but the last; both (1, K, …)."""
    return torch.cat([early[0, -1:], late[0, :-1]])


def _inner(part: AutoregressiveModel) -> AutoregressiveModel:
    """The model in a cache or a sliding window."""
    inner = getattr(part, "model", None)
    return inner if isinstance(inner, AutoregressiveModel) else part
