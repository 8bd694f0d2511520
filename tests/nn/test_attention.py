import pytest
import torch

from chainrule.nn.attention import (
    AlignedIndex,
    BidirectionalAttention,
    CachedAttention,
    CausalAttention,
    RaggedIndex,
    RecordingAttention,
    SourceAttention,
    cache_index,
    grow_cache,
    padding_bias,
)
from chainrule.nn.positions import Rotary, sinusoids


def test_products_of_rotated_vectors_depend_on_their_distance_only() -> None:
    rotate = Rotary(width=8, capacity=50).double()(slice(0, 50))
    query, key = torch.randn(2, 8, dtype=torch.float64)
    queries, keys = (rotate(vector.expand(1, 50, 1, 1, 8))[0, :, 0, 0] for vector in (query, key))
    products = queries @ keys.T  # [m, n]
    for distance in (0, 1, 7, 30):
        along = products.diagonal(-distance)
        torch.testing.assert_close(along, along[:1].expand_as(along), rtol=0, atol=1e-5)
    assert products[:, 0].std() > 0.1
    torch.testing.assert_close(products[0, 0], query @ key)


def test_rotation_preserves_the_norm() -> None:
    rotate = Rotary(width=6, capacity=20)(slice(0, 20))
    vectors = torch.randn(2, 20, 1, 3, 6)
    torch.testing.assert_close(rotate(vectors).norm(dim=-1), vectors.norm(dim=-1))


def test_rows_at_different_positions_are_rotated_by_their_own() -> None:
    rotary = Rotary(width=6, capacity=20)
    vectors = torch.randn(2, 3, 1, 1, 6)
    ragged = rotary(torch.tensor([[4, 5, 6], [0, 1, 2]]))(vectors)
    torch.testing.assert_close(ragged[:1], rotary(slice(4, 7))(vectors[:1]))
    torch.testing.assert_close(ragged[1:], rotary(slice(0, 3))(vectors[1:]))


def test_rotary_tables_are_not_part_of_a_checkpoint() -> None:
    assert Rotary(width=6, capacity=20).state_dict() == {}


def test_a_single_token_of_aligned_rows_needs_no_mask() -> None:
    together = cache_index(torch.tensor([5, 5, 5]), 1)
    assert isinstance(together, AlignedIndex)
    assert (together.where, together.end, together.mask) == (slice(5, 6), 6, None)
    assert isinstance(cache_index(torch.tensor([5, 4]), 1), RaggedIndex)


@pytest.mark.parametrize("starts", [[0, 0, 0], [4, 4, 4], [4, 0, 2]])
@pytest.mark.parametrize("chunk", [1, 3])
def test_cached_attention_equals_causal_attention_of_each_row(starts: list[int], chunk: int) -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 3, 2, 10, 4, dtype=torch.float64)  # (B, H, T, D) each
    whole = CausalAttention()(query, key, value)
    keys, values = torch.full((2, 3, 2, 10, 4), 1e9, dtype=torch.float64)  # unwritten entries must be masked
    for row, start in enumerate(starts):
        keys[row, :, :start], values[row, :, :start] = key[row, :, :start], value[row, :, :start]
    attend = CachedAttention(keys, values, cache_index(torch.tensor(starts), chunk))
    new = [
        torch.stack([part[row, :, start : start + chunk] for row, start in enumerate(starts)])
        for part in (query, key, value, whole)
    ]
    torch.testing.assert_close(attend(*new[:3]), new[3])
    for row, start in enumerate(starts):
        assert torch.equal(keys[row, :, : start + chunk], key[row, :, : start + chunk])


def test_a_full_cache_doubles_up_to_the_limit_and_keeps_its_content() -> None:
    cache = torch.randn(2, 3, 4, 5)
    assert grow_cache(cache, 4, limit=10) is cache
    doubled = grow_cache(cache, 5, limit=10)
    assert doubled.shape[2] == 8
    assert torch.equal(doubled[:, :, :4], cache)
    assert grow_cache(doubled, 9, limit=10).shape[2] == 10
    assert grow_cache(cache, 9, limit=100).shape[2] == 9


def test_sources_without_padding_need_no_bias() -> None:
    assert padding_bias(torch.tensor([3, 3]), 3, torch.float32) is None


@pytest.mark.parametrize("scale", [None, 1.0])
def test_cross_attention_is_the_weighted_mean_of_values_without_padding(scale: float | None) -> None:
    torch.manual_seed(0)
    query = torch.randn(2, 2, 4, 6, dtype=torch.float64)
    keys, values = torch.randn(2, 2, 2, 5, 6, dtype=torch.float64)
    keys[1, :, 3:], values[1, :, 3:] = 1e3, 1e3
    attention = SourceAttention(keys, values, padding_bias(torch.tensor([5, 3]), 5, torch.float64), scale=scale)
    weights = attention.weights(query)
    torch.testing.assert_close(attention(query), weights @ values)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, 4, dtype=torch.float64))
    assert not weights[1, :, :, 3:].any()
    unpadded = SourceAttention(keys[1:, :, :3], values[1:, :, :3], None, scale=scale)
    torch.testing.assert_close(attention(query)[1:], unpadded(query[1:]))


def test_recording_attention_leaves_the_output_unchanged() -> None:
    torch.manual_seed(0)
    query, keys, values = torch.randn(3, 1, 2, 5, 6)
    attention = SourceAttention(keys, values, None)
    recording = RecordingAttention(attention)
    assert torch.equal(recording(query), attention(query))
    torch.testing.assert_close(recording.recorded[0], attention.weights(query))


@pytest.mark.parametrize("width", [6, 7])
def test_sinusoids_are_those_of_the_paper(width: int) -> None:
    table = sinusoids(width, capacity=9)
    assert table.shape == (9, width)
    position, pair = 5, 2
    angle = torch.tensor(position / 10_000 ** (2 * pair / width))
    torch.testing.assert_close(table[position, 2 * pair], angle.sin())
    torch.testing.assert_close(table[position, 2 * pair + 1], angle.cos())


@pytest.mark.parametrize("causal", [False, True])
def test_attention_with_a_rate_that_rounds_to_zero_equals_attention_without_dropout(causal: bool) -> None:
    query, key, value = torch.randn(3, 2, 4, 7, 8).unbind()
    bias = None if causal else padding_bias(torch.tensor([7, 4]), 7, query.dtype)
    for_rate = CausalAttention if causal else (lambda rate: BidirectionalAttention(bias, rate))
    never = 1e-4  # rounds to 0 of 256
    torch.testing.assert_close(for_rate(never)(query, key, value), for_rate(0.0)(query, key, value))


def test_attention_dropout_keeps_the_mean() -> None:
    query, key = torch.randn(2, 1, 1, 1000, 4).unbind()
    value = torch.ones(1, 1, 1000, 1)
    found = CausalAttention(0.5)(query, key, value)
    assert found[0, 0, 500:].std() > 0.01
    assert float(found[0, 0, 500:].mean()) == pytest.approx(1.0, abs=0.02)
