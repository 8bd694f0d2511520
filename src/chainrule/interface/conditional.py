"""Models of a target given a source: what they have in common, and those that write all of it at once.

Conditional         beside a model: every batch has a source, and so has every `start`
HasAttention        beside one of them: can tell which source tokens it looked at
ParallelModel       a distribution over whole targets, written in a few passes over all positions at once
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, Self

from pydantic import Field, model_validator
from torch import Tensor

from chainrule.config import ModelConfig
from chainrule.errors import DataError, DecodingError
from chainrule.interface.base import DensityModel, Model, OwnObjective
from chainrule.types import Batch, Sequences


class TranslationConfig(ModelConfig):
    """What the settings of every model of a target given a source have in common; `vocabulary` is the target's."""

    source_vocabulary: int = Field(ge=1, description="number of source token ids; taken from the source tokenizer")


class EmbeddingConfig(TranslationConfig):
    """... and of those that read tokens of both sides through a `nn.tokens.PairTable`."""

    tied: bool = Field(True, description="the readout uses the target embeddings as its weights")
    shared_embeddings: bool = Field(False, description="source and target have one vocabulary and one table for it")

    @model_validator(mode="after")
    def _one_vocabulary(self) -> Self:
        if self.shared_embeddings and self.source_vocabulary != self.vocabulary:
            raise ValueError(
                f"shared_embeddings needs one vocabulary for both sides, and the source has {self.source_vocabulary} "
                f"tokens, the target {self.vocabulary}; use a joint tokenizer, or shared_embeddings=false"
            )
        return self

    @property
    def own_source_rows(self) -> int | None:
        """Rows of a table for the source alone; None where it has none."""
        return None if self.shared_embeddings else self.source_vocabulary


class Conditional(Model):
    """A model of a target given a source: every batch has one, and so has every `start`.

    What was read from the source lives in the state, padded and with its lengths, so that rows can be selected and
    merged like any others and no decoder ever sees the source again. Values past a source's length are never read.
    """

    config: TranslationConfig

    @property
    def source_vocabulary(self) -> int:
        """Source tokens have ids in [0, source_vocabulary)."""
        return self.config.source_vocabulary

    def require_source(self, source: Sequences | None) -> Sequences:
        """The source, which must be there, not be empty, and fit."""
        if source is None:
            raise DataError("this model translates, and no source was given; pass source=Sequences(ids, lengths)")
        if int(source.lengths.min()) < 1:
            raise DataError("a source has no tokens; end every source with EOS, so that even an empty line has one")
        if self.source_context is not None and source.ids.shape[1] > self.source_context:
            raise DataError(
                f"a source of {source.ids.shape[1]} tokens does not fit into the context of {self.source_context}; "
                "cut it, or train with a larger context"
            )
        return source


class DecodingBudget(NamedTuple):
    """How much a parallel model may do for a target."""

    passes: int = 1  # over all positions
    lengths: int = 1  # that are tried
    beam: int = 1  # targets that are followed side by side, where a model can weigh them


class ParallelOutput(NamedTuple):
    """A target that was written whole."""

    ids: list[int]  # with EOS at its end, where it was written
    log_prob: float  # nats, of the choices that were made: at most log P(ids | source), where other choices give it too
    score: float  # what it was ranked by among all that were tried


class ParallelModel(Conditional, OwnObjective, DensityModel):
    """A model of a target given a source that writes all positions at once, in a bounded number of passes.

    Its P(target | source) is a distribution over whole targets, EOS among their tokens like any other. It is no product
    over predictions of the next token.
    """

    task = "translation"
    config: TranslationConfig

    @property
    @abstractmethod
    def default_budget(self) -> DecodingBudget:
        """What is done where nobody says how much; a single pass where the model has no second one to make."""

    @property
    def fixed_schedule(self) -> str | None:
        """Name of the only decoding schedule of a model that has no choice of passes or beam; None otherwise."""
        return None

    @abstractmethod
    def generate(
        self, source: Sequences, budget: DecodingBudget, *, eos: int = 0, suppress: Sequence[int] = ()
    ) -> list[ParallelOutput]:
        """The best target of each source, without the ids to suppress."""


def require_one_pass(budget: DecodingBudget) -> None:
    """For a model that has no second pass to make and no lengths to choose from."""
    if (budget.passes, budget.lengths) != (1, 1):
        raise DecodingError(
            f"this model writes in one pass and chooses no length, and {budget.passes} passes with {budget.lengths} "
            "lengths were asked for; leave them out, or train nonautoregressive with model.output=masked"
        )


class HasAttention(ABC):
    """A model that looks at its source token by token, and can tell where."""

    @abstractmethod
    def attention_maps(self, batch: Batch) -> Tensor:
        """(B, T, S): how much the prediction of target.ids[:, t] looked at source.ids[:, s].

        The mean over layers and heads where there are several. Rows sum to 1, and weights past a source's length
        are 0.
        """
