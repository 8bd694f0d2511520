"""What is computed for a single token in NumPy is what torch computes for a batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from chainrule.nn import alone, layers
from chainrule.nn.attention import CausalAttention, WholeAttention
from chainrule.nn.layers import Projection
from chainrule.nn.positions import Rotary


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def same(found: alone.Row, expected: torch.Tensor) -> None:
    np.testing.assert_allclose(found, expected.detach().numpy(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("bias", [False, True])
def test_projection(bias: bool) -> None:
    projection = Projection(6, 4, bias=bias).double()
    with torch.no_grad():
        for parameter in projection.parameters():
            parameter.copy_(random(*parameter.shape))
    x = random(1, 6, seed=1)
    same(alone.project(x[0].numpy(), projection), projection(x)[0])


def test_norms() -> None:
    x = random(2, 3, 8)
    same(alone.normalised(x.numpy()), layers.normalised(x))
    norm = layers.LayerNorm(8).double()
    with torch.no_grad():
        norm.weight.copy_(random(8, seed=1))
        norm.bias.copy_(random(8, seed=2))
    same(alone.layer_normalised(x[0, 0].numpy(), norm), norm(x[0, 0]))


def test_activations_over_their_whole_range() -> None:
    x = torch.linspace(-300, 300, 2001, dtype=torch.float64)
    same(alone.squared_relu(x.numpy()), layers.squared_relu(x))
    same(alone.gelu(x.numpy()), F.gelu(x, approximate="tanh"))


def test_rotation() -> None:
    rotary = Rotary(8, capacity=10).double()
    vectors = random(1, 1, 2, 3, 8)
    turn = alone.Turn(rotary.cosine[7].numpy(), rotary.sine[7].numpy())
    same(turn(vectors[0, 0].numpy()), rotary(slice(7, 8))(vectors)[0, 0])


def test_attention_one_token_after_the_other_is_causal_attention_over_all() -> None:
    heads, length, width = 2, 6, 4
    query, key, value = (random(1, heads, length, width, seed=seed) for seed in range(3))
    expected = CausalAttention()(query, key, value)[0]  # (H, T, D)
    keys, values = np.full((2, heads, 10, width), np.nan)  # what lies past the end must not be read
    for position in range(length):
        cache = alone.Cache(keys, values, position)
        now = (tensor[0, :, position].numpy() for tensor in (query, key, value))
        same(cache.attend(*now), expected[:, position].reshape(-1))


def test_attention_of_several_tokens_after_others_is_causal_attention_over_all() -> None:
    heads, length, width = 2, 7, 4
    query, key, value = (random(1, heads, length, width, seed=seed) for seed in range(3))
    expected = CausalAttention()(query, key, value)[0]  # (H, T, D)
    keys, values = np.full((2, heads, 10, width), np.nan)
    for position, end in ((0, 3), (3, 7)):
        now = (tensor[0, :, position:end].numpy() for tensor in (query, key, value))
        found = alone.Cache(keys, values, position).attend(*now)
        same(found, expected[:, position:end].transpose(0, 1).reshape(end - position, -1))


def test_attention_of_all_tokens_at_once_looks_both_ways() -> None:
    query, key, value = (random(1, 2, 7, 4, seed=seed) for seed in range(3))
    expected = WholeAttention(None)(query, key, value)[0]  # (H, T, D)
    found = alone.Whole().attend(*(tensor[0].numpy() for tensor in (query, key, value)))
    same(found, expected.transpose(0, 1).reshape(7, -1))


def test_several_tokens_are_split_into_heads_and_turned_like_each_alone() -> None:
    rotary = Rotary(8, capacity=10).double()
    cosine, sine = rotary.cosine.numpy(), rotary.sine.numpy()
    x = random(3, 2 * 2 * 8).numpy()  # 3 tokens: 2 parts of 2 heads
    together = alone.Turn(cosine[4:7], sine[4:7])(alone.in_heads(x, 2, 2))
    for place in range(3):
        turn = alone.Turn(cosine[4 + place], sine[4 + place])
        np.testing.assert_allclose(together[:, :, place], turn(alone.in_heads(x[place], 2, 2)), atol=1e-12)


def test_only_a_single_token_without_gradients_on_the_cpu_goes_alone() -> None:
    one, two = torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, 2, dtype=torch.int64)
    assert not alone.can_go_alone(one, torch.zeros(1))
    with torch.no_grad():
        assert alone.can_go_alone(one, torch.zeros(1))
        assert not alone.can_go_alone(two, torch.zeros(1))
        assert alone.can_go_alone(two, torch.zeros(1), most=2)
        assert not alone.can_go_alone(two.T, torch.zeros(1), most=2)
        assert not alone.can_go_alone(one, torch.zeros(1, dtype=torch.bfloat16))
        assert not alone.can_go_alone(one, torch.zeros(1, device="meta"))
