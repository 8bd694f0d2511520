"""Sliding windows: the same arithmetic for scoring, generation and the composite `sliding`."""

from __future__ import annotations

import pytest
import torch

from chainrule.data.windows import SlidingWindow

WINDOWS = [SlidingWindow(context, stride) for context in (1, 2, 5, 8) for stride in range(1, context + 1)]


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_every_token_is_scored_once_with_at_least_the_overlap_as_history(window: SlidingWindow) -> None:
    for begin, end in ((0, 1), (0, window.context), (3, 40)):
        windows = list(window.cut(begin, end))
        scored = [position for one in windows for position in range(one.scored, one.end)]
        assert scored == list(range(begin, end))
        assert all(one.end - one.begin <= window.context for one in windows)
        assert all(one.scored - one.begin >= window.overlap for one in windows[1:])


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_generation_sees_the_history_that_scoring_gives(window: SlidingWindow) -> None:
    text = window.context + 6 * window.stride  # ends with a full stride
    history = {position: position - one.begin for one in window.cut(0, text) for position in range(one.scored, one.end)}
    assert [window.visible(length) for length in range(text)] == [history[length] for length in range(text)]


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_a_window_moves_when_it_has_no_room_left(window: SlidingWindow) -> None:
    for length in range(1, 40):
        assert window.moves_at(length) == (window.room(length - 1) == 0)


def test_windows_of_a_batch_overlap_and_the_last_is_padded() -> None:
    ids = torch.arange(1, 12)[None]  # 2 of overlap and 9 to predict
    found = SlidingWindow(context=6, stride=4).unfold(ids)
    assert found.tolist() == [[[1, 2, 3, 4, 5, 6], [5, 6, 7, 8, 9, 10], [9, 10, 11, 0, 0, 0]]]


def test_half_overlapping_windows_have_a_stride_of_at_least_one() -> None:
    assert [SlidingWindow.half_overlapping(context).stride for context in (1, 2, 3, 8)] == [1, 1, 1, 4]
