"""The Vision Transformer; properties of every family are in tests/testing."""

from __future__ import annotations

import pytest
import torch

from chainrule.errors import ConfigError
from chainrule.models.vit import ViT, ViTConfig
from chainrule.types import Sequences

LEVELS = 5


def model_of(**settings: object) -> ViT:
    torch.manual_seed(0)
    values = {"vocabulary": 3, "source_vocabulary": LEVELS, "shape": (1, 6, 6), "width": 8, "heads": 2, "layers": 2}
    model = ViT(ViTConfig.parse(values | settings)).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model


def images(count: int = 2, size: int = 36) -> Sequences:
    return Sequences.full(torch.randint(LEVELS, (count, size), generator=torch.Generator().manual_seed(1)))


def test_a_patch_has_the_pixels_of_its_square_with_all_channels() -> None:
    model = model_of(shape=(3, 4, 6), patch=2)
    pixels = torch.arange(3 * 4 * 6, dtype=torch.float64).view(1, 3, 4, 6)
    patches = model._patches(pixels)
    assert patches.shape == (1, 6, 12)
    torch.testing.assert_close(patches[0, 4], pixels[0, :, 2:4, 2:4].flatten())  # second row, second column


def test_sides_that_are_no_multiples_of_the_patch_are_padded() -> None:
    model = model_of(shape=(1, 5, 7), patch=3)
    patches = model._patches(torch.ones(1, 1, 5, 7, dtype=torch.float64))
    assert patches.shape == (1, 6, 9)
    assert patches[0, -1].tolist() == [1, -1, -1, 1, -1, -1, -1, -1, -1]


@torch.no_grad()
def test_without_positions_the_order_of_patches_does_not_matter() -> None:
    model, (ids, _) = model_of(patch=3), images(1)
    halves = ids.view(2, 18)
    swapped = Sequences.full(halves.flip(0).reshape(1, 36))
    assert not torch.allclose(model.read(images(1)), model.read(swapped))
    model.positions[1:] = model.positions[1]
    torch.testing.assert_close(model.read(images(1)), model.read(swapped))


@torch.no_grad()
def test_images_are_moved_in_training_only_and_by_at_most_the_shift() -> None:
    model = model_of(shift=1, dropout=0.0)
    pixels = torch.zeros(200, 1, 6, 6, dtype=torch.float64)
    pixels[:, 0, 2, 3] = 1
    assert torch.equal(model._moved(pixels), pixels)
    moved = model.train()._moved(pixels)
    places = {tuple(place) for place in moved.nonzero()[:, 2:].tolist()}
    assert places == {(row, column) for row in (1, 2, 3) for column in (2, 3, 4)}
    assert torch.equal(model_of(shift=0).train()._moved(pixels), pixels)


def test_a_patch_larger_than_the_images_is_refused() -> None:
    with pytest.raises(ConfigError, match="patch 9 is larger than the images"):
        model_of(patch=9)
