import pytest
import torch

from chainrule.nn.dropout import Dropout, VariationalDropout, apply_dropout


@pytest.mark.parametrize("rate", [0.1, 0.25, 0.5, 0.9])
def test_the_fraction_of_zeros_is_the_rate_and_the_mean_is_kept(rate: float) -> None:
    values = apply_dropout(torch.ones(400, 500), rate)
    survivors = values[values > 0]
    assert (values == 0).double().mean() == pytest.approx(rate, abs=0.005)
    assert survivors.min() == survivors.max()
    assert values.double().mean() == pytest.approx(1.0, abs=0.02)


def test_every_byte_of_a_random_number_is_uniform() -> None:
    """The highest byte of a non-negative 64-bit integer would be too small."""
    lost = apply_dropout(torch.ones(50_000, 8), 0.4) == 0
    torch.testing.assert_close(lost.double().mean(0), torch.full((8,), 0.4, dtype=torch.float64), rtol=0, atol=0.015)


def test_dropped_values_have_no_gradient() -> None:
    values = torch.randn(7, 5, requires_grad=True)
    found = apply_dropout(values, 0.5)
    found.sum().backward()
    assert values.grad is not None
    torch.testing.assert_close(values.grad * values, found)
    assert (values.grad == 0).any()


def test_a_rate_of_zero_and_evaluation_mode_are_the_identity() -> None:
    values = torch.randn(3, 4)
    assert apply_dropout(values, 0.0) is values
    assert Dropout(0.5).eval()(values) is values
    assert VariationalDropout(0.5).eval()(values) is values
    assert apply_dropout(torch.ones(0, 4), 0.5).shape == (0, 4)


def test_a_seed_determines_the_mask() -> None:
    drop = Dropout(0.5)
    torch.manual_seed(3)
    first, second = drop(torch.ones(99)), drop(torch.ones(99))
    torch.manual_seed(3)
    torch.testing.assert_close(drop(torch.ones(99)), first)
    assert not torch.equal(first, second)


def test_a_rate_close_to_one_stays_finite() -> None:
    assert apply_dropout(torch.ones(10_000), 0.9999).isfinite().all()


def test_variational_dropout_uses_one_mask_for_all_steps_of_a_row() -> None:
    lost = VariationalDropout(0.5)(torch.ones(6, 4, 50)) == 0
    assert torch.equal(lost, lost[:1].expand_as(lost))
    assert not torch.equal(lost[0, 0], lost[0, 1])
