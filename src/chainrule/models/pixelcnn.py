"""PixelCNN: gated masked convolutions in a vertical and a horizontal stack, without blind spot.

An image is a sequence in raster order, with the channels of each pixel in turn; P(x) = Π_t P(x_t | x_<t) over
these H · W · C values. With e the embedded pixels, ∗ a convolution, and glu(a, b) = a ∘ σ(b),

    v¹ = V ∗ e + rows + columns                  hⁱ sees v of the row above:  ↓v[r] = v[r − 1]
    h¹ = K ∗ →e + J ↓v¹ + rows + columns         →e[c] = e[c − 1]
    vˡ⁺¹ = vˡ + glu(Vˡ ∗ norm(vˡ))               rows up to this one, all columns
    hˡ⁺¹ = hˡ + Wˡ glu(Kˡ ∗ norm(hˡ) + Jˡ ↓vˡ⁺¹)   this row alone, columns up to this one
    P(x_c | …) = softmax(R relu(A_c norm(hᴸ) + Σ_{c' < c} E_{c c'}[x_{c'}]) + b)      c, c': channels of one pixel

The two stacks, which together see every pixel before this one, are those of van den Oord et al., "Conditional image
generation with PixelCNN decoders", 2016, and so is the label that shifts every gate (`LabelledPixelCNN`). As in
`causal_conv`, the gate is the linear one of Dauphin et al., 2017, which is faster than tanh ∘ σ, and dilations widen
the receptive field; norms are RMS norms without weights. Rows and columns have learned position embeddings. The
channels of a pixel interact in the head only.

Generation costs O(1) convolutions per pixel: each complete row passes through the vertical stack once, and each new
pixel through the horizontal one, with cached inputs.

Shape letters: B images, T values, K of them in a chunk, H rows, W columns, C channels, D width, V levels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple, Self, cast

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from chainrule.config import ModelConfig, RasterConfig
from chainrule.interface.base import Advance, Table, TabledReadout, readable
from chainrule.interface.conditional import Conditional, TranslationConfig
from chainrule.kernels.program import ProgramBuilder
from chainrule.kernels.step import Compilable
from chainrule.nn.convolution import Convolution, GatedLayer, matrix, pixel_norm, pointwise, shift_down
from chainrule.nn.layers import rms_norm
from chainrule.types import Batch, Sequences, State, merge, select

EMBEDDED = 8
"""Width of the pixel embeddings; small, because the first convolution covers many pixels."""


class PixelCNNConfig(RasterConfig):
    """The defaults have 0.2M parameters."""

    layers: int = Field(7, ge=1, description="number of gated layers")
    width: int = Field(32, ge=1, description="width of the hidden vectors")
    kernel: int = Field(3, ge=1, description="kernel size of the convolutions; odd")
    first_kernel: int = Field(7, ge=1, description="kernel size of the first convolution; odd")
    cycle: int = Field(2, ge=1, description="dilations double from layer to layer and restart after this many layers")
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout on the output of every gate")

    @model_validator(mode="after")
    def _odd_kernels(self) -> Self:
        for name in ("kernel", "first_kernel"):
            if getattr(self, name) % 2 == 0:
                raise ValueError(f"{name} must be odd, got {getattr(self, name)}; try 3")
        return self

    @property
    def dilations(self) -> list[int]:
        return [2 ** (layer % self.cycle) for layer in range(self.layers)]


class PixelState(NamedTuple):
    """The values read so far and the cached inputs of all convolutions, the first one included."""

    values: Tensor  # (B, 1 + T) BOS and the values read so far; later entries are never read
    positions: Tensor  # (B,) values read so far, including BOS
    given: Tensor  # (B, 2D) conditioning vector for both stacks
    rows: tuple[Tensor, ...]  # (B, ·, W, D) the last complete rows that each convolution needs, normalised
    above: tuple[Tensor, ...]  # (B, W, ·) vertical-to-horizontal outputs of the last complete row
    pixels: tuple[Tensor, ...]  # (B, ·, D) the last pixels of this row that it needs, normalised
    here: Tensor  # (B, C · 2D) head output for the next pixel


class Maps(NamedTuple):
    """Feature maps of whole images: the input of each convolution, and the output of the head."""

    vertical: list[Tensor]  # (B, D, H, W)
    horizontal: list[Tensor]
    heads: Tensor  # (B, H, W, C · 2D)


class PixelCNN(TabledReadout, Compilable):
    """PixelCNN: gated masked convolutions over the previous pixels in raster order, for small images."""

    Config: ClassVar[type[ModelConfig]] = PixelCNNConfig
    task = "images"
    recipe: ClassVar[Mapping[str, Any]] = {"batch_tokens": 4096, "weight_decay": 0.0, "ema": 0.99}
    config: PixelCNNConfig

    def __init__(self, config: PixelCNNConfig) -> None:
        super().__init__(config)
        channels, height, width = config.shape
        inner, levels = config.width, config.vocabulary
        self.embedding = nn.Embedding(channels * levels, EMBEDDED)
        with torch.no_grad():  # neighbouring levels are initialised to similar vectors
            brightness = torch.linspace(-1, 1, levels)[:, None]
            ramp = brightness * torch.randn(channels, 1, EMBEDDED) + torch.randn(channels, 1, EMBEDDED)
            self.embedding.weight.copy_((ramp + 0.1 * torch.randn(channels, levels, EMBEDDED)).flatten(0, 1))
        self.first_vertical = Convolution(EMBEDDED, inner, config.first_kernel, vertical=True)
        self.first_horizontal = Convolution(EMBEDDED, inner, config.first_kernel, vertical=False)
        self.first_join = matrix(inner, inner)
        self.rows = nn.Parameter(torch.zeros(height, 2 * inner))  # one half for each stack
        self.columns = nn.Parameter(torch.zeros(width, 2 * inner))
        self.layers = nn.ModuleList(
            GatedLayer(inner, config.kernel, dilation, config.dropout) for dilation in config.dilations
        )
        self.head = matrix(inner, channels * 2 * inner)
        self.pairs = [(earlier, later) for later in range(channels) for earlier in range(later)]
        self.earlier: nn.Embedding | None = None  # embeddings of the earlier channels of the same pixel
        if self.pairs:
            self.earlier = nn.Embedding(len(self.pairs) * levels, 2 * inner)
            nn.init.zeros_(self.earlier.weight)
        self.readout_weight = nn.Parameter(torch.zeros(levels, 2 * inner))
        self.readout_bias = nn.Parameter(torch.zeros(levels))

    @property
    def context(self) -> int:
        return self.config.size

    def tables(self) -> Iterator[nn.Parameter]:
        yield from (cast(nn.Parameter, self.embedding.weight), self.rows, self.columns, self.readout_weight)
        if self.earlier is not None:
            yield cast(nn.Parameter, self.earlier.weight)

    def readout_table(self) -> Table:
        return Table(self.readout_weight, self.readout_bias)

    def given(self, source: Sequences | None, rows: int) -> Tensor:
        """(B, 2D): conditioning vector of each image; zero for the unconditional model."""
        return self.rows.new_zeros(rows, self.rows.shape[1])

    # Whole images

    def hidden(self, batch: Batch) -> Tensor:
        values = readable(batch.target)
        self.require_room(values.shape[1])
        return self._read_out(values, self._maps(values, self.given(batch.source, len(values))))

    def _maps(self, values: Tensor, given: Tensor) -> Maps:
        """Feature maps of images (B, T) that may be incomplete; rows below the last value are left out."""
        pixels = self._embed(values).permute(0, 3, 1, 2)  # (B, E, H, W)
        places = self.rows[: pixels.shape[2], None] + self.columns + given[:, None, None]  # (B, H, W, 2D)
        for_v, for_h = places.permute(0, 3, 1, 2).chunk(2, dim=1)
        v = self.first_vertical.downwards(pixels) + for_v
        before = F.pad(pixels, (1, 0))[..., :-1]
        h = self.first_horizontal.rightwards(before) + pointwise(self.first_join, shift_down(v)) + for_h
        vertical, horizontal = [pixels, v], [before, h]
        for layer in self._stack:
            v, h = layer(v, h)
            vertical.append(v)
            horizontal.append(h)
        return Maps(vertical, horizontal, self.head(rms_norm(h.permute(0, 2, 3, 1))))

    def _embed(self, values: Tensor) -> Tensor:
        """(B, T) to (B, H, W, E), summed over the channels of a pixel; missing values add nothing."""
        channels, _, width = self.config.shape
        embedded = self.embedding(values + self._channel(values.shape[1]) * self.vocabulary)  # (B, T, E)
        missing = -values.shape[1] % (channels * width)
        return F.pad(embedded, (0, 0, 0, missing)).view(len(values), -1, width, channels, EMBEDDED).sum(3)

    def _channel(self, length: int) -> Tensor:
        """(T,): the channel of each value."""
        return torch.arange(length, device=self.device) % self.config.shape[0]

    def _read_out(self, values: Tensor, maps: Maps) -> Tensor:
        """Hidden vectors (B, T, 2D) from the head outputs of all pixels."""
        channels = self.config.shape[0]
        length = values.shape[1]
        heads = maps.heads.reshape(len(values), -1, maps.heads.shape[-1] // channels)[:, :length]
        if self.earlier is None:
            return F.relu(heads)
        pixels = F.pad(values, (0, -length % channels)).view(len(values), -1, channels)
        return F.relu(heads + self._channels_before(pixels, self.earlier).flatten(1, 2)[:, :length])

    def _channels_before(self, pixels: Tensor, table: nn.Embedding) -> Tensor:
        """(..., C) values to (..., C, 2D): the contribution of the previous channels of the same pixel."""
        found = [self.rows.new_zeros(*pixels.shape[:-1], table.embedding_dim)] * pixels.shape[-1]
        for number, (earlier, later) in enumerate(self.pairs):
            found[later] = found[later] + table(pixels[..., earlier] + number * self.vocabulary)
        return torch.stack(found, dim=-2)

    # Value by value

    def initial(self, source: Sequences | None, batch_size: int) -> PixelState:
        width = self.config.shape[2]
        inner, zeros = self.config.width, self.rows.new_zeros
        sizes = list(zip([EMBEDDED, *[inner] * self.config.layers], self._pasts, strict=True))
        return PixelState(
            values=torch.zeros(batch_size, 1 + self.config.size, dtype=torch.int64, device=self.device),
            positions=torch.zeros(batch_size, dtype=torch.int64, device=self.device),
            given=self.given(source, batch_size),
            rows=tuple(zeros(batch_size, past, width, size) for size, past in sizes),
            above=tuple(zeros(batch_size, width, join.out_features) for join in self._joins),
            pixels=tuple(zeros(batch_size, past, size) for size, past in sizes),
            here=zeros(batch_size, self.head.out_features),
        )

    def advance(self, tokens: Tensor, state: State) -> Advance:
        before = cast(PixelState, state)
        tokens = tokens.masked_fill(tokens == self.bos, 0)  # BOS is not a level; its replacement is never read
        last = int(before.positions.max()) + tokens.shape[1]  # values read in the longest row, including BOS
        self.require_room(last)
        if tokens.shape[1] > 1 or self.training:
            return self._chunk(tokens, before, last)
        if last == int(before.positions.min()) + 1:
            return self._step(tokens, before, last - 1)
        return self._steps(tokens, before)

    def make_room(self, state: State, count: int) -> State:
        self.require_room(int(cast(PixelState, state).positions.max()) + count)
        return state

    def describe_step(self, program: ProgramBuilder) -> None:
        config, first, heads = self.config, self.embedding.weight, self.head.weight
        channels, _, width = config.shape
        program.positions = 1
        parameters = [first, self.rows, self.columns]
        for convolution in (self.first_vertical, self.first_horizontal):
            parameters += [convolution.weight, convolution.bias]
        parameters += [self.first_join.weight, heads, heads if self.earlier is None else self.earlier.weight]
        for layer in self._stack:
            for convolution in (layer.vertical, layer.horizontal):
                parameters += [convolution.weight, convolution.bias]
            parameters += [layer.join.weight, layer.outward.weight]
        kernels = config.kernel, config.first_kernel, config.cycle
        shape = config.layers, config.width, channels, width, *kernels, EMBEDDED
        hidden = program.pixels(0, parameters, shape, levels=self.vocabulary)
        program.keep_hidden(hidden)
        program.linear(hidden, self.readout_weight, self.readout_bias, out=program.result())

    def _chunk(self, tokens: Tensor, before: PixelState, last: int) -> Advance:
        """Several values, by a pass over the whole image."""
        places = before.positions[:, None] + torch.arange(tokens.shape[1], device=tokens.device)  # (B, K)
        values = before.values.scatter(1, places, tokens)
        read = values[:, 1 : last + 1]
        maps = self._maps(read, before.given)
        hidden = self._read_out(read, maps).take_along_dim(places[:, :, None], dim=1)
        after = before._replace(values=values, positions=before.positions + tokens.shape[1])
        return Advance(hidden, self._remembered(after, maps))

    def _remembered(self, state: PixelState, maps: Maps) -> PixelState:
        """The state at the next pixel, cut out of the feature maps."""
        channels, _, width = self.config.shape
        pixel = (state.positions - 1) // channels
        row, column = pixel // width, pixel % width

        def this_row(x: Tensor) -> Tensor:
            return x.take_along_dim(row[:, None, None, None], dim=2)[:, :, 0].mT  # (B, W, D)

        rows = [_last(v, row, past, 2) for v, past in zip(maps.vertical, self._pasts, strict=False)]
        pixels = [
            _last(this_row(h), column + 1, past, 1) for h, past in zip(maps.horizontal, self._pasts, strict=False)
        ]
        above = [this_row(shift_down(v)) for v in maps.vertical[1:]]
        return state._replace(
            rows=tuple(map(_channels_last, (rows[0], *map(pixel_norm, rows[1:])))),
            above=tuple(join(v) for join, v in zip(self._joins, above, strict=True)),
            pixels=(pixels[0], *map(rms_norm, pixels[1:])),
            here=this_row(maps.heads.permute(0, 3, 1, 2)).take_along_dim(column[:, None, None], dim=1)[:, 0],
        )

    def _steps(self, tokens: Tensor, state: PixelState) -> Advance:
        """A single value per row, grouped by rows at the same pixel."""
        places = sorted(set(state.positions.tolist()))
        groups = [(state.positions == place).nonzero()[:, 0] for place in places]
        found = [
            self._step(tokens[rows], select(state, rows), place) for rows, place in zip(groups, places, strict=True)
        ]
        order = torch.cat(groups).argsort()
        hidden = torch.cat([one.hidden for one in found])[order]
        return Advance(hidden, select(merge([cast(PixelState, one.state) for one in found]), order))

    def _step(self, tokens: Tensor, state: PixelState, position: int) -> Advance:
        """A single value (B, 1) at the same position in every image.

        A complete pixel starts the next one, and a complete row the next row.
        """
        channels, _, width = self.config.shape
        values = state.values.clone() if torch.is_grad_enabled() else state.values
        values[:, position] = tokens[:, 0]
        state = state._replace(values=values, positions=state.positions + 1)
        pixel, channel = divmod(position, channels)  # of the value to predict, since BOS has been read too
        row, column = divmod(pixel, width)
        if channel == 0:
            if column == 0 and row > 0:
                state = self._enter_row(state, row)
            state = self._enter_pixel(state, row, column)
        head = state.here.view(len(tokens), channels, -1)[:, channel]
        if self.earlier is not None:
            first = position - channel + 1
            head = head + self._channels_before(values[:, first : first + channels], self.earlier)[:, channel]
        return Advance(F.relu(head)[:, None], state)

    def _enter_row(self, state: PixelState, row: int) -> PixelState:
        """Run the vertical stack on the complete row above."""
        channels, _, width = self.config.shape
        size = channels * width
        x = self._embed(state.values[:, 1 + (row - 1) * size : 1 + row * size]).permute(0, 3, 1, 2)  # (B, E, 1, W)
        place = (self.rows[row - 1] + self.columns + state.given[:, None]).mT  # (B, 2D, W)
        v = self.first_vertical.row(_channels_first(state.rows[0]), x) + place.chunk(2, dim=1)[0][:, :, None]
        inputs, above = [x], [self.first_join(v[:, :, 0].mT)]
        for layer, rows in zip(self._stack, state.rows[1:], strict=True):
            inputs.append(pixel_norm(v))
            v = v + layer.row(_channels_first(rows), inputs[-1])
            above.append(layer.join(v[:, :, 0].mT))
        return state._replace(
            rows=tuple(_pushed(rows, _channels_last(x), 1) for rows, x in zip(state.rows, inputs, strict=True)),
            above=tuple(above),
            pixels=tuple(map(torch.zeros_like, state.pixels)),
        )

    def _enter_pixel(self, state: PixelState, row: int, column: int) -> PixelState:
        """Run the horizontal stack on the last complete pixel."""
        channels, _, width = self.config.shape
        if column > 0:
            end = 1 + (row * width + column) * channels
            x = self.embedding(state.values[:, end - channels : end] + self._channel(channels) * self.vocabulary).sum(1)
        else:
            x = state.given.new_zeros(len(state.given), EMBEDDED)  # nothing is to the left of the first pixel
        place = (self.rows[row] + self.columns[column] + state.given).chunk(2, dim=-1)[1]
        h = self.first_horizontal.pixel(state.pixels[0], x) + state.above[0][:, column] + place
        inputs = [x]
        for layer, pixels, above in zip(self._stack, state.pixels[1:], state.above[1:], strict=True):
            inputs.append(rms_norm(h))
            h = h + layer.pixel(pixels, inputs[-1], above[:, column])
        return state._replace(
            pixels=tuple(_pushed(pixels, x[:, None], 1) for pixels, x in zip(state.pixels, inputs, strict=True)),
            here=self.head(rms_norm(h)),
        )

    @property
    def _stack(self) -> list[GatedLayer]:
        return cast(list[GatedLayer], list(self.layers))

    @property
    def _pasts(self) -> list[int]:
        """For each convolution, the number of previous rows or pixels that it needs."""
        return [self.first_vertical.past, *(layer.vertical.past for layer in self._stack)]

    @property
    def _joins(self) -> list[nn.Linear]:
        return [self.first_join, *(layer.join for layer in self._stack)]


def _last(x: Tensor, end: Tensor, count: int, dim: int) -> Tensor:
    """The `count` entries before `end` (B,) along an axis; zeros where there are none."""
    padding = [0, 0] * (x.ndim - 1 - dim) + [count, 0]
    index = end[:, None] + torch.arange(count, device=x.device)  # shifted by the padding
    form = [1] * x.ndim
    form[0], form[dim] = index.shape
    return F.pad(x, padding).take_along_dim(index.view(form), dim=dim)


def _channels_last(x: Tensor) -> Tensor:
    """(B, D, H, W) to (B, H, W, D)."""
    return x.permute(0, 2, 3, 1).contiguous()


def _channels_first(x: Tensor) -> Tensor:
    """(B, H, W, D) to (B, D, H, W)."""
    return x.permute(0, 3, 1, 2)


def _pushed(x: Tensor, new: Tensor, dim: int) -> Tensor:
    """Append an entry along an axis and drop the first one."""
    return new if x.shape[dim] == 1 else torch.cat([x, new], dim=dim).narrow(dim, 1, x.shape[dim])


class LabelledPixelCNNConfig(PixelCNNConfig, TranslationConfig):
    """The source is a label, so `source_vocabulary` is the number of classes; it is taken from the data."""


class LabelledPixelCNN(PixelCNN, Conditional):
    """Class-conditional PixelCNN: P(image | label)."""

    Config = LabelledPixelCNNConfig
    config: LabelledPixelCNNConfig

    def __init__(self, config: LabelledPixelCNNConfig) -> None:
        super().__init__(config)
        self.labels = nn.Embedding(config.source_vocabulary, 2 * config.width)
        nn.init.zeros_(self.labels.weight)

    @property
    def source_context(self) -> int:
        return 1

    def tables(self) -> Iterator[nn.Parameter]:
        yield from super().tables()
        yield cast(nn.Parameter, self.labels.weight)

    def given(self, source: Sequences | None, rows: int) -> Tensor:
        return cast(Tensor, self.labels(self.require_source(source).ids[:, 0]))
