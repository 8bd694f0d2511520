"""The size of a model for its budget: width, batch, context and dropout, from the computing time and the data."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

import torch

from chainrule.config import TrainConfig
from chainrule.families import build, family
from chainrule.interface.base import NeuralModel

WIDTHS = (32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 448, 512, 640, 768, 1024)
TOKENS_PER_PARAMETER = 2.0  # in training: with fewer, a model is too large for its budget; with more, too small
EFFICIENCY = 0.45  # speed of training as a fraction of that of a plain matrix product
MIN_STEPS = 1200
MIN_BATCH_TOKENS = 512  # smaller batches do not use the processor well
MIN_ROWS = 8  # in a batch; the context is shortened to reach it
MANY_EPOCHS = 4.0  # passes over the data from which on a model needs dropout


def width_for(name: str, model_settings: Mapping[str, Any], operations: float) -> int:
    """The width of a family that suits a budget of floating-point operations.

    A model of P parameters takes about 6 P operations per training token. The best size for a budget is near the one
    at which it sees a few tokens per parameter (Hoffmann et al., 2022, find about twenty for large corpora and one
    epoch; small corpora with several epochs need fewer).
    """
    wanted = math.sqrt(operations / 6 / TOKENS_PER_PARAMETER)
    return min(WIDTHS, key=lambda width: abs(math.log(parameter_count(name, model_settings, width) / wanted)))


def parameter_count(name: str, model_settings: Mapping[str, Any], width: int) -> int:
    """Number of parameters of a family at a width, computed without allocating them."""
    with torch.device("meta"):
        model = build(name, {**model_settings, "width": width})
    return sum(parameter.numel() for parameter in model.parameters())


def operations_per_second(threads: int, seconds: float = 0.3) -> float:
    """Floating-point operations per second expected in training: a fraction of the speed of a matrix product."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        left, right = torch.randn(512, 512), torch.randn(512, 512)
        torch.mm(left, right)
        done, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            torch.mm(left, right)
            done += 1
        return EFFICIENCY * done * 2 * 512**3 / (time.perf_counter() - began)
    finally:
        torch.set_num_threads(before)


def dropout_for(epochs: float) -> float:
    """Dropout probability: higher for more passes over the same data."""
    if epochs < MANY_EPOCHS:
        return 0.0
    return 0.1 if epochs < 2 * MANY_EPOCHS else 0.2 if epochs < 4 * MANY_EPOCHS else 0.3


def batch_tokens_for(name: str, seen: float) -> int:
    """Tokens per step: the family's default, or fewer if `seen` training tokens would give too few steps."""
    kind = family(name)
    assert issubclass(kind, NeuralModel)
    default: int = kind.recipe.get("batch_tokens", TrainConfig().batch_tokens)
    wanted = int(2 ** round(math.log2(max(1.0, seen) / MIN_STEPS)))
    return max(MIN_BATCH_TOKENS, min(default, wanted))


def budget_settings(name: str, epochs: float, batch_tokens: int) -> dict[str, Any]:
    """Dropout and context of a neural family, which follow from the number of epochs and the batch size."""
    settings: dict[str, Any] = {"dropout": dropout_for(epochs)}
    context = family(name).Config.model_fields.get("context")
    if context is not None:
        settings["context"] = min(context.default, max(1, batch_tokens // MIN_ROWS))
    return settings
