"""Single-row functions in NumPy equal their batched counterparts in torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from chainrule.nn import layers, single_row
from chainrule.nn.attention import BidirectionalAttention, CausalAttention
from chainrule.nn.layers import Projection
from chainrule.nn.positions import Rotary


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def same(found: single_row.Array, expected: torch.Tensor) -> None:
    np.testing.assert_allclose(found, expected.detach().numpy(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("bias", [False, True])
def test_projection(bias: bool) -> None:
    projection = Projection(6, 4, bias=bias).double()
    with torch.no_grad():
        for parameter in projection.parameters():
            parameter.copy_(random(*parameter.shape))
    x = random(1, 6, seed=1)
    same(single_row.project(x[0].numpy(), projection), projection(x)[0])


def test_norms() -> None:
    x = random(2, 3, 8)
    same(single_row.rms_norm(x.numpy()), layers.rms_norm(x))
    norm = layers.LayerNorm(8).double()
    with torch.no_grad():
        norm.weight.copy_(random(8, seed=1))
        norm.bias.copy_(random(8, seed=2))
    same(single_row.layer_norm(x[0, 0].numpy(), norm), norm(x[0, 0]))


def test_activations_over_their_whole_range() -> None:
    x = torch.linspace(-300, 300, 2001, dtype=torch.float64)
    same(single_row.squared_relu(x.numpy()), layers.squared_relu(x))
    same(single_row.gelu(x.numpy()), F.gelu(x, approximate="tanh"))


def test_rotation() -> None:
    rotary = Rotary(8, capacity=10).double()
    vectors = random(1, 1, 2, 3, 8)
    rotate = single_row.RowRotation(rotary.cosine[7].numpy(), rotary.sine[7].numpy())
    same(rotate(vectors[0, 0].numpy()), rotary(slice(7, 8))(vectors)[0, 0])


def test_cached_attention_token_by_token_equals_causal_attention() -> None:
    heads, length, width = 2, 6, 4
    query, key, value = (random(1, heads, length, width, seed=seed) for seed in range(3))
    expected = CausalAttention()(query, key, value)[0]  # (H, T, D)
    keys, values = np.full((2, heads, 10, width), np.nan)  # entries past the end must not be read
    for position in range(length):
        cache = single_row.RowCache(keys, values, position)
        now = (tensor[0, :, position].numpy() for tensor in (query, key, value))
        same(cache.attend(*now), expected[:, position].reshape(-1))


def test_cached_attention_of_several_tokens_equals_causal_attention() -> None:
    heads, length, width = 2, 7, 4
    query, key, value = (random(1, heads, length, width, seed=seed) for seed in range(3))
    expected = CausalAttention()(query, key, value)[0]  # (H, T, D)
    keys, values = np.full((2, heads, 10, width), np.nan)
    for position, end in ((0, 3), (3, 7)):
        now = (tensor[0, :, position:end].numpy() for tensor in (query, key, value))
        found = single_row.RowCache(keys, values, position).attend(*now)
        same(found, expected[:, position:end].transpose(0, 1).reshape(end - position, -1))


def test_full_row_attention_equals_bidirectional_attention() -> None:
    query, key, value = (random(1, 2, 7, 4, seed=seed) for seed in range(3))
    expected = BidirectionalAttention(None)(query, key, value)[0]  # (H, T, D)
    found = single_row.FullRowAttention().attend(*(tensor[0].numpy() for tensor in (query, key, value)))
    same(found, expected.transpose(0, 1).reshape(7, -1))


def test_several_tokens_are_split_into_heads_and_rotated_like_single_ones() -> None:
    rotary = Rotary(8, capacity=10).double()
    cosine, sine = rotary.cosine.numpy(), rotary.sine.numpy()
    x = random(3, 2 * 2 * 8).numpy()  # 3 tokens: 2 parts of 2 heads
    together = single_row.RowRotation(cosine[4:7], sine[4:7])(single_row.split_heads(x, 2, 2))
    for place in range(3):
        rotate = single_row.RowRotation(cosine[4 + place], sine[4 + place])
        np.testing.assert_allclose(together[:, :, place], rotate(single_row.split_heads(x[place], 2, 2)), atol=1e-12)


def test_the_single_row_path_applies_to_one_row_without_gradients_on_the_cpu() -> None:
    one, two = torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, 2, dtype=torch.int64)
    assert not single_row.is_applicable(one, torch.zeros(1))
    with torch.no_grad():
        assert single_row.is_applicable(one, torch.zeros(1))
        assert not single_row.is_applicable(two, torch.zeros(1))
        assert single_row.is_applicable(two, torch.zeros(1), max_tokens=2)
        assert not single_row.is_applicable(two.T, torch.zeros(1), max_tokens=2)
        assert not single_row.is_applicable(one, torch.zeros(1, dtype=torch.bfloat16))
        assert not single_row.is_applicable(one, torch.zeros(1, device="meta"))
