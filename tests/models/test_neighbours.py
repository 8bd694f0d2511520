"""Back-off models of pixels given their neighbours; properties of every family are in tests/testing."""

from __future__ import annotations

import math

import pytest
import torch

from chainrule.interface.base import CountModel
from chainrule.models.neighbours import STRENGTHS, Neighbours, NeighboursConfig
from chainrule.models.ngram import NGram, NGramConfig
from chainrule.types import Batch, Sequences


def trained(images: torch.Tensor, *, levels: int, shape: tuple[int, int, int], neighbours: int = 3) -> Neighbours:
    model = Neighbours(NeighboursConfig(vocabulary=levels, shape=shape, neighbours=neighbours))
    model.observe(Sequences.full(images))
    model.estimate()
    return model


def nats(model: NGram | Neighbours, images: torch.Tensor) -> float:
    return -float(model.token_log_probs(Batch(Sequences.full(images))).mean())


def test_neighbours_come_nearest_first() -> None:
    config = NeighboursConfig(vocabulary=2, shape=(1, 9, 9), neighbours=8)
    left, above, above_left, above_right = (0, 1), (1, 0), (1, 1), (1, -1)
    assert config.offsets[:4] == [left, above, above_left, above_right]
    assert config.offsets[4:8] == [(0, 2), (2, 0), (1, 2), (1, -2)]


def test_a_narrow_image_has_fewer_neighbours_than_requested() -> None:
    assert NeighboursConfig(vocabulary=2, shape=(1, 9, 1), neighbours=3).offsets == [(1, 0), (2, 0), (3, 0)]


Event = tuple[tuple[int, ...], int]  # a context and the value that stands in it


class ByHand:
    """The formula with dictionaries, for the left and the upper neighbour; leave-one-out by recounting."""

    def __init__(self, images: list[list[int]], width: int, levels: int) -> None:
        self.width, self.levels = width, levels
        self.events = [event for image in images for event in self.of(image)]
        self.strengths: list[float] = []
        for _ in range(3):
            self.strengths.append(min(STRENGTHS, key=self.surprise_by_the_others))

    def of(self, image: list[int]) -> list[Event]:
        outside = self.levels
        lefts = [image[place - 1] if place % self.width else outside for place in range(len(image))]
        uppers = [image[place - self.width] if place >= self.width else outside for place in range(len(image))]
        return [((left, upper), value) for left, upper, value in zip(lefts, uppers, image, strict=True)]

    def probability(self, event: Event, events: list[Event], strengths: list[float]) -> float:
        (context, value), found = event, 1 / self.levels
        for length, strength in enumerate(strengths):
            beside = [x for other, x in events if other[:length] == context[:length]]
            found = (beside.count(value) + strength * found) / (len(beside) + strength)
        return found

    def surprise_by_the_others(self, strength: float) -> float:
        strengths = [*self.strengths, strength]
        others = [self.events[:place] + self.events[place + 1 :] for place in range(len(self.events))]
        return -sum(
            math.log(self.probability(event, rest, strengths)) for event, rest in zip(self.events, others, strict=True)
        )


def test_probabilities_are_those_of_the_formula() -> None:
    images = [[0, 1, 1, 0, 1, 1], [0, 0, 1, 2, 1, 1], [2, 1, 1, 0, 1, 0]]
    query = [0, 1, 2, 0, 1, 1]
    model = trained(torch.tensor(images), levels=3, shape=(1, 2, 3), neighbours=2)
    found = model.token_log_probs(Batch(Sequences.full(torch.tensor([query])))).exp()[0]
    hand = ByHand(images, width=3, levels=3)
    expected = [hand.probability(event, hand.events, hand.strengths) for event in hand.of(query)]
    assert found.tolist() == pytest.approx(expected, rel=1e-5)


def test_neighbours_that_are_too_far_to_help_do_no_harm() -> None:
    noise = torch.randint(5, (60, 36), generator=torch.Generator().manual_seed(0))
    few, many = (trained(noise[:50], levels=5, shape=(1, 6, 6), neighbours=number) for number in (1, 12))
    assert nats(many, noise[50:]) < nats(few, noise[50:]) + 0.01


def test_vertical_patterns_are_learnt_by_neighbours_and_not_by_an_ngram() -> None:
    random = torch.Generator().manual_seed(0)
    stripes = torch.randint(2, (60, 12), generator=random).repeat(1, 6)  # 6 equal rows of 12 pixels
    beside = trained(stripes[:50], levels=2, shape=(1, 6, 12))
    along = NGram(NGramConfig(vocabulary=2, order=6))
    along.observe(Sequences.full(stripes[:50]))
    along.estimate()
    assert isinstance(along, CountModel)
    rows_below = slice(12, None)
    sure = -beside.token_log_probs(Batch(Sequences.full(stripes[50:])))[:, rows_below].mean()
    assert float(sure) < 0.05
    assert nats(along, stripes[50:]) > 0.5


def test_the_left_edge_has_no_neighbour_from_the_row_above() -> None:
    """Columns 0 and 3 are adjacent in the sequence but not in the image."""
    random = torch.Generator().manual_seed(0)
    images = torch.randint(2, (200, 16), generator=random)
    images[:, 4::4] = 1 - images[:, 3:-1:4]  # the first pixel of a row is the opposite of the last one before it
    model = trained(images, levels=2, shape=(1, 4, 4), neighbours=1)
    first = -model.token_log_probs(Batch(Sequences.full(images)))[:, 4::4].mean()
    assert float(first) > 0.9 * math.log(2)


def test_a_channel_is_predicted_from_the_previous_channels() -> None:
    random = torch.Generator().manual_seed(0)
    grey = torch.randint(4, (80, 9, 1), generator=random).expand(-1, -1, 3).flatten(1)  # three equal channels
    model = trained(grey[:70], levels=4, shape=(3, 3, 3), neighbours=1)
    surprise = -model.token_log_probs(Batch(Sequences.full(grey[70:]))).view(10, 9, 3).mean((0, 1))
    assert float(surprise[0]) > 1.2
    assert float(surprise[1:].max()) < 0.3
