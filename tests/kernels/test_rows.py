"""What a row gets from a compiled step does not depend on the rows that are computed with it."""

from __future__ import annotations

import pytest
import torch

from chainrule.families import build
from chainrule.interface.base import AutoregressiveModel
from chainrule.types import select

VOCABULARY = 37


@pytest.fixture(scope="module")
def model() -> AutoregressiveModel:
    """Widths that are not multiples of the lanes, so that every rest of a loop is executed."""
    torch.manual_seed(0)
    model = build("gpt", {"vocabulary": VOCABULARY, "layers": 2, "width": 44, "heads": 2, "context": 100})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    assert isinstance(model, AutoregressiveModel)
    return model.eval()


def text(rows: int, length: int) -> torch.Tensor:
    return torch.randint(VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("rows", [2, 3, 4, 5, 7, 8, 9, 16, 32])
@torch.inference_mode()
def test_a_row_is_the_same_to_the_last_bit_in_a_batch_of_any_size(model: AutoregressiveModel, rows: int) -> None:
    tokens = text(rows, 3)
    together, state = [], select(model.start().state, torch.zeros(rows, dtype=torch.int64))
    for column in range(3):
        logits, state = model.step(tokens[:, column], state)
        together.append(logits)
    for row in (0, rows // 2, rows - 1):
        state = model.start().state
        for column in range(3):
            logits, state = model.step(tokens[row, column : column + 1], state)
            assert torch.equal(logits[0], together[column][row])


@pytest.mark.parametrize("chunk", [2, 3, 5, 8, 31, 32])
@torch.inference_mode()
def test_a_text_is_the_same_to_the_last_bit_in_chunks_of_any_length(model: AutoregressiveModel, chunk: int) -> None:
    tokens = text(1, 64)
    state = model.start().state
    single = []
    for column in range(64):
        logits, state = model.step(tokens[:, column], state)
        single.append(logits[0, 0])
    state = model.start().state
    chunked: list[torch.Tensor] = []
    for part in torch.split(tokens, chunk, dim=1):
        logits, state = model.extend(part, state)
        chunked += list(logits[0])
    assert all(torch.equal(a, b) for a, b in zip(single, chunked, strict=True))
