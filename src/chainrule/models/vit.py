"""Vision Transformer: an image is a sequence of patches.

    z⁰ = [c; W_p p_1 + b; …; W_p p_N + b] + E,    z^{l+1} = block(zˡ),    P(label | image) = softmax(W norm(zᴸ_0) + b)

Dosovitskiy et al., 2021, "An image is worth 16×16 words". p_n are the values of the n-th patch from −1 to 1, in raster
order, c is a learned class token, and E has a learned vector for the class token and each patch: all that the model
knows of where a patch is. Blocks are those of the encoder of `transformer`: attention of every patch to every other,
and an MLP. An image whose sides are no multiples of the patch is padded at the right and the bottom.

In training, images are moved by up to `shift` pixels in each direction, so that the model sees no image twice. A small
data set would otherwise not teach it that a pattern is the same in another place.

Shape letters: B images, C channels, H and W height and width in pixels, N patches, P values of a patch, D width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from chainrule.interface.base import Table, readable
from chainrule.models.transformer import TransformerConfig, TransformerEncoderLayer
from chainrule.nn.attention import BidirectionalAttention
from chainrule.nn.dropout import Dropout
from chainrule.nn.label_model import ImageLabelConfig, ImageLabelModel
from chainrule.nn.layers import input_projection, rms_norm
from chainrule.types import Sequences


class ViTConfig(ImageLabelConfig):
    """The defaults have 0.8M parameters: minutes of training for MNIST on two cores."""

    patch: int | None = Field(None, ge=1, description="side of a patch in pixels; none: a quarter of the shorter side")
    layers: int = Field(4, ge=1, description="number of blocks of attention and MLP")
    width: int = Field(128, ge=1, description="width of the hidden vectors")
    heads: int = Field(4, ge=1, description="attention heads per block")
    mlp_ratio: int = Field(4, ge=1, description="width of the MLP's hidden layer divided by width")
    shift: int | None = Field(
        None, ge=0, description="in training, images are moved by up to this many pixels; none: side / 14"
    )
    dropout: float = Field(0.1, ge=0, lt=1, description="dropout on patches and residual branches")

    @property
    def patch_side(self) -> int:
        return self.patch or max(1, min(self.shape[1:]) // 4)

    @property
    def largest_shift(self) -> int:
        return max(1, min(self.shape[1:]) // 14) if self.shift is None else self.shift

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return -(-self.shape[1] // self.patch_side), -(-self.shape[2] // self.patch_side)

    @property
    def patches(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def block(self) -> TransformerConfig:
        """The settings of a block of the encoder of `transformer`."""
        names = {"vocabulary", "source_vocabulary", "width", "heads", "mlp_ratio", "dropout"}
        return TransformerConfig.parse(self.model_dump(include=names))

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        _ = self.block  # validates the combination
        if self.patch_side > max(self.shape[1:]):
            raise ValueError(f"patch {self.patch} is larger than the images, {self.shape[1:]}; try 4")
        return self


class ViT(ImageLabelModel):
    """Vision Transformer, P(label | image): attention over patches, a class token, learned positions."""

    Config = ViTConfig
    task = "image_labels"
    recipe: ClassVar[Mapping[str, Any]] = {"batch_tokens": 128, "best_by": "accuracy"}
    config: ViTConfig

    def __init__(self, config: ViTConfig) -> None:
        super().__init__(config)
        width = config.width
        self.patch = input_projection(config.shape[0] * config.patch_side**2, width, bias=True)
        self.class_token = nn.Parameter(torch.randn(width) * 0.02)
        self.positions = nn.Parameter(torch.randn(1 + config.patches, width) * 0.02)
        self.blocks = nn.ModuleList(TransformerEncoderLayer(config.block) for _ in range(config.layers))
        self.dropout = Dropout(config.dropout)
        self.readout_weight = nn.Parameter(torch.zeros(config.vocabulary, width))
        self.readout_bias = nn.Parameter(torch.zeros(config.vocabulary))

    def tables(self) -> Iterator[nn.Parameter]:
        yield from (self.positions, self.readout_weight)

    def readout_table(self) -> Table:
        return Table(self.readout_weight, self.readout_bias)

    def read(self, source: Sequences) -> Tensor:
        patches = self._patches(self._moved(self._pixels(source)))
        x = self.patch(patches.flatten(0, 1)).view(*patches.shape[:2], -1)
        x = torch.cat([self.class_token.expand(len(x), 1, -1), x], 1) + self.positions
        x, attend = self.dropout(x), BidirectionalAttention(None)  # without dropout: fused
        for block in self.blocks:
            x = block(x, _unrotated, attend)
        return rms_norm(x[:, 0])

    def _pixels(self, source: Sequences) -> Tensor:
        """(B, S) to (B, C, H, W), from −1 to 1; values that are missing at the end are −1."""
        channels, height, width = self.config.shape
        ids = F.pad(readable(source), (0, self.config.size - source.ids.shape[1]))
        values = ids.to(self.positions.dtype) * (2 / max(1, self.source_vocabulary - 1)) - 1
        return values.view(-1, height, width, channels).permute(0, 3, 1, 2)

    def _moved(self, pixels: Tensor) -> Tensor:
        """In training, each image moved by its own random number of pixels; its margin is repeated."""
        largest = self.config.largest_shift
        if not self.training or not largest:
            return pixels
        count, _, height, width = pixels.shape
        padded = F.pad(pixels, (largest,) * 4, mode="replicate")
        down, right = torch.randint(2 * largest + 1, (2, count, 1), device=pixels.device)
        rows = down + torch.arange(height, device=pixels.device)  # (B, H)
        columns = right + torch.arange(width, device=pixels.device)
        images = torch.arange(count, device=pixels.device)[:, None, None]
        return padded.permute(0, 2, 3, 1)[images, rows[:, :, None], columns[:, None]].permute(0, 3, 1, 2)

    def _patches(self, pixels: Tensor) -> Tensor:
        """(B, C, H, W) to (B, N, P)."""
        side, (rows, columns) = self.config.patch_side, self.config.grid
        below, beside = rows * side - pixels.shape[2], columns * side - pixels.shape[3]
        padded = F.pad(pixels, (0, beside, 0, below), value=-1.0)
        grid = padded.reshape(len(pixels), -1, rows, side, columns, side)
        return grid.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


def _unrotated(x: Tensor) -> Tensor:
    """Positions are learned vectors, so queries and keys are not rotated."""
    return x
