"""Embeddings: a vector for each token of a text, in its context."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, TypeVar, cast, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from chainrule.config import RunConfig, Settings, TrainConfig
from chainrule.data.batching import Documents, Feed, Windows, by_length
from chainrule.data.corpus import Corpus
from chainrule.errors import ConfigError
from chainrule.evaluation.objective import objective_score
from chainrule.features.extraction import TextFeatures
from chainrule.interface.base import Model, OwnObjective
from chainrule.interface.capabilities import Embedder, Layered
from chainrule.tasks.base import ModelT_co, RunT, Task, TokenizerRun
from chainrule.tasks.text import PlainTextData, prepare_text
from chainrule.tasks.training_data import TrainingBatches
from chainrule.training.checkpoint import RunFolder
from chainrule.training.learner import WholeSequences
from chainrule.training.progress import Reporter
from chainrule.types import Batch, Sequences

TOKENS_AT_ONCE = 4096
WINDOW = 512  # texts that are buffered, so that those of similar length are read together
ROW_TOKENS = 64  # tokens of a stream in a row, for models without a context

ObjectiveT = TypeVar("ObjectiveT", bound=OwnObjective)
Matrix = npt.NDArray[np.float32]


# Runs


@dataclass(frozen=True, kw_only=True, repr=False)
class EmbeddingRun(TokenizerRun[ModelT_co]):
    """A model that gives every token of a text a vector."""

    model_type: ClassVar[type[Any]] = Embedder
    does = "embeds texts"
    use = "chainrule embed {run} --out vectors.npz < my.txt"

    def embed(self, texts: Iterable[str], *, layer: int | None = None) -> Matrix:
        """(N, D): the mean vector of each text; zeros for a text without tokens.

        A text that is longer than the model's context is read in pieces. `layer` selects one layer of a model with
        several, 0 being the token embeddings; by default the model decides which, or how they are mixed.
        """
        means = [
            found.vectors.mean(0) if len(found.vectors) else np.zeros(found.vectors.shape[1], np.float32)
            for found in self.features(texts, layer=layer)
        ]
        return np.stack(means) if means else np.zeros((0, self._embedder.embedding_width), np.float32)

    def features(self, texts: Iterable[str], *, layer: int | None = None) -> Iterator[TextFeatures]:
        """The tokens of each text and their vectors, in the order of the texts, of which there may be any number."""
        waiting = iter(texts)
        while window := list(islice(waiting, WINDOW)):
            ids = [self.tokenizer.encode(text).tolist() for text in window]
            for row, vectors in zip(ids, self._vectors(ids, layer), strict=True):
                yield TextFeatures(self.tokenizer.pieces(row), vectors)

    @torch.inference_mode()
    def _vectors(self, texts: Sequence[Sequence[int]], layer: int | None) -> list[Matrix]:
        """(T, D) of each text."""
        limit = self.model.context or max(map(len, texts), default=1) or 1
        origins = [(number, at) for number, text in enumerate(texts) for at in range(0, len(text), limit)]
        pieces = [texts[number][at : at + limit] for number, at in origins]
        found = [np.zeros((len(text), self._embedder.embedding_width), np.float32) for text in texts]
        for group in by_length([len(piece) for piece in pieces], len(pieces), TOKENS_AT_ONCE):
            vectors = self._read(Sequences.pack([pieces[index] for index in group]), layer).float().cpu().numpy()
            for index, row in zip(group, vectors, strict=True):
                number, at = origins[index]
                found[number][at : at + limit] = row[: len(pieces[index])]
        return found

    def _read(self, texts: Sequences, layer: int | None) -> Tensor:
        """(B, T, D) of the model, or of one of its layers."""
        texts = Sequences(*(part.to(self.model.device) for part in texts))
        if layer is None:
            return self._embedder.embed(texts)
        if not isinstance(self.model, Layered):
            raise ConfigError(f"{self.config.family} has one vector for each token and no layers; remove --layer")
        layers = self.model.layers(texts)
        if not 0 <= layer < len(layers):
            raise ConfigError(f"this model has no layer {layer}; choose one from 0 to {len(layers) - 1}")
        return layers[layer]

    @property
    def _embedder(self) -> Embedder:
        return cast(Embedder, self.model)


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class ContextualRun(EmbeddingRun[Model]):
    """An embedder whose vectors depend on the context of a token."""


# Data


def row_length(model: Model, settings: TrainConfig) -> int:
    """The largest number of tokens in a row."""
    length = settings.segment or model.context or ROW_TOKENS
    if model.context is not None and length > model.context:
        raise ConfigError(
            f"train.segment {length} is longer than model.context {model.context}; lower the one or raise the other"
        )
    return length


def text_feed(corpus: Corpus, length: int, settings: TrainConfig, seed: int) -> Feed[Batch]:
    """Documents, or windows of a stream; every row starts without a state."""
    if corpus.unit == "documents":
        return Documents(corpus, settings.batch_tokens, length, seed)
    return Windows(corpus, max(1, settings.batch_tokens // length), length, seed)


class EncoderData(PlainTextData[ObjectiveT, RunT]):
    """Texts for a model that reads them as a whole and has its own objective."""

    model_type: ClassVar[type[Any]] = OwnObjective

    @property
    def bytes_per_token(self) -> None:
        return None

    def batches(self, model: ObjectiveT, config: RunConfig, reporter: Reporter) -> TrainingBatches:
        length = row_length(model, config.train)
        return TrainingBatches(text_feed(self.corpus, length, config.train, config.seed), WholeSequences)

    def validate(self, model: ObjectiveT, settings: TrainConfig) -> float:
        length, tokens = row_length(model, settings), settings.validate_tokens
        return objective_score(model, self.monitored.corpus, length=length, tokens=tokens).nats_per_token

    def score_split(self, run: RunT, split: str, progress: Callable[[float], None]) -> Settings:
        length = row_length(run.model, run.config.train)
        return objective_score(self.model_of(run), self.held_out[split].corpus, length=length, progress=progress)


@final
class ContextualData(EncoderData[OwnObjective, ContextualRun]):
    """Texts for contextual embeddings."""

    run_type = ContextualRun


class EmbeddingsTask(Task):
    """Contextual vectors of tokens."""

    run = ContextualRun
    missing_data = "no training data was given; name a file, a folder, builtin:prose or hub:NAME with --data"

    @classmethod
    def open(cls, config: RunConfig, reporter: Reporter, stored: RunFolder | None) -> ContextualData:
        return ContextualData(prepare_text(config, reporter, stored), config)
