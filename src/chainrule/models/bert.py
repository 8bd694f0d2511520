"""BERT: a bidirectional Transformer encoder with a masked-LM head, in the layout of `BertForMaskedLM`.

    x⁰ = norm(E[s] + p + e_A)          s = [CLS], the text with some tokens masked, [SEP]
    h  = norm(x + Attention(x))        bidirectional
    x' = norm(h + MLP(h))
    P(s_t | the text without s_t) = softmax(E norm(gelu(W xᴸ_t + c)) + b)

Devlin et al., 2019, "BERT: pre-training of deep bidirectional Transformers for language understanding", without
next-sentence prediction, which does not help (Liu et al., 2019).

In training, 15 % of the tokens of a text are selected as targets. Of these, 80 % are replaced by [MASK], 10 % by a
random token, and 10 % are left unchanged, so that the model must represent unmasked tokens as well. The loss is the
mean surprisal of the targets in nats per token: a text of T tokens contributes T times the mean over its targets.

This is not a factorisation of P(text): predictions condition on both sides, so their product is not normalised. BERT
therefore has no likelihood.

If the vocabulary has no [CLS], [SEP] and [MASK], they get ids past it, which can be inputs but never predictions.
Shape letters: B rows, T tokens of a text, N target tokens of all rows, V vocabulary, D width, L layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal, NamedTuple, Self

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from chainrule.config import ModelConfig
from chainrule.errors import ConfigError
from chainrule.interface.base import OwnObjective, readable
from chainrule.interface.capabilities import Cloze, Layered, Shardable
from chainrule.nn.attention import require_heads
from chainrule.nn.layers import LayerNorm, Projection
from chainrule.nn.pretrained_encoders import ACTIVATIONS, BertEncoder, EncoderShape
from chainrule.nn.tokens import lowest
from chainrule.types import Batch, Sequences

MASKED, REPLACED = 0.8, 0.1  # fractions of the target tokens; the rest are left unchanged


class BERTConfig(ModelConfig):
    """The defaults have 0.8M parameters besides the embeddings: minutes of training on one core."""

    layers: int = Field(4, ge=1, description="number of Transformer blocks")
    width: int = Field(128, ge=1, description="width of the hidden vectors")
    heads: int = Field(4, ge=1, description="attention heads per block")
    inner: int | None = Field(None, ge=1, description="width of the MLP's hidden layer; none: 4 times width")
    context: int = Field(62, ge=1, description="maximum number of tokens of a text, without [CLS] and [SEP]")
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout on embeddings, attention and residual branches")
    mask_rate: float = Field(0.15, gt=0, le=1, description="fraction of the tokens that are predicted in training")
    activation: Literal["gelu", "gelu_new", "gelu_pytorch_tanh", "relu"] = Field(
        "gelu", description="activation function, by its Hugging Face name"
    )
    epsilon: float = Field(1e-12, gt=0, description="epsilon of the layer norms")
    token_types: int = Field(2, ge=1, description="token type embeddings; only the first is used")
    head: bool = Field(True, description="whether there is a masked-LM head; false for imports without one")
    cls_id: int | None = Field(None, ge=0, description="id of [CLS]; none: the first id past the vocabulary")
    sep_id: int | None = Field(None, ge=0, description="id of [SEP]; none: the second id past the vocabulary")
    mask_id: int | None = Field(None, ge=0, description="id of [MASK]; none: the third id past the vocabulary")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        require_heads(self.width, self.heads)
        return self

    @property
    def special(self) -> SpecialIds:
        given = (self.cls_id, self.sep_id, self.mask_id)
        return SpecialIds(*(self.vocabulary + index if own is None else own for index, own in enumerate(given)))

    @property
    def shape(self) -> EncoderShape:
        return EncoderShape(
            vocabulary=max(self.vocabulary, 1 + max(self.special)),
            context=self.context + 2,
            width=self.width,
            layers=self.layers,
            heads=self.heads,
            inner=self.inner or 4 * self.width,
            activation=self.activation,
            epsilon=self.epsilon,
            token_types=self.token_types,
            dropout=self.dropout,
        )


class SpecialIds(NamedTuple):
    """The ids of [CLS], [SEP] and [MASK]."""

    cls_id: int
    sep_id: int
    mask_id: int


class MaskedTexts(NamedTuple):
    """Texts with masked tokens, and which of their tokens are to be predicted."""

    ids: Tensor  # (B, T)
    targets: Tensor  # (B, T) boolean


class BERT(OwnObjective, Layered, Cloze, Shardable):
    """BERT: bidirectional Transformer encoder trained on masked tokens; embeds texts and fills in blanks."""

    Config = BERTConfig
    task = "filling"
    check_exceptions: ClassVar[Mapping[str, str]] = {
        "check_model": "each prediction reads both sides, so their product is no distribution over sequences"
    }
    recipe: ClassVar[Mapping[str, Any]] = {"batch_tokens": 1984}
    config: BERTConfig

    def __init__(self, config: BERTConfig) -> None:
        super().__init__(config)
        self.special = config.special
        self.body = BertEncoder(config.shape)
        self.head = MaskedLMHead(config) if config.head else None
        for table in self.tables():
            nn.init.normal_(table, std=0.02)
        for name, part in self.named_modules():
            if isinstance(part, Projection):
                # Residual branches start at zero, so that the post-norms are harmless at initialisation.
                nn.init.normal_(part.weight, std=0.0 if name.endswith("_out") else part.weight.shape[1] ** -0.5)

    @property
    def context(self) -> int:
        return self.config.context

    @property
    def embedding_width(self) -> int:
        return self.config.width

    def tables(self) -> Iterator[nn.Parameter]:
        yield from (self.body.words, self.body.positions, self.body.token_types)

    @torch.no_grad()
    def init_output_bias(self, log_frequencies: Tensor) -> None:
        self._head.bias.copy_(log_frequencies)

    def embed(self, texts: Sequences) -> Tensor:
        """The vectors of the last layer."""
        return self._encode(texts, readable(texts))

    def layers(self, texts: Sequences) -> Tensor:
        inputs = self._with_special(texts, readable(texts))
        return torch.stack([vectors[:, 1:-1] for vectors in self.body.layers(*inputs)])

    def predict(self, texts: Sequences, hidden: Tensor) -> Tensor:
        masked = readable(texts).masked_fill(hidden, self.special.mask_id)
        return self._readout(self._encode(texts, masked)[hidden])

    def sharded_blocks(self) -> Iterator[nn.Module]:
        yield from self.body.blocks

    def draw_noise(self, batch: Batch) -> Tensor:
        rows, width = batch.target.ids.shape
        return torch.rand(rows, 3 * width, device=self.device)

    def loss(self, batch: Batch, noise: Tensor, *, smoothing: float = 0.0) -> Tensor:
        texts = batch.target
        inputs, targets = self.mask_tokens(texts, noise)
        logits = self._readout(self._encode(texts, inputs)[targets])
        nats = F.cross_entropy(logits, texts.ids[targets], reduction="none", label_smoothing=smoothing)
        weights = texts.lengths / targets.sum(1)  # (B,); unused for rows without targets
        return (weights[targets.nonzero()[:, 0]] * nats).sum()

    def mask_tokens(self, texts: Sequences, noise: Tensor) -> MaskedTexts:
        """Select target tokens and mask them, given uniform noise (B, 3 T)."""
        order, treatment, replacement = noise.chunk(3, dim=1)  # (B, T) each
        ids = readable(texts)
        eligible = texts.mask & ~torch.isin(ids, torch.tensor(self.special, device=ids.device))
        count = (self.config.mask_rate * eligible.sum(1)).round().clamp(min=1)
        targets = lowest(order, eligible, count)
        masked = targets & (treatment < MASKED)
        replaced = targets & ~masked & (treatment < MASKED + REPLACED)
        random_ids = (replacement * self.vocabulary).long().clamp(max=self.vocabulary - 1)
        return MaskedTexts(torch.where(replaced, random_ids, ids).masked_fill(masked, self.special.mask_id), targets)

    def _encode(self, texts: Sequences, ids: Tensor) -> Tensor:
        """The vectors (B, T, D) of texts whose tokens are replaced by `ids`."""
        vectors: Tensor = self.body(*self._with_special(texts, ids))
        return vectors[:, 1:-1]

    def _with_special(self, texts: Sequences, ids: Tensor) -> Sequences:
        """[CLS], the text, [SEP], (B, T + 2). A text that already ends with [SEP] gets no second one."""
        self.require_room(ids.shape[1])
        ids = F.pad(ids, (1, 1))
        ids[:, 0] = self.special.cls_id
        lengths = texts.lengths[:, None]  # also the index of the last token
        ends = lengths + (ids.gather(1, lengths) != self.special.sep_id)
        return Sequences(ids.scatter(1, ends, self.special.sep_id), ends[:, 0] + 1)

    def _readout(self, vectors: Tensor) -> Tensor:
        """(N, D) to (N, V)."""
        head = self._head
        return F.linear(head(vectors), self.body.words[: self.vocabulary], head.bias)

    @property
    def _head(self) -> MaskedLMHead:
        if self.head is None:
            raise ConfigError(
                "this BERT was imported without a masked-LM head and can only embed texts; "
                "import a folder that was saved from BertForMaskedLM"
            )
        return self.head


class MaskedLMHead(nn.Module):
    """norm(gelu(W x + c)), the vectors that are multiplied with the embeddings, and the output bias b."""

    def __init__(self, config: BERTConfig) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[config.activation]
        self.transform = Projection(config.width, config.width, bias=True)
        self.norm = LayerNorm(config.width, eps=config.epsilon)
        self.bias = nn.Parameter(torch.zeros(config.vocabulary))

    def forward(self, vectors: Tensor) -> Tensor:
        """(N, D) to (N, D)."""
        transformed: Tensor = self.norm(self.activation(self.transform(vectors)))
        return transformed
