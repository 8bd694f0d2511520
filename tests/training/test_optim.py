from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from chainrule.config import TrainConfig
from chainrule.testing import tiny_model
from chainrule.training.optim import CheckpointAverage, MovingAverage, Muon, build_optimizers, orthogonalise, set_rate


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 12, 5), (2, 5, 12)])
def test_orthogonalise_moves_every_singular_value_close_to_one(shape: tuple[int, ...]) -> None:
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalise(matrices))
    assert values.min() > 0.3
    assert values.max() < 1.4


@pytest.mark.parametrize("shape", [(2, 16, 64), (2, 16, 16), (1, 40, 16)])
def test_iterating_on_the_gram_matrix_gives_the_same_result(shape: tuple[int, ...]) -> None:
    """Against the textbook iteration, on singular values that span a factor of a thousand."""
    u, _, v = torch.linalg.svd(torch.randn(shape, generator=torch.Generator().manual_seed(2)), full_matrices=False)
    matrices = (u * torch.logspace(0, -3, u.shape[-1])) @ v
    expected = matrices / matrices.norm(dim=(-2, -1), keepdim=True)
    for _ in range(5):
        gram = expected @ expected.mT
        expected = 3.4445 * expected + (-4.7750 * gram + 2.0315 * gram @ gram) @ expected
    torch.testing.assert_close(orthogonalise(matrices), expected, rtol=0, atol=1e-3)


def test_orthogonalise_keeps_the_singular_vectors() -> None:
    matrix = torch.randn(6, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    u, _, v = torch.linalg.svd(matrix)
    rotated = u.T @ orthogonalise(matrix[None])[0] @ v.T
    assert (rotated - torch.diag(rotated.diag())).abs().max() < 1e-9


def test_orthogonalise_in_bfloat16_is_close_and_keeps_the_type() -> None:
    matrices = torch.randn(3, 48, 16, generator=torch.Generator().manual_seed(3))
    found = orthogonalise(matrices, half=True)
    assert found.dtype == torch.float32
    cosine = torch.cosine_similarity(found.flatten(1), orthogonalise(matrices).flatten(1))
    assert cosine.min() > 0.99


def test_muon_iterates_in_the_precision_of_the_training() -> None:
    model = tiny_model("gpt")
    for precision in ("float32", "bfloat16"):
        *_, muon = build_optimizers(model, TrainConfig(precision=precision))
        assert isinstance(muon, Muon)
        assert muon.half == (precision == "bfloat16")


def test_muon_updates_a_stack_of_matrices_like_single_ones() -> None:
    torch.manual_seed(0)
    together = [nn.Parameter(torch.randn(4, 6)) for _ in range(3)]
    alone = copy.deepcopy(together)
    gradients = [torch.randn(4, 6) for _ in together]
    one = Muon(together, 0.1, weight_decay=0.1)
    many = [Muon([matrix], 0.1, weight_decay=0.1) for matrix in alone]
    for _ in range(3):
        for first, second, gradient in zip(together, alone, gradients, strict=True):
            first.grad, second.grad = gradient.clone(), gradient.clone()
        one.step()
        for optimizer in many:
            optimizer.step()
    for first, second in zip(together, alone, strict=True):
        torch.testing.assert_close(first, second)


def test_muon_agrees_with_torch_up_to_its_precision() -> None:
    """torch.optim.Muon iterates in bfloat16, so the two agree to about two digits."""
    torch.manual_seed(0)
    ours = nn.Parameter(torch.randn(8, 8))
    theirs = nn.Parameter(ours.detach().clone())
    one = Muon([ours], 0.02, momentum=0.95)
    other = torch.optim.Muon([theirs], lr=0.02, momentum=0.95, weight_decay=0.0)
    for _ in range(5):
        gradient = torch.randn(8, 8)
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        one.step()
        other.step()
    torch.testing.assert_close(ours, theirs, atol=0.01, rtol=0.0)


@pytest.mark.parametrize("family", ["recurrent", "gpt"])
def test_tables_go_to_adamw_and_hidden_matrices_to_muon(family: str) -> None:
    model = tiny_model(family, vocabulary=11)  # differs from every width
    adamw, muon = build_optimizers(model, TrainConfig(optimizer="muon"))
    assert isinstance(muon, Muon)
    by_muon = {id(p) for group in muon.param_groups for p in group["params"]}
    by_adamw = {id(p) for group in adamw.param_groups for p in group["params"]}
    assert by_muon
    assert not by_muon & by_adamw
    assert by_muon | by_adamw == {id(parameter) for parameter in model.parameters()}
    assert not by_muon & {id(table) for table in model.tables()}
    vocabulary_sized = [p for p in model.parameters() if {model.vocabulary, model.vocabulary + 1} & set(p.shape)]
    assert not by_muon & {id(parameter) for parameter in vocabulary_sized}


def test_weight_decay_excludes_vectors() -> None:
    [adamw] = build_optimizers(tiny_model("gpt", "gpt2"), TrainConfig(optimizer="adamw", weight_decay=0.3))
    for group in adamw.param_groups:
        assert group["weight_decay"] == (0.3 if group["params"][0].ndim > 1 else 0.0)


def test_the_rate_scales_every_group_from_its_own_peak() -> None:
    optimizers = build_optimizers(tiny_model("gpt"), TrainConfig(learning_rate=0.004, muon_learning_rate=0.02))
    set_rate(optimizers, 0.5)
    assert {group["lr"] for optimizer in optimizers for group in optimizer.param_groups} == {0.002, 0.01}


def test_the_moving_average_follows_the_weights_and_replaces_them_temporarily() -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    mean = MovingAverage(model, decay=0.9)
    nn.init.ones_(model.weight)
    for _ in range(200):
        mean.update(model)
    assert mean.weights[0].item() == pytest.approx(1.0, abs=1e-6)
    nn.init.constant_(model.weight, 5.0)
    with mean.swapped_in(model):
        assert model.weight.item() == pytest.approx(1.0, abs=1e-6)
    assert model.weight.item() == 5.0


def test_the_checkpoint_average_is_the_mean_of_the_last_few_weights() -> None:
    model = nn.Linear(1, 1, bias=False)
    mean = CheckpointAverage(3)
    for value in (100.0, 1.0, 2.0, 6.0):
        nn.init.constant_(model.weight, value)
        mean.keep(model)
    nn.init.constant_(model.weight, 7.0)
    with mean.swapped_in(model):
        assert model.weight.item() == 3.0
    assert model.weight.item() == 7.0
