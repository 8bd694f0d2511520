"""Models of one label given a source: a target of one token.

There is no EOS; no token can follow the label.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar, NamedTuple, Self, cast

from pydantic import Field, model_validator
from torch import Tensor

from chainrule.interface.base import Advance, TabledReadout
from chainrule.interface.conditional import Conditional, TranslationConfig
from chainrule.types import Batch, Sequences, State


class LabelConfig(TranslationConfig):
    """Settings of models of labels; `vocabulary` is the number of labels."""

    labels: tuple[str, ...] = Field((), description="names of the labels; taken from the data")

    @model_validator(mode="after")
    def _every_label_is_named(self) -> Self:
        if self.labels and len(self.labels) != self.vocabulary:
            raise ValueError(
                f"there are {len(self.labels)} labels but vocabulary is {self.vocabulary}; leave one of them out"
            )
        return self


class LabelState(NamedTuple):
    source: Tensor  # (B, D)
    positions: Tensor  # (B,) tokens read so far, including BOS


class LabelModel(Conditional, TabledReadout):
    """P(y | s) = softmax(W read(s) + b) for one label y."""

    check_exceptions: ClassVar[Mapping[str, str]] = {
        "states_can_be_merged_and_selected": "a target is one label, so rows have no different positions to merge"
    }

    @abstractmethod
    def read(self, source: Sequences) -> Tensor:
        """(B, S) to (B, D): the vector of each source that the readout turns into logits."""

    @property
    def context(self) -> int:
        """One token, the label."""
        return 1

    def hidden(self, batch: Batch) -> Tensor:
        length = batch.target.ids.shape[1]
        self.require_room(length)
        return self.read(self.require_source(batch.source))[:, None].expand(-1, length, -1)

    def initial(self, source: Sequences | None, batch_size: int) -> LabelState:
        given = self.require_source(source)
        return LabelState(self.read(given), given.lengths.new_zeros(len(given.lengths)))

    def advance(self, tokens: Tensor, state: State) -> Advance:
        source, positions = cast(LabelState, state)
        count = tokens.shape[1]
        self.require_room(int(positions.max()) + count)
        return Advance(source[:, None].expand(-1, count, -1), LabelState(source, positions + count))


class ImageLabelConfig(LabelConfig):
    """Settings of models of the label of an image; `source_vocabulary` is the number of brightness levels."""

    shape: tuple[int, int, int] = Field(description="channels, height and width of an image; set from the data")

    @property
    def size(self) -> int:
        """Values of an image."""
        channels, height, width = self.shape
        return channels * height * width


class ImageLabelModel(LabelModel):
    """A model of the label of an image, which is a source of all its values in raster order."""

    check_exceptions: ClassVar[Mapping[str, str]] = {
        **LabelModel.check_exceptions,
        "no_gradient_reaches_the_future": "pixels are not embedded, and a label has no earlier or later ones",
    }
    config: ImageLabelConfig

    @property
    def source_context(self) -> int:
        return self.config.size
