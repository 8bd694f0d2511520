"""The measures that a context gate is given: compiled, they are those of torch."""

from __future__ import annotations

import pytest
import torch

from chainrule.compose.gate import MAX_SURPRISAL, measures_of
from chainrule.kernels.step import torch_only


@pytest.mark.parametrize("vocabulary", [3, 1024, 2500])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_compiled_measures_are_those_of_torch(vocabulary: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    parts = [(3 * torch.randn(2, 5, vocabulary, dtype=dtype)).log_softmax(-1) for _ in range(3)]
    parts[1][0, 0] = torch.full((vocabulary,), -1e4, dtype=dtype)  # a part that is certain
    parts[1][0, 0, 1] = 0.0
    parts.append(parts[0].mT.contiguous().mT)  # not contiguous
    with torch.no_grad():
        found = measures_of(parts)
        with torch_only():
            expected = measures_of(parts)
    torch.testing.assert_close(found, expected, rtol=1e-5 if dtype == torch.float32 else 1e-12, atol=1e-5)
    assert found.shape == (2, 5, 4, 3)
    assert float(found[..., 2].max()) <= MAX_SURPRISAL
