"""BERT: hidden words predicted from both sides, in the layout of Hugging Face's `BertForMaskedLM`.

    x⁰ = norm(E[s] + p + e_A)          s = [CLS], the text with some tokens hidden, [SEP]
    h  = norm(x + Attention(x))        every token sees every other
    x' = norm(h + MLP(h))
    P(s_t | the text with s_t hidden) = softmax(E norm(gelu(W xᴸ_t + c)) + b)

Devlin et al., 2019, "BERT: pre-training of deep bidirectional Transformers for language understanding", without the
prediction of the next sentence, which later work found to be of no use (Liu et al., 2019).

In training 15 % of the tokens of a text are chosen. Of these 80 % are shown as [MASK], 10 % as some other token, 10 %
as they are, so that a vector must say something of its token whether it is masked or not. The loss is the mean
surprisal of the chosen ones, as nats per token: a text of T tokens, n of which are chosen, counts T times its mean.

This is no factorisation of P(text): each prediction sees the words on both sides, so their product is not normalised.
Nothing here claims to be the likelihood of a text.

Where a vocabulary has no [CLS], [SEP] and [MASK] of its own, they are ids past it that can be read and never predicted.
Shape letters: B rows, T tokens of a text, N chosen tokens of all rows, V vocabulary, D width, L layers.
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
from chainrule.interface.capabilities import Cloze, Layered
from chainrule.nn.attention import require_heads
from chainrule.nn.layers import LayerNorm, Projection
from chainrule.nn.pretrained import ACTIVATIONS, Bert, Shape
from chainrule.nn.tokens import lowest
from chainrule.types import Batch, Sequences

MASKED, REPLACED = 0.8, 0.1  # of the tokens that are chosen; the others stay as they are


class BERTConfig(ModelConfig):
    """The defaults have 0.8M parameters besides the embeddings: minutes of training on one core."""

    layers: int = Field(4, ge=1, description="blocks of attention and MLP")
    width: int = Field(128, ge=1, description="size of a hidden vector")
    heads: int = Field(4, ge=1, description="attention heads in a block")
    inner: int | None = Field(None, ge=1, description="size of an MLP's hidden layer; none: four widths")
    context: int = Field(62, ge=1, description="the longest text, in tokens; two more places are for [CLS] and [SEP]")
    dropout: float = Field(0.0, ge=0, lt=1, description="on embeddings, attention and branches; more for little text")
    share: float = Field(0.15, gt=0, le=1, description="of the tokens of a text, which are predicted in training")
    activation: Literal["gelu", "gelu_new", "gelu_pytorch_tanh", "relu"] = Field(
        "gelu", description="by the names of Hugging Face"
    )
    epsilon: float = Field(1e-12, gt=0, description="in the norms")
    texts: int = Field(2, ge=1, description="kinds of text with a vector of their own; one text is of the first kind")
    head: bool = Field(True, description="whether it can predict; false for a model that came without its head")
    start: int | None = Field(None, ge=0, description="id of [CLS]; none: one past the vocabulary")
    end: int | None = Field(None, ge=0, description="id of [SEP]; none: two past the vocabulary")
    mask: int | None = Field(None, ge=0, description="id of [MASK]; none: three past the vocabulary")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        require_heads(self.width, self.heads)
        return self

    @property
    def special(self) -> Special:
        given = (self.start, self.end, self.mask)
        return Special(*(self.vocabulary + place if own is None else own for place, own in enumerate(given)))

    @property
    def shape(self) -> Shape:
        return Shape(
            vocabulary=max(self.vocabulary, 1 + max(self.special)),
            context=self.context + 2,
            width=self.width,
            layers=self.layers,
            heads=self.heads,
            inner=self.inner or 4 * self.width,
            activation=self.activation,
            epsilon=self.epsilon,
            texts=self.texts,
            dropout=self.dropout,
        )


class Special(NamedTuple):
    """The ids that are no text."""

    start: int  # [CLS]
    end: int  # [SEP]
    mask: int  # [MASK]


class Lesson(NamedTuple):
    """A text as it is shown in training."""

    shown: Tensor  # (B, T) ids
    chosen: Tensor  # (B, T), true where the token must be told


class BERT(OwnObjective, Layered, Cloze):
    """Transformer encoder that learns to tell hidden words from those on both sides; embeds texts and fills gaps."""

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
        self.body = Bert(config.shape)
        self.head = Head(config) if config.head else None
        for table in self.tables():
            nn.init.normal_(table, std=0.02)
        for name, part in self.named_modules():
            if isinstance(part, Projection):
                # A branch that begins at zero leaves the sum as it is, so that the norms behind it do no harm at first.
                nn.init.normal_(part.weight, std=0.0 if name.endswith("_out") else part.weight.shape[0] ** -0.5)

    @property
    def context(self) -> int:
        return self.config.context

    @property
    def embedding_width(self) -> int:
        return self.config.width

    def tables(self) -> Iterator[nn.Parameter]:
        yield from (self.body.words, self.body.positions, self.body.texts)

    @torch.no_grad()
    def init_output_bias(self, log_frequencies: Tensor) -> None:
        self._head.bias.copy_(log_frequencies)

    def embed(self, texts: Sequences) -> Tensor:
        """The last layer."""
        return self._read(texts, readable(texts))

    def layers(self, texts: Sequences) -> Tensor:
        framed = self._framed(texts, readable(texts))
        return torch.stack([vectors[:, 1:-1] for vectors in self.body.layers(*framed)])

    def predict(self, texts: Sequences, hidden: Tensor) -> Tensor:
        shown = readable(texts).masked_fill(hidden, self.special.mask)
        return self._readout(self._read(texts, shown)[hidden])

    def draw_noise(self, batch: Batch) -> Tensor:
        rows, width = batch.target.ids.shape
        return torch.rand(rows, 3 * width, device=self.device)

    def loss(self, batch: Batch, chance: Tensor, *, smoothing: float = 0.0) -> Tensor:
        texts = batch.target
        shown, chosen = self.lesson(texts, chance)
        logits = self._readout(self._read(texts, shown)[chosen])
        nats = F.cross_entropy(logits, texts.ids[chosen], reduction="none", label_smoothing=smoothing)
        weights = texts.lengths / chosen.sum(1)  # (B,); where nothing was chosen, never used
        return (weights[chosen.nonzero()[:, 0]] * nats).sum()

    def lesson(self, texts: Sequences, chance: Tensor) -> Lesson:
        """What is chosen, and how it is shown, by numbers (B, 3 T) from [0, 1)."""
        order, manner, word = chance.chunk(3, dim=1)  # (B, T) each
        ids = readable(texts)
        among = texts.mask & ~torch.isin(ids, torch.tensor(self.special, device=ids.device))
        count = (self.config.share * among.sum(1)).round().clamp(min=1)
        chosen = lowest(order, among, count)
        masked = chosen & (manner < MASKED)
        replaced = chosen & ~masked & (manner < MASKED + REPLACED)
        others = (word * self.vocabulary).long().clamp(max=self.vocabulary - 1)
        return Lesson(torch.where(replaced, others, ids).masked_fill(masked, self.special.mask), chosen)

    def _read(self, texts: Sequences, shown: Tensor) -> Tensor:
        """The vectors (B, T, D) of texts that are shown so."""
        vectors: Tensor = self.body(*self._framed(texts, shown))
        return vectors[:, 1:-1]

    def _framed(self, texts: Sequences, shown: Tensor) -> Sequences:
        """[CLS], the text, [SEP], (B, T + 2). A text that ends with [SEP] already is not closed twice."""
        self.require_room(shown.shape[1])
        ids = F.pad(shown, (1, 1))
        ids[:, 0] = self.special.start
        lengths = texts.lengths[:, None]  # also the place of the last token
        ends = lengths + (ids.gather(1, lengths) != self.special.end)
        return Sequences(ids.scatter(1, ends, self.special.end), ends[:, 0] + 1)

    def _readout(self, vectors: Tensor) -> Tensor:
        """(N, D) to (N, V)."""
        head = self._head
        return F.linear(head(vectors), self.body.words[: self.vocabulary], head.bias)

    @property
    def _head(self) -> Head:
        if self.head is None:
            raise ConfigError(
                "this BERT came without the head that predicts words, so it can embed texts and nothing else; "
                "import a folder that was saved from BertForMaskedLM"
            )
        return self.head


class Head(nn.Module):
    """From the last layer to what is multiplied with the embeddings."""

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
