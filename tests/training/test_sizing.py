"""The size of a model follows from its budget and its data."""

from __future__ import annotations

from chainrule.training.sizing import dropout_for, parameter_count, width_for

SIZES = {"vocabulary": 65}


def test_a_larger_budget_gives_a_wider_model():
    widths = [width_for("gpt", SIZES, operations) for operations in (1e11, 1e13, 1e15)]
    assert widths == sorted(set(widths))
    assert parameter_count("gpt", SIZES, widths[1]) < parameter_count("gpt", SIZES, widths[2])


def test_dropout_increases_with_the_number_of_epochs():
    assert [dropout_for(epochs) for epochs in (1, 5, 10, 40)] == [0.0, 0.1, 0.2, 0.3]
