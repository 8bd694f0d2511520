"""Classification of pairs of texts with sigmoid outputs: any number of labels for each pair, or exactly one.

    m = encoder([a; separator; b]),    r = mean of m,    q = tanh(W_q r),    k_n = tanh(W_k m_n)
    c = Σ_n softmax_n(q · k_n / √D) m_n,    h = ReLU(V c + v),    P(label l | a, b) = σ(u_l · h + b_l)

After the notes' model of questions about COVID-19 (CovidQAModel): features of a pretrained BERT with token types, an
attention whose query is tanh of the pooled output and whose keys are tanh of the sequence, fully connected layers, and
binary cross-entropy. The pooled output is the mean of the vectors, which every encoder has; that of a BERT would be a
map of [CLS] that was trained for another task.

The target is a yes or no for each label, in the order of the labels: a sequence of as many tokens, which are
independent given the pair, so its surprisal is the binary cross-entropy. Tokens after the separator have the second
token type: that of a pretrained BERT, or a learned vector. With `match`, a learned vector marks tokens that occur in
both texts, which a frozen encoder that was trained on single texts does not show.

Shape letters: B pairs, S tokens of a pair, D width of the encoder, K labels, V values of a label: no and yes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple, cast

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from chainrule.features.encoders import EncoderConfig, EncoderModel, PretrainedTextEncoder
from chainrule.interface.base import Advance
from chainrule.nn.dropout import Dropout
from chainrule.types import Sequences, State


class PairClassifierConfig(EncoderConfig):
    """Settings of the classifier; `vocabulary` is the number of values of a label: no and yes."""

    labels: tuple[str, ...] = Field(("yes",), min_length=1, description="names of the labels; taken from the data")
    multi_label: bool = Field(False, description="whether a pair may have none or several labels; taken from the data")
    separator: int = Field(0, ge=0, description="id of the separator of the two texts; taken from the tokenizer")
    match: bool = Field(True, description="mark the tokens that occur in both texts by a learned vector")
    hidden: int = Field(128, ge=1, description="width of the hidden layer before the labels")


class PairState(NamedTuple):
    scores: Tensor  # (B, K, V) logits
    positions: Tensor  # (B,) tokens read so far, including BOS


class PairClassifier(EncoderModel):
    """Labels of pairs of texts, one or several, by sigmoid outputs: attention with a pooled query over an encoder."""

    Config = PairClassifierConfig
    task = "pair_labels"
    tokenizer = "words"
    recipe: ClassVar[Mapping[str, Any]] = {
        "optimizer": "adamw",
        "learning_rate": 0.001,
        "betas": (0.9, 0.999),
        "weight_decay": 0.01,
        "batch_tokens": 4096,
        "best_by": "accuracy",
        "patience": 5,
    }
    check_exceptions: ClassVar[Mapping[str, str]] = {
        **EncoderModel.check_exceptions,
        "no_gradient_reaches_the_future": "all embedded tokens are those of the source, every one of which may be read",
    }
    config: PairClassifierConfig

    def __init__(self, config: PairClassifierConfig) -> None:
        super().__init__(config)
        width = self.encoder.width
        if isinstance(self.encoder, PretrainedTextEncoder):
            self.encoder.model.separator = config.separator  # a BERT has token types of its own
        self.token_types = nn.Parameter(torch.randn(2, width) * 0.02)
        self.matches = nn.Parameter(torch.randn(2, width) * 0.02) if config.match else None
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.inner = nn.Linear(width, config.hidden)
        self.out = nn.Linear(config.hidden, len(config.labels) * (config.vocabulary - 1))
        nn.init.normal_(self.out.weight, std=0.02)
        nn.init.zeros_(self.out.bias)
        self.dropout = Dropout(config.dropout)

    @property
    def context(self) -> int:
        """One token for each label."""
        return len(self.config.labels)

    @property
    def receptive_field(self) -> int:
        """Labels are independent given the pair."""
        return 0

    def tables(self) -> Iterator[nn.Parameter]:
        yield from self.encoder.tables()
        yield self.token_types
        if self.matches is not None:
            yield self.matches

    def init_output_bias(self, log_frequencies: Tensor) -> None:
        """The frequency of "yes" differs between labels."""

    def readout(self, hidden: Tensor) -> Tensor:
        return hidden

    def initial(self, source: Sequences | None, batch_size: int) -> PairState:
        given = self.require_source(source)
        return PairState(self._scores(given), given.lengths.new_zeros(len(given.lengths)))

    def advance(self, tokens: Tensor, state: State) -> Advance:
        scores, positions = cast(PairState, state)
        count = tokens.shape[1]
        self.require_room(int(positions.max()) + count)
        where = positions[:, None] + torch.arange(count, device=tokens.device)  # (B, count)
        found = scores.gather(1, where[..., None].expand(-1, -1, scores.shape[2]))
        return Advance(found, PairState(scores, positions + count))

    def _scores(self, source: Sequences) -> Tensor:
        """(B, K, V) logits; that of "no" is 0."""
        real = source.mask[..., None]
        m = self.dropout(self.encoder(source) + self._marks(source)).masked_fill(~real, 0.0)
        pooled = m.sum(1) / source.lengths[:, None]
        query, key = torch.tanh(self.query(pooled)), torch.tanh(self.key(m))
        scores = (key @ query[..., None]) / m.shape[-1] ** 0.5  # (B, S, 1)
        context = (scores.masked_fill(~real, -torch.inf).softmax(1) * m).sum(1)
        inner = self.dropout(F.relu(self.inner(context)))
        return F.pad(self.out(inner).view(len(m), -1, self.vocabulary - 1), (1, 0))

    def _marks(self, source: Sequences) -> Tensor:
        """(B, S, D): what is added to the vectors for the side of a token, and for its occurrence on both sides."""
        edge = (source.ids == self.config.separator) & source.mask
        second = edge.cumsum(1) - edge.long() > 0  # after the first separator
        marks = self.token_types[second.long()]
        if self.matches is None:
            return marks
        words = source.mask & ~edge
        same = (source.ids[:, :, None] == source.ids[:, None]) & words[:, None] & words[:, :, None]
        matched = (same & (second[:, :, None] != second[:, None])).any(2)
        return marks + self.matches[matched.long()]
