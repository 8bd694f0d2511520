"""T5: a text with gaps is the source, what belongs in the gaps the target.

    source   Thank you <0> me to your party <1> week EOS
    target   <0> for inviting <1> last EOS
    P(spans | text with gaps) = Π_t P(y_t | y_<t, s)

Raffel et al., 2020, "Exploring the limits of transfer learning with a unified text-to-text Transformer": 15 % of the
tokens are cut out, in spans of three on average, and each span leaves a sentinel <i> behind that says where it was (see
`data.spans`). Encoder and decoder are those of `transformer`, with one table of embeddings for both sides; so this is
an exact, normalised model of the spans given the rest, one token after the other, and fills gaps of any length.

The sentinels are the last ids of the vocabulary: of V ids with K sentinels, <i> is V − K + i. The encoder's vectors of
a text without gaps are its embeddings.
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

    encoder_layers: int = Field(4, ge=1, description="blocks that read the text with gaps")
    decoder_layers: int = Field(2, ge=1, description="blocks that write what belongs in the gaps")
    context: int = Field(128, ge=2, description="the longest source, and the longest target, that the model can read")
    dropout: float = Field(0.0, ge=0, lt=1, description="on embeddings, attention and residual branches")
    shared_embeddings: bool = Field(True, description="source and target have one table: they are parts of one text")
    sentinels: int = Field(SENTINELS, ge=1, description="gaps that a text may have; their ids are the last ones")

    share: float = Field(0.15, gt=0, lt=1, description="of the tokens of a text, which are cut out in training")
    span: float = Field(3.0, ge=1, description="tokens that are cut out together, on average")

    @model_validator(mode="after")
    def _some_tokens(self) -> Self:
        if self.sentinels >= self.vocabulary:
            raise ValueError(
                f"{self.sentinels} sentinels leave nothing of a vocabulary of {self.vocabulary}; lower sentinels"
            )
        return self


class T5(Transformer, Embedder, Infills):
    """Encoder–decoder that learns to write the spans that were cut out of a text; fills gaps of any length."""

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
