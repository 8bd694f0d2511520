"""Self-attention over a window, with a cache of fixed size."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from chainrule.nn.moving_window import MovingWindow
from chainrule.nn.window_attention import WindowAttention, window_bias

SIZE, WIDTH = 5, 4
WINDOW = MovingWindow(SIZE, 2)


def bias_after(positions: list[int], count: int) -> torch.Tensor:
    return window_bias(torch.tensor(positions), count, window=SIZE, heads=1, dtype=torch.float64)


def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, pieces: list[int]) -> torch.Tensor:
    """In pieces, with the cache carried from one to the next."""
    found, read = [], 0
    keys, values = (torch.zeros(len(query), 1, WINDOW.capacity, WIDTH, dtype=query.dtype) for _ in range(2))
    for parts in zip(*(torch.split(one, pieces, dim=2) for one in (query, key, value)), strict=True):
        positions = torch.full((len(query),), read)
        attention = WindowAttention(WINDOW, keys, values, positions, bias_after([read] * len(query), parts[0].shape[2]))
        found.append(attention(*parts))
        keys, values, read = attention.keys, attention.values, read + parts[0].shape[2]
    return torch.cat(found, dim=2)


def test_every_token_attends_to_itself_and_the_window_before_it() -> None:
    query, key, value = torch.randn(3, 2, 1, 17, WIDTH, generator=torch.Generator().manual_seed(0)).double()
    distance = torch.arange(17)[:, None] - torch.arange(17)
    bias = (distance * -(2.0**-8)).masked_fill((distance < 0) | (distance > SIZE), -torch.inf)
    expected = F.scaled_dot_product_attention(query, key, value, bias.double())
    torch.testing.assert_close(attend(query, key, value, [17]), expected)


@pytest.mark.parametrize("pieces", [[1] * 17, [5, 5, 5, 2], [3, 14], [16, 1], [2, 7, 8]])
def test_reading_in_pieces_equals_reading_at_once(pieces: list[int]) -> None:
    query, key, value = torch.randn(3, 2, 1, 17, WIDTH, generator=torch.Generator().manual_seed(1)).double()
    torch.testing.assert_close(attend(query, key, value, pieces), attend(query, key, value, [17]))


def test_rows_may_have_read_different_numbers_of_tokens() -> None:
    query, key, value = torch.randn(3, 2, 1, 3, WIDTH, generator=torch.Generator().manual_seed(2)).double()
    empty = torch.full((2, 1, WINDOW.capacity, WIDTH), 9.0).double()
    positions = torch.tensor([0, SIZE])
    found = WindowAttention(WINDOW, empty, empty, positions, bias_after([0, SIZE], 3))(query, key, value)
    fresh = WindowAttention(WINDOW, empty[:1], empty[:1], positions[:1], bias_after([0], 3))
    torch.testing.assert_close(found[:1], fresh(query[:1], key[:1], value[:1]))
    torch.testing.assert_close(found[:1], attend(query, key, value, [3])[:1])
    assert not torch.allclose(found[1:], attend(query, key, value, [3])[1:])  # its cache is not empty


def test_products_in_training_equal_fused_attention() -> None:
    query, key, value = torch.randn(3, 2, 1, 17, WIDTH, generator=torch.Generator().manual_seed(3)).double()
    with torch.no_grad():
        fused = attend(query, key, value, [3, 14])
    torch.testing.assert_close(attend(query, key, value, [3, 14]), fused)


def test_caches_take_the_type_of_the_keys() -> None:
    caches = torch.zeros(1, 1, WINDOW.capacity, WIDTH)
    new = torch.randn(1, 1, 3, WIDTH).bfloat16()
    bias = window_bias(torch.tensor([0]), 3, window=SIZE, heads=1, dtype=torch.float32)
    attention = WindowAttention(WINDOW, caches, caches, torch.tensor([0]), bias)
    assert attention(new, new, new).dtype == attention.keys.dtype == attention.values.dtype == torch.bfloat16
