"""The cross-entropy of a large vocabulary in chunks equals that of all logits at once."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from chainrule import objectives
from chainrule.nn import chunked
from chainrule.nn.chunked import chunked_cross_entropy
from chainrule.objectives import Likelihood, SmoothedLikelihood
from chainrule.testing.tiny import tiny_model

ROWS, WIDTH, VOCABULARY = 13, 6, 11


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_loss_and_its_gradients_are_those_of_all_logits(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, has_bias: bool, smoothing: float
) -> None:
    monkeypatch.setattr(chunked, "CHUNK_LOGITS", 3 * VOCABULARY)
    torch.manual_seed(0)
    hidden, weight, bias = (
        torch.randn(*shape, dtype=dtype, requires_grad=True)
        for shape in ((ROWS, WIDTH), (VOCABULARY, WIDTH), (VOCABULARY,))
    )
    used = [hidden, weight, *([bias] if has_bias else [])]
    targets = torch.randint(VOCABULARY, (ROWS,))
    logits = F.linear(hidden, weight, bias if has_bias else None)
    plain = F.cross_entropy(logits, targets, reduction="sum", label_smoothing=smoothing)
    found = chunked_cross_entropy(hidden, weight, bias if has_bias else None, targets, label_smoothing=smoothing)
    torch.testing.assert_close(found, plain)
    for ours, theirs in zip(torch.autograd.grad(found / 7, used), torch.autograd.grad(plain / 7, used), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16], ids=str)
def test_in_autocast_products_are_in_half_precision_and_sums_are_not(
    monkeypatch: pytest.MonkeyPatch, half: torch.dtype
) -> None:
    monkeypatch.setattr(chunked, "CHUNK_LOGITS", 300 * VOCABULARY)
    torch.manual_seed(0)
    rows = 40_000  # whose losses sum to more than float16 has
    hidden, weight, bias = (
        torch.randn(*shape, requires_grad=True) for shape in ((rows, WIDTH), (VOCABULARY, WIDTH), (VOCABULARY,))
    )
    targets = torch.randint(VOCABULARY, (rows,))
    plain = F.cross_entropy(F.linear(hidden, weight, bias), targets, reduction="sum")
    with torch.autocast("cpu", dtype=half):
        found = chunked_cross_entropy(hidden, weight, bias, targets)
    assert found.dtype == torch.float32
    assert found > torch.finfo(torch.float16).max
    torch.testing.assert_close(found, plain, rtol=1e-3, atol=0)
    used = [hidden, weight, bias]
    for ours, theirs in zip(torch.autograd.grad(found, used), torch.autograd.grad(plain, used), strict=True):
        assert ours.dtype == torch.float32
        assert float((ours - theirs).norm() / theirs.norm()) < 0.02


@pytest.mark.parametrize("objective", [Likelihood(), SmoothedLikelihood(0.1)])
def test_a_large_batch_trains_as_a_small_one(monkeypatch: pytest.MonkeyPatch, objective: objectives.Objective) -> None:
    model = tiny_model("gpt", "modern")
    torch.manual_seed(0)
    hidden = torch.randn(20, model.config.width, dtype=next(model.parameters()).dtype)
    targets = torch.randint(model.vocabulary, (20,))
    gradients = []
    for most in (1 << 23, 0):
        monkeypatch.setattr(objectives, "MOST_LOGITS", most)
        model.zero_grad()
        objective(model, hidden, targets).backward()
        gradients.append({name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, msg=name)
