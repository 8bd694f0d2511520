"""Text encoders for classification and reading comprehension. Every such model works with every encoder.

words            context-independent token embeddings, trained from scratch
attentive_conv   the layers of that family, trained from scratch
pretrained       a BERT or GPT-2 in a local folder, frozen or fine-tuned
run              an `Embedder` from a chainrule run, frozen or fine-tuned
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, Literal, Self, TypeAlias, cast, final

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from chainrule.errors import ConfigError
from chainrule.families import build
from chainrule.features import Pretrained
from chainrule.features.stored import TokenRow
from chainrule.interface.base import Model, NeuralModel, Trainable, readable
from chainrule.interface.capabilities import BidirectionalEmbedder, Embedder, FitsStatistics, Layered, TokenPairs
from chainrule.interface.conditional import Conditional, TranslationConfig
from chainrule.nn.layers import ScalarMix, rms_norm
from chainrule.nn.tokens import TokenReadout
from chainrule.types import Progress, Sequences

EncoderName: TypeAlias = Literal["words", "attentive_conv", "pretrained", "run"]


class EncoderConfig(TranslationConfig):
    """Settings of models with a text encoder."""

    encoder: EncoderName | None = Field(
        None, description="the text encoder; none: pretrained with `features`, run with `encoder_run`, else words"
    )
    embedding: int = Field(128, ge=1, description="width of the token embeddings of words and attentive_conv")
    encoder_layers: int = Field(2, ge=1, description="blocks of attentive_conv")
    encoder_heads: int = Field(2, ge=1, description="attention heads of attentive_conv")
    encoder_context: int = Field(512, ge=2, description="attentive_conv: maximum number of tokens of a text")
    encoder_mask: Literal["causal", "none"] = Field(
        "causal", description="attentive_conv: a token is encoded with those before it, or, none, with the whole text"
    )
    features: str | None = Field(None, description="pretrained: the folder of a BERT or GPT-2")
    features_fingerprint: str | None = Field(None, description="fingerprint of the pretrained model; set by training")
    encoder_run: str | None = Field(None, description="run: the folder of a trained embedder, such as elmo")
    embedder: dict[str, Any] | None = Field(None, description="run: the settings of that model; set by training")
    fine_tune: bool = Field(False, description="pretrained and run: train the encoder, too")
    fine_tune_layers: int | None = Field(
        None, ge=1, description="pretrained, with fine_tune: train the last blocks only, this many; none: all weights"
    )
    word_dropout: float = Field(0.1, ge=0, lt=1, description="fraction of tokens dropped in a training step")
    dropout: float = Field(0.3, ge=0, lt=1, description="on the vectors of the text and between the layers after it")

    @property
    def encoder_name(self) -> EncoderName:
        """The name of the encoder, explicit or implied by `features` or `encoder_run`."""
        if self.encoder is not None:
            return self.encoder
        return "pretrained" if self.features is not None else "run" if self.encoder_run is not None else "words"

    @model_validator(mode="after")
    def _one_encoder(self) -> Self:
        for kind, setting in (("pretrained", "features"), ("run", "encoder_run")):
            if (self.encoder_name == kind) != (getattr(self, setting) is not None):
                raise ValueError(f"encoder={kind} and {setting}=PATH require each other; set both or neither")
        return self


class TextEncoder(nn.Module, ABC):
    """From token ids to a vector per token."""

    @property
    @abstractmethod
    def width(self) -> int:
        """Width D of the vectors."""

    @property
    def context(self) -> int | None:
        """Maximum number of tokens of a text; None: unlimited."""
        return None

    @abstractmethod
    def forward(self, texts: Sequences) -> Tensor:
        """(B, S, D); undefined at padding."""

    def tables(self) -> Iterator[nn.Parameter]:
        """The parameters with a vector per token."""
        return iter(())

    def precompute(self, rows: Iterable[TokenRow], progress: Progress | None) -> None:
        """Precompute the vectors of `rows`, if they do not change in training."""


class EmbeddingEncoder(TextEncoder):
    """m_n = √D E[s_n] / ‖E[s_n]‖: normalised token embeddings, as in `nn.tokens`."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(config.source_vocabulary, config.embedding) * 0.02)
        self.word_dropout = config.word_dropout

    @property
    def width(self) -> int:
        return self.table.shape[1]

    def forward(self, texts: Sequences) -> Tensor:
        vectors = rms_norm(F.embedding(readable(texts), self.table))
        if not self.training or not self.word_dropout:
            return vectors
        return vectors * (torch.rand(texts.ids.shape, device=vectors.device) >= self.word_dropout)[..., None]

    def tables(self) -> Iterator[nn.Parameter]:
        yield self.table


class AttentiveConvEncoder(TextEncoder):
    """m_n = the hidden vector of `attentive_conv` after s_1 … s_n, or, without a mask, of the whole text."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        model = build(
            "attentive_conv",
            {
                "vocabulary": config.source_vocabulary,
                "width": config.embedding,
                "layers": config.encoder_layers,
                "heads": config.encoder_heads,
                "context": config.encoder_context,
                "dropout": config.dropout,
                "tied": True,  # the encoder has no readout, so no separate matrix is needed
            },
        )
        assert isinstance(model, TokenReadout)
        self.model = model
        self.model.tokens.bias.requires_grad_(False)
        self.causal = config.encoder_mask == "causal"

    @property
    def width(self) -> int:
        return self._embedder.embedding_width

    @property
    def context(self) -> int:
        assert self.model.context is not None
        return self.model.context - 1

    @property
    def _embedder(self) -> BidirectionalEmbedder:
        return cast(BidirectionalEmbedder, self.model)

    def forward(self, texts: Sequences) -> Tensor:
        return self._embedder.embed(texts) if self.causal else self._embedder.embed_bidirectional(texts)

    def tables(self) -> Iterator[nn.Parameter]:
        yield from self.model.tables()


class PretrainedTextEncoder(TextEncoder):
    """m = the last hidden vectors of a BERT or GPT-2 in a folder."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        assert config.features is not None
        self.model = Pretrained.open_matching(
            config.features,
            vocabulary=config.source_vocabulary,
            fine_tune=config.fine_tune,
            fingerprint=config.features_fingerprint,
        )
        if config.fine_tune and config.fine_tune_layers is not None:
            self.model.train_last(config.fine_tune_layers)

    @property
    def width(self) -> int:
        return self.model.width

    @property
    def context(self) -> int | None:
        return self.model.context

    def forward(self, texts: Sequences) -> Tensor:
        return cast(Tensor, self.model(texts))

    def precompute(self, rows: Iterable[TokenRow], progress: Progress | None) -> None:
        """Frozen vectors are the same in every epoch, so they are computed once and stored on disk."""
        if not self.model.fine_tune:
            self.model.precompute(rows, progress=progress)


class RunEncoder(TextEncoder):
    """m = the vectors of a trained `Embedder`; its weights are saved with those of the model.

    For an embedder that mixes several layers a scalar mix is learned, γ Σ_l softmax(w)_l mˡ (Peters et al., 2018).
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        if config.embedder is None:
            raise ConfigError("encoder=run needs the settings of that run; `chainrule train` sets model.embedder")
        settings = dict(config.embedder)
        model = build(settings.pop("family"), settings)
        if not isinstance(model, Embedder):
            raise ConfigError(f"{config.encoder_run!r} is not an embedder; use a run of elmo, bert or another embedder")
        self.model: Model = model
        self.fine_tune = config.fine_tune
        self.mix: ScalarMix | None = None
        if isinstance(model, Layered) and model.mixes_layers:
            with torch.no_grad():
                self.mix = ScalarMix(len(model.layers(Sequences.full(torch.zeros(1, 1, dtype=torch.int64)))))
        if not self.fine_tune:
            self.model.requires_grad_(False)

    @property
    def width(self) -> int:
        return self._embedder.embedding_width

    @property
    def context(self) -> int | None:
        return self.model.context

    def forward(self, texts: Sequences) -> Tensor:
        with torch.set_grad_enabled(self.fine_tune and torch.is_grad_enabled()):
            embedder = self._embedder
            if self.mix is None:
                return embedder.embed(texts)
            layers = cast(Layered, embedder).layers(texts)
        return cast(Tensor, self.mix(layers))

    def train(self, mode: bool = True) -> Self:
        """A frozen embedder stays in evaluation mode."""
        super().train(mode)
        if not self.fine_tune:
            self.model.eval()
        return self

    def tables(self) -> Iterator[nn.Parameter]:
        if isinstance(self.model, Trainable):
            yield from self.model.tables()

    @property
    def _embedder(self) -> Embedder:
        return cast(Embedder, self.model)


ENCODERS: dict[EncoderName, type[EmbeddingEncoder | AttentiveConvEncoder | PretrainedTextEncoder | RunEncoder]] = {
    "words": EmbeddingEncoder,
    "attentive_conv": AttentiveConvEncoder,
    "pretrained": PretrainedTextEncoder,
    "run": RunEncoder,
}


def build_encoder(config: EncoderConfig) -> TextEncoder:
    """Build the encoder of the settings."""
    return ENCODERS[config.encoder_name](config)


class EncoderModel(Conditional, FitsStatistics, NeuralModel):
    """A model whose source is read by an encoder. A frozen encoder is run once, before training."""

    config: EncoderConfig

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.encoder = build_encoder(config)
        if isinstance(self.encoder, PretrainedTextEncoder):
            fingerprint = self.encoder.model.fingerprint
            self.config = config.model_copy(update={"features_fingerprint": fingerprint})

    @property
    def source_context(self) -> int | None:
        return self.encoder.context

    @final
    def fit_statistics(self, train: TokenPairs, *, held_out: TokenPairs = (), progress: Progress | None = None) -> None:
        self.precompute((source for source, _ in chain(train, held_out)), progress)

    @final
    def precompute(self, sources: Iterable[TokenRow], progress: Progress | None = None) -> None:
        """Run a frozen encoder on these sources once and cache its outputs."""
        self.encoder.precompute((text for source in sources for text in self.encoder_inputs(source)), progress)

    def encoder_inputs(self, source: TokenRow) -> Iterable[TokenRow]:
        """The texts that the encoder reads of a source: by default the source itself."""
        yield source
