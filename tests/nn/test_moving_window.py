"""The last entries of a text, in a tensor with room for more."""

from __future__ import annotations

import pytest
import torch

from chainrule.nn.moving_window import MovingWindow, Window
from chainrule.types import select

TEXT = torch.arange(1, 31)


def appended(window: MovingWindow, pieces: list[int]) -> tuple[list[Window], torch.Tensor]:
    """A text of numbers, in pieces."""
    cache, found, read = torch.zeros(1, window.capacity, dtype=torch.int64), [], 0
    for piece in torch.split(TEXT[: sum(pieces)], pieces):
        found.append(window.append(cache, piece[None], torch.tensor([read]), 1))
        cache, read = found[-1].cache, read + len(piece)
    return found, cache


@pytest.mark.parametrize("pieces", [[1] * 20, [7, 13], [2, 3, 1, 9, 5], [20]])
@pytest.mark.parametrize("room", [1, 3, 8])
def test_new_entries_follow_the_last_ones(pieces: list[int], room: int) -> None:
    window, read = MovingWindow(4, room), 0
    for found, count in zip(appended(window, pieces)[0], pieces, strict=True):
        expected = torch.cat([torch.zeros(4, dtype=torch.int64), TEXT])[read : read + 4 + count]
        assert torch.equal(found.entries[0], expected)
        read += count


@pytest.mark.parametrize("pieces", [[7, 13], [2, 3, 1, 9, 5], [20]])
def test_the_tensor_is_the_same_for_pieces_of_any_length(pieces: list[int]) -> None:
    window = MovingWindow(4, 3)
    assert torch.equal(appended(window, pieces)[1], appended(window, [1] * sum(pieces))[1])


def test_rows_may_have_different_numbers_of_entries() -> None:
    window, counts = MovingWindow(4, 3), [2, 9, 0, 9, 13]
    caches = torch.cat(
        [appended(window, [count])[1] if count else torch.zeros_like(TEXT[None, :7]) for count in counts]
    )
    new = torch.stack([TEXT[count : count + 5] for count in counts])
    found = window.append(caches, new, torch.tensor(counts), 1)
    for row, count in enumerate(counts):
        alone = window.append(caches[row : row + 1], new[row : row + 1], torch.tensor([count]), 1)
        assert all(
            torch.equal(ours, theirs) for ours, theirs in zip(select(found, torch.tensor([row])), alone, strict=True)
        )
