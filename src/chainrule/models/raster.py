"""What models that know about rows and columns have in common."""

from __future__ import annotations

from pydantic import Field

from chainrule.config import ModelConfig


class RasterConfig(ModelConfig):
    """What the settings of models that know about rows and columns have in common; `vocabulary` is the levels."""

    shape: tuple[int, int, int] = Field(description="channels, height and width of an image; taken from the data")

    @property
    def size(self) -> int:
        """Values of an image."""
        channels, height, width = self.shape
        return channels * height * width
