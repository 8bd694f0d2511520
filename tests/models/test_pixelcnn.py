"""PixelCNN, unconditional and class-conditional; properties of every family are in tests/testing."""

from __future__ import annotations

import pytest
import torch

from chainrule.errors import ConfigError, DataError
from chainrule.interface.base import Recomputed
from chainrule.models.pixelcnn import LabelledPixelCNN, LabelledPixelCNNConfig, PixelCNN, PixelCNNConfig
from chainrule.types import Batch, Sequences

LEVELS = 3


def model_of(shape: tuple[int, int, int], **settings: object) -> PixelCNN:
    """A small model in float64 with random values for all parameters, also those initialised to zero."""
    torch.manual_seed(0)
    values = {"vocabulary": LEVELS, "shape": shape, "layers": 4, "width": 5, "first_kernel": 3, "cycle": 1}
    model = PixelCNN(PixelCNNConfig.parse(values | settings)).double().eval()
    return randomised(model)


def randomised(model: PixelCNN) -> PixelCNN:
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model


def images(shape: tuple[int, int, int], rows: int = 2) -> torch.Tensor:
    channels, height, width = shape
    return torch.randint(LEVELS, (rows, channels * height * width), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def seen(model: PixelCNN, ids: torch.Tensor, target: int) -> set[int]:
    """The values that the prediction of one value depends on."""
    expected = model.logits(Batch(Sequences.full(ids)))[:, target]
    found = set()
    for place in range(ids.shape[1]):
        changed = ids.clone()
        changed[:, place] = (changed[:, place] + 1) % LEVELS
        if not torch.equal(model.logits(Batch(Sequences.full(changed)))[:, target], expected):
            found.add(place)
    return found


@pytest.mark.parametrize("target", [0, 4, 17, 24])
def test_a_pixel_depends_on_exactly_the_pixels_before_it(target: int) -> None:
    shape = (1, 5, 5)
    assert seen(model_of(shape), images(shape), target) == set(range(target))


def test_there_is_no_blind_spot_above_to_the_right() -> None:
    shape = (1, 4, 9)
    one_layer = model_of(shape, layers=1)
    assert 1 * 9 + 6 in seen(one_layer, images(shape), 2 * 9 + 4)  # the row above, two pixels to the right


@pytest.mark.parametrize("channel", [0, 1, 2])
def test_a_channel_depends_on_the_previous_channels_of_its_pixel(channel: int) -> None:
    shape = (3, 3, 3)
    target = 3 * 4 + channel  # of the pixel in the middle
    assert seen(model_of(shape), images(shape), target) == set(range(target))


def test_dilations_widen_the_receptive_field() -> None:
    shape = (1, 9, 3)
    near, far = (seen(model_of(shape, layers=2, cycle=cycle), images(shape), 26) for cycle in (1, 2))
    assert near < far


@torch.no_grad()
def test_decoding_can_continue_after_any_value() -> None:
    shape = (3, 3, 2)
    model, ids = model_of(shape), images(shape, rows=1)
    whole = model.logits(Batch(Sequences.full(ids)))
    for length in (1, 5, 6, 7, 13):  # within a pixel, at the end of a row, within a row
        state = model.extend(ids[:, :length], model.start().state).state
        after = model.extend(ids[:, length : length + 1], state).logits[:, 0]
        torch.testing.assert_close(after, whole[:, length + 1])


@torch.no_grad()
def test_cached_decoding_equals_uncached_decoding() -> None:
    shape = (1, 6, 6)
    model = model_of(shape, cycle=2)
    for kind in (model, Recomputed(model)):
        step, drawn = kind.start(batch_size=3), []
        for _ in range(35):
            drawn.append(step.logits[:, -1].argmax(-1))
            step = kind.extend(drawn[-1][:, None], step.state)
        if kind is model:
            expected = torch.stack(drawn)
    assert torch.equal(torch.stack(drawn), expected)


@torch.no_grad()
def test_a_label_changes_the_prediction_from_the_first_pixel_on() -> None:
    torch.manual_seed(0)
    config = LabelledPixelCNNConfig(vocabulary=LEVELS, shape=(1, 3, 3), layers=1, width=4, source_vocabulary=4)
    model = randomised(LabelledPixelCNN(config)).eval()
    labels = Sequences.full(torch.tensor([[0], [3]]))
    first, second = model.logits(Batch(Sequences.full(images((1, 3, 3))[:1].expand(2, -1)), labels))
    assert not torch.isclose(first, second).all(-1).any()
    assert not torch.equal(*model.start(labels).logits)


def test_a_missing_label_is_refused() -> None:
    config = LabelledPixelCNNConfig(vocabulary=LEVELS, shape=(1, 3, 3), layers=1, width=4, source_vocabulary=4)
    with pytest.raises(DataError, match="needs a source"):
        LabelledPixelCNN(config).start()


def test_neighbouring_levels_have_similar_initial_embeddings() -> None:
    torch.manual_seed(0)
    table = PixelCNN(PixelCNNConfig(vocabulary=64, shape=(1, 2, 2))).embedding.weight
    assert torch.dist(table[10], table[11]) < torch.dist(table[10], table[60]) / 2


def test_an_even_kernel_is_refused() -> None:
    with pytest.raises(ConfigError, match="kernel must be odd, got"):
        PixelCNNConfig.parse({"vocabulary": 2, "shape": (1, 4, 4), "kernel": 4})
