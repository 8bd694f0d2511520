"""Runs of classifiers: which label does a text have?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from chainrule.data.cleaning import sentence
from chainrule.data.labelled import encode_labelled, encode_text, read_labelled
from chainrule.data.parallel import PairedCorpus
from chainrule.data.source import normalisation_of
from chainrule.errors import ConfigError
from chainrule.evaluation.labels import LabelScore, label_score
from chainrule.models.classifier import Classifier
from chainrule.runs.predicting import HELD, PredictingRun, Said, held, in_groups
from chainrule.types import Sequences

Probabilities = npt.NDArray[np.float64]


class Prediction(NamedTuple):
    """What a classifier makes of a text."""

    label: str  # the likeliest
    probability: float
    probabilities: dict[str, float]  # of all labels
    cut: bool  # whether the text was longer than the model can read, and its end was not


@dataclass(frozen=True, kw_only=True)
class LabelRun(PredictingRun):
    """A model of labels given texts."""

    does = "labels texts"

    model: Classifier

    @property
    def labels(self) -> tuple[str, ...]:
        return self.model.config.labels

    def predict(self, texts: str | Iterable[str], *, window: int = HELD) -> Iterator[Prediction | None]:
        """The label of each text, in the order of the texts; None for an empty one. Any number of texts may come."""
        normalise = normalisation_of(self.config.data)
        lines = [texts] if isinstance(texts, str) else texts
        return held((sentence(text, normalise) for text in lines), self._predict, window=window)

    def _predict(self, texts: Sequence[str]) -> list[Prediction]:
        rows = [encode_text(text, self.tokenizer) for text in texts]
        limit = self.model.source_context
        return [
            Prediction(
                self.labels[int(found.argmax())],
                float(found.max()),
                dict(zip(self.labels, found.tolist(), strict=True)),
                limit is not None and len(row) > limit,
            )
            for row, found in zip(rows, self.probabilities(rows), strict=True)
        ]

    @torch.inference_mode()
    def probabilities(
        self, rows: Sequence[Sequence[int]], *, progress: Callable[[float], None] | None = None
    ) -> Probabilities:
        """(N, V): P(label | text) of encoded texts, of which no more is read than the model can."""
        cut = [row[: self.model.source_context] for row in rows]

        def compute(group: Sequence[int]) -> list[Probabilities]:
            logits = self.model.start(Sequences.pack([cut[row] for row in group], self.model.device)).logits[:, 0]
            return list(logits.double().softmax(-1).cpu().numpy())

        found = in_groups([len(row) for row in cut], compute, progress=progress)
        return np.stack(found) if found else np.zeros((0, self.model.vocabulary))

    def said(self, lines: Iterable[str], *, search: str | None = None, beam: int = 5) -> Iterator[Said | None]:
        if search is not None:
            raise ConfigError("a label is one choice, and there is nothing to search for; leave out the search")
        for found in self.predict(lines):
            yield None if found is None else Said(f"{found.label}\t{found.probability:.4f}", found._asdict())

    def score(self, data: str, *, progress: Callable[[float], None] | None = None) -> LabelScore:
        pairs = encode_labelled(read_labelled(data, self.config.data), self.tokenizer, self.labels)
        result = self.compare(pairs, progress=progress)
        self.keep_score(result, pairs.target, data)
        return result

    def compare(self, pairs: PairedCorpus, *, progress: Callable[[float], None] | None = None) -> LabelScore:
        """The score of encoded texts with their labels."""
        right = np.asarray(pairs.target.tokens, np.int64)
        found = self.probabilities([row.tolist() for row in pairs.source.documents()], progress=progress)
        nats = -np.log(np.maximum(found[np.arange(len(right)), right], 1e-300)).mean()
        guesses = found.argmax(1).tolist()
        return label_score(right.tolist(), guesses, self.labels, texts=len(right), nats=float(nats))

    def about(self) -> dict[str, Any]:
        return super().about() | {"labels": ", ".join(self.labels)}
