import pytest
import torch

from chainrule.nn.attention import Aligned, CachedAttention, CausalAttention, Ragged, place
from chainrule.nn.positions import Rotary


def test_rotated_vectors_meet_at_an_angle_that_depends_on_their_distance_alone() -> None:
    rotate = Rotary(width=8, capacity=50).double()(slice(0, 50))
    query, key = torch.randn(2, 8, dtype=torch.float64)
    queries, keys = (rotate(vector.expand(1, 50, 1, 1, 8))[0, :, 0, 0] for vector in (query, key))
    products = queries @ keys.T  # [m, n]
    for distance in (0, 1, 7, 30):
        along = products.diagonal(-distance)
        torch.testing.assert_close(along, along[:1].expand_as(along), rtol=0, atol=1e-5)
    assert products[:, 0].std() > 0.1
    torch.testing.assert_close(products[0, 0], query @ key)


def test_rotation_keeps_the_length_of_a_vector() -> None:
    rotate = Rotary(width=6, capacity=20)(slice(0, 20))
    vectors = torch.randn(2, 20, 1, 3, 6)
    torch.testing.assert_close(rotate(vectors).norm(dim=-1), vectors.norm(dim=-1))


def test_rows_at_positions_of_their_own_are_rotated_by_them() -> None:
    rotary = Rotary(width=6, capacity=20)
    vectors = torch.randn(2, 3, 1, 1, 6)
    ragged = rotary(torch.tensor([[4, 5, 6], [0, 1, 2]]))(vectors)
    torch.testing.assert_close(ragged[:1], rotary(slice(4, 7))(vectors[:1]))
    torch.testing.assert_close(ragged[1:], rotary(slice(0, 3))(vectors[1:]))


def test_rotary_tables_stay_out_of_checkpoints() -> None:
    assert Rotary(width=6, capacity=20).state_dict() == {}


def test_rows_at_one_position_need_no_mask_for_a_single_token() -> None:
    together = place(torch.tensor([5, 5, 5]), 1)
    assert isinstance(together, Aligned)
    assert (together.where, together.end, together.mask) == (slice(5, 6), 6, None)
    assert isinstance(place(torch.tensor([5, 4]), 1), Ragged)


@pytest.mark.parametrize("starts", [[0, 0, 0], [4, 4, 4], [4, 0, 2]])
@pytest.mark.parametrize("chunk", [1, 3])
def test_cached_attention_sees_a_rows_past_and_nothing_else(starts: list[int], chunk: int) -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 3, 2, 10, 4, dtype=torch.float64)  # (B, H, T, D) each
    whole = CausalAttention()(query, key, value)
    keys, values = torch.full((2, 3, 2, 10, 4), 1e9, dtype=torch.float64)  # what nobody wrote must not be read
    for row, start in enumerate(starts):
        keys[row, :, :start], values[row, :, :start] = key[row, :, :start], value[row, :, :start]
    attend = CachedAttention(keys, values, place(torch.tensor(starts), chunk))
    new = [
        torch.stack([part[row, :, start : start + chunk] for row, start in enumerate(starts)])
        for part in (query, key, value, whole)
    ]
    torch.testing.assert_close(attend(*new[:3]), new[3])
    for row, start in enumerate(starts):
        assert torch.equal(keys[row, :, : start + chunk], key[row, :, : start + chunk])
