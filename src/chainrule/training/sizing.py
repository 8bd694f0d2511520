"""The size of a model for its budget: shape, batch, context and dropout, from the computing time and the data."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from chainrule.config import TrainConfig
from chainrule.errors import ConfigError
from chainrule.families import family
from chainrule.interface.base import Trainable
from chainrule.training.shapes import build_shapes

WIDTHS = (32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 448, 512, 640, 768, 1024)
TOKENS_PER_PARAMETER = 2.0  # in training: with fewer, a model is too large for its budget; with more, too small
EFFICIENCY = 0.45  # speed of training as a fraction of that of a plain matrix product
MIN_STEPS = 1200
MIN_BATCH_TOKENS = 512  # smaller batches do not use the processor well
MIN_ROWS = 8  # in a batch; the context or the segment is shortened to reach it
MIN_LAYERS = 2
SUITABLE = 1.5  # factor between two numbers of parameters that suit the same budget
MANY_EPOCHS = 4.0  # passes over the data from which on a model needs dropout


class Sizes(NamedTuple):
    """Settings that follow from the budget and the data."""

    model: dict[str, Any]
    train: dict[str, Any]


def sizes_for(
    name: str,
    known: Mapping[str, Any],
    *,
    train_tokens: int,
    operations: float | None,
    tokens: int | None = None,
    model: Mapping[str, Any],
    train: Mapping[str, Any],
) -> Sizes:
    """The settings of a family for a budget of `operations`, or of training `tokens` at the family's own size.

    `known` are the model settings that follow from the data; `model` and `train` are given by the user and take
    precedence.
    """
    model, train = dict(model), dict(train)
    seen = float(tokens or 0)
    if operations is not None:
        if "width" not in model:
            model = {**shape_for(name, {**known, **model}, operations), **model}
        seen = operations / 6 / parameter_count(name, {**known, **model})
    train.setdefault("batch_tokens", batch_tokens_for(name, seen))
    return Sizes({**budget_settings(name, seen / train_tokens, train["batch_tokens"]), **model}, train)


def sizes_for_minutes(
    name: str,
    known: Mapping[str, Any],
    *,
    train_tokens: int,
    operations: float,
    model: Mapping[str, Any],
    train: Mapping[str, Any],
) -> Sizes:
    """As `sizes_for`, but only what differs from the defaults of the family, where these do not suit the budget.

    The defaults of a family have been tuned as a whole: where their number of parameters is near the one for the
    budget, only the dropout follows from the number of epochs.
    """
    own = {**known, **model}
    if abs(math.log(parameter_count(name, own) / wanted_parameters(operations))) > math.log(SUITABLE):
        chosen = sizes_for(name, known, train_tokens=train_tokens, operations=operations, model=model, train=train)
        return Sizes(
            {key: value for key, value in chosen.model.items() if key not in model},
            {key: value for key, value in chosen.train.items() if key not in train},
        )
    dropout = dropout_for(operations / 6 / parameter_count(name, own) / train_tokens)
    return Sizes({"dropout": dropout} if dropout and "dropout" not in model else {}, {})


def sizes_for_examples(
    name: str,
    known: Mapping[str, Any],
    *,
    train_tokens: int,
    operations: float | None,
    tokens: int | None = None,
    model: Mapping[str, Any],
    train: Mapping[str, Any],
) -> Sizes:
    """As `sizes_for`, for models of labels and of translations: only what differs from the defaults of the family.

    The context stays, because it limits the length of whole examples. Classifiers keep their dropout, since they soon
    overfit, and the width of mere word vectors, which cost nothing to look up; a pretrained encoder has its own size.
    """
    model, train = dict(model), dict(train)
    if model.get("features") or model.get("encoder_run"):
        return Sizes(model, train)
    fields = family(name).Config.model_fields
    field = "width" if "width" in fields else "embedding"
    own = {**known, **model}
    count = parameter_count(name, own, with_tables=field == "width")
    seen = float(tokens or 0)
    if operations is not None and (field == "width" or model.get("encoder") == "attentive_conv"):
        unsuitable = abs(math.log(count / wanted_parameters(operations))) > math.log(SUITABLE)
        if unsuitable and field not in model:
            model = {**shape_for(name, own, operations, field=field), **model}
            count = parameter_count(name, {**known, **model}, with_tables=field == "width")
    if operations is not None:
        seen = operations / 6 / count
    train.setdefault("batch_tokens", batch_tokens_for(name, seen))
    if field == "width" and "dropout" in fields:
        model.setdefault("dropout", dropout_for(seen / train_tokens))
    return Sizes(model, train)


def wanted_parameters(operations: float) -> float:
    """The number of parameters that suits a budget of floating-point operations.

    A model of P parameters takes about 6 P operations per training token. The best size for a budget is near the one
    at which it sees a few tokens per parameter (Hoffmann et al., 2022, find about twenty for large corpora and one
    epoch; small corpora with several epochs need fewer).
    """
    return math.sqrt(operations / 6 / TOKENS_PER_PARAMETER)


def shape_for(name: str, settings: Mapping[str, Any], operations: float, *, field: str = "width") -> dict[str, int]:
    """The width that suits a budget, and the layers of a family whose depth follows from its width.

    `field` is the setting of the width; tables of a model with another one than "width" are only looked up.
    """
    wanted, best, least = wanted_parameters(operations), {}, math.inf
    for width in WIDTHS:
        shape = {field: width, **_layers(name, settings, width)}
        with contextlib.suppress(ConfigError):  # a width that does not fit the user's settings, such as the heads
            count = parameter_count(name, {**settings, **shape}, with_tables=field == "width")
            distance = abs(math.log(count / wanted))
            if distance >= least:  # wider models are only larger
                break
            best, least = shape, distance
    return best


def _layers(name: str, settings: Mapping[str, Any], width: int) -> dict[str, int]:
    kind = family(name)
    assert issubclass(kind, Trainable)
    if kind.width_per_layer is None or "layers" in settings:
        return {}
    most: int = kind.Config.model_fields["layers"].default
    return {"layers": min(most, max(MIN_LAYERS, round(width / kind.width_per_layer)))}


def parameter_count(name: str, settings: Mapping[str, Any], *, with_tables: bool = True) -> float:
    """Number of parameters that a training step uses, computed without allocating them; with or without the tables."""
    model = build_shapes(name, settings)
    assert isinstance(model, Trainable)
    tables = 0 if with_tables else sum(table.numel() for table in model.tables())
    return model.used_parameters() - tables


def operations_per_second(threads: int, clock: Callable[[], float] = time.perf_counter, seconds: float = 0.3) -> float:
    """Floating-point operations per second expected in training: a fraction of the speed of a matrix product.

    The seconds are those of the clock that the training has, so that other load on the machine does not change the
    size of a model whose budget is CPU time.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        left, right = torch.randn(512, 512), torch.randn(512, 512)
        torch.mm(left, right)
        done, began = 0, clock()
        while clock() - began < seconds:
            torch.mm(left, right)
            done += 1
        return EFFICIENCY * done * 2 * 512**3 / (clock() - began)
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
    assert issubclass(kind, Trainable)
    default: int = kind.recipe.get("batch_tokens", TrainConfig().batch_tokens)
    wanted = int(2 ** round(math.log2(max(1.0, seen) / MIN_STEPS)))
    return max(MIN_BATCH_TOKENS, min(default, wanted))


def budget_settings(name: str, epochs: float, batch_tokens: int) -> dict[str, Any]:
    """Dropout and length of the rows of a neural family, which follow from the number of epochs and the batch size."""
    fields = family(name).Config.model_fields
    settings: dict[str, Any] = {"dropout": dropout_for(epochs)} if "dropout" in fields else {}
    for length in ("context", "segment"):
        if length in fields:
            settings[length] = min(fields[length].default, max(1, batch_tokens // MIN_ROWS))
    return settings
