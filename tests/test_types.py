from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from chainrule.types import Sequences, detach, map_state, merge, select, tensors


class Memory(NamedTuple):
    cells: Tensor
    layers: tuple[Tensor, ...]


def state(rows: int) -> dict[str, object]:
    numbers = torch.arange(rows * 2.0).reshape(rows, 2)
    return {"memory": Memory(numbers, (numbers + 100, numbers + 200)), "positions": torch.arange(rows)}


def test_select_takes_rows_of_every_tensor_and_keeps_the_tree() -> None:
    chosen = select(state(3), torch.tensor([2, 0, 2]))
    assert isinstance(chosen["memory"], Memory)
    assert chosen["positions"].tolist() == [2, 0, 2]
    assert chosen["memory"].layers[1][:, 0].tolist() == [204, 200, 204]


def test_select_copies_so_that_the_original_may_be_modified_in_place() -> None:
    original = state(2)
    chosen = select(original, torch.tensor([0, 1]))
    original["memory"].cells.zero_()
    assert chosen["memory"].cells.sum() > 0


def test_merge_is_the_inverse_of_select() -> None:
    whole = state(3)
    parts = [select(whole, torch.tensor([row])) for row in range(3)]
    for found, expected in zip(tensors(merge(parts)), tensors(whole), strict=True):
        assert torch.equal(found, expected)


def test_merging_pads_states_of_different_widths_to_the_widest() -> None:
    wide, narrow = torch.ones(1, 2, 5), torch.full((2, 2, 3), 2.0)
    merged, lengths = merge([(wide, torch.tensor([5])), (narrow, torch.tensor([3, 1]))])
    assert lengths.tolist() == [5, 3, 1]
    assert torch.equal(merged[:1], wide)
    assert torch.equal(merged[1:, :, :3], narrow)
    assert not merged[1:, :, 3:].any()


def test_detach_detaches_every_tensor() -> None:
    live = map_state(lambda tensor: tensor.float().requires_grad_() * 2, state(2))
    assert all(tensor.requires_grad for tensor in tensors(live))
    assert not any(tensor.requires_grad for tensor in tensors(detach(live)))


def test_pack_pads_on_the_right_and_the_mask_marks_the_padding() -> None:
    packed = Sequences.pack([[5, 6, 7], [], [8]])
    assert packed.ids.shape == (3, 3)
    assert packed.mask.sum(1).tolist() == [3, 0, 1]
    assert packed.ids[packed.mask].tolist() == [5, 6, 7, 8]
