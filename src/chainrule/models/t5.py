"""T5: an encoder–decoder trained by span corruption.

    source   Thank you <0> me to your party <1> week EOS
    target   <0> for inviting <1> last EOS
    P(spans | corrupted text) = Π_t P(y_t | y_<t, s)

Raffel et al., 2020, "Exploring the limits of transfer learning with a unified text-to-text Transformer": 15 % of the
tokens are removed, in spans of three on average, and each span is replaced by a sentinel <i> (see `data.spans`).
Encoder and decoder are those of `transformer`, with shared embeddings. The model is an exact, normalised
autoregressive distribution over the spans given the rest of the text, so it fills in blanks of any length.

The sentinels are the last ids of the vocabulary: of V ids with K sentinels, <i> is V − K + i. Texts are embedded by the
encoder, without sentinels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import Field, model_validator
from torch import Tensor

from chainrule.interface.capabilities import Embedder, Infills
from chainrule.models.transformer import Transformer, TransformerConfig
from chainrule.types import Sequences

SENTINELS = 32


class T5Config(TransformerConfig):
    """The defaults have 1.3M parameters besides the embeddings."""

    encoder_layers: int = Field(4, ge=1, description="encoder blocks")
    decoder_layers: int = Field(2, ge=1, description="decoder blocks")
    context: int = Field(128, ge=2, description="maximum number of source tokens, and of target tokens")
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout on embeddings, attention and residual branches")
    shared_embeddings: bool = Field(True, description="share the embeddings of encoder and decoder")
    sentinels: int = Field(SENTINELS, ge=1, description="number of sentinels: the maximum number of blanks in a text")
    corruption_rate: float = Field(0.15, gt=0, lt=1, description="fraction of the tokens removed in training")
    mean_span_length: float = Field(3.0, ge=1, description="mean length of the removed spans, in tokens")

    @model_validator(mode="after")
    def _some_tokens(self) -> Self:
        if self.sentinels >= self.vocabulary:
            raise ValueError(
                f"{self.sentinels} sentinels leave no tokens in a vocabulary of {self.vocabulary}; lower sentinels"
            )
        return self


class T5(Transformer, Embedder, Infills):
    """T5: encoder–decoder Transformer trained by span corruption; fills in blanks of any length, embeds texts."""

    Config = T5Config
    task = "filling"
    recipe: ClassVar[Mapping[str, Any]] = {}
    config: T5Config

    @property
    def sentinels(self) -> range:
        return range(self.vocabulary - self.config.sentinels, self.vocabulary)

    @property
    def embedding_width(self) -> int:
        return self.config.width

    def embed(self, texts: Sequences) -> Tensor:
        return self.encode(texts)
