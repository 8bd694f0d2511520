"""Runs of embedders: which vectors do the words of a text have?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from chainrule.config import RunConfig
from chainrule.data.batching import by_length
from chainrule.errors import ConfigError
from chainrule.features.extraction import TextFeatures
from chainrule.interface.base import Model
from chainrule.interface.capabilities import Embedder, Layered
from chainrule.runs.base import Run
from chainrule.tokenizers import Tokenizer
from chainrule.training.checkpoint import RunFolder
from chainrule.training.loop import Outcome
from chainrule.types import Sequences

TOKENS_AT_ONCE = 4096
HELD = 512  # texts that are held at once, to read those of similar length together

Matrix = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class EmbeddingRun(Run):
    """A model that gives every token of a text a vector, with its vocabulary."""

    does = "embeds texts"
    use = "chainrule embed {run} --out vectors.npz < my.txt"

    tokenizer: Tokenizer

    @classmethod
    def of(cls, folder: RunFolder, config: RunConfig, model: Model, outcome: Outcome | None) -> Self:
        return cls(folder=folder, config=config, model=model, outcome=outcome, tokenizer=folder.tokenizer())

    def embed(self, texts: Iterable[str], *, layer: int | None = None) -> Matrix:
        """(N, D): the mean of the vectors of each text; zeros for a text without tokens.

        A text that is longer than the model can read is read in pieces. `layer` takes one layer of a model that has
        several, 0 being the words' own embeddings; by default the model says which, or how they are mixed.
        """
        means = [
            found.vectors.mean(0) if len(found.vectors) else np.zeros(found.vectors.shape[1], np.float32)
            for found in self.features(texts, layer=layer)
        ]
        return np.stack(means) if means else np.zeros((0, self._embedder.embedding_width), np.float32)

    def features(self, texts: Iterable[str], *, layer: int | None = None) -> Iterator[TextFeatures]:
        """The tokens of each text and their vectors, in the order of the texts; any number of texts may come."""
        waiting = iter(texts)
        while held := list(islice(waiting, HELD)):
            ids = [self.tokenizer.encode(text).tolist() for text in held]
            for row, vectors in zip(ids, self._vectors(ids, layer), strict=True):
                yield TextFeatures(self.tokenizer.pieces(row), vectors)

    @torch.inference_mode()
    def _vectors(self, texts: Sequence[Sequence[int]], layer: int | None) -> list[Matrix]:
        """(T, D) of each text."""
        limit = self.model.context or max(map(len, texts), default=1) or 1
        places = [(number, at) for number, text in enumerate(texts) for at in range(0, len(text), limit)]
        pieces = [texts[number][at : at + limit] for number, at in places]
        found = [np.zeros((len(text), self._embedder.embedding_width), np.float32) for text in texts]
        for group in by_length([len(piece) for piece in pieces], len(pieces), TOKENS_AT_ONCE):
            vectors = self._read(Sequences.pack([pieces[place] for place in group]), layer).float().cpu().numpy()
            for place, row in zip(group, vectors, strict=True):
                number, at = places[place]
                found[number][at : at + limit] = row[: len(pieces[place])]
        return found

    def _read(self, texts: Sequences, layer: int | None) -> Tensor:
        """(B, T, D) by the model, or by one of its layers."""
        texts = Sequences(*(part.to(self.model.device) for part in texts))
        if layer is None:
            return self._embedder.embed(texts)
        if not isinstance(self.model, Layered):
            raise ConfigError(
                f"a {self.config.family} has one vector for each token and no layers; leave out the layer"
            )
        layers = self.model.layers(texts)
        if not 0 <= layer < len(layers):
            raise ConfigError(f"layer {layer} is none of this model's; choose one from 0 to {len(layers) - 1}")
        return layers[layer]

    @property
    def _embedder(self) -> Embedder:
        assert isinstance(self.model, Embedder)
        return self.model

    def about(self) -> dict[str, Any]:
        return {"tokenizer": self.config.tokenizer, "tokenizer_note": self.tokenizer.note}
