"""Models with weights in int8: a quarter of the memory to read per token, for a small loss of accuracy.

Each output of a linear map has a scale of its own. Products are computed in integers where the processor can do that
fast (`integer_products`), otherwise weights are converted in registers and sums are in float32. Norms, biases, and
embeddings that are not also a readout keep their type.
"""

from __future__ import annotations

import copy
from typing import TypeVar

from torch import nn

from chainrule.errors import ConfigError
from chainrule.kernels import step

Model = TypeVar("Model", bound=nn.Module)


def is_quantizable(model: nn.Module) -> bool:
    """Whether a model has a compiled step that can read int8 weights."""
    return isinstance(model, step.Compilable) and step.has_program(model)


def quantized(model: Model) -> Model:
    """A copy of the model whose compiled steps read int8 weights; its modules have the same, rounded, weights."""
    if not is_quantizable(model):
        raise ConfigError(
            f"{type(model).__name__} has no compiled decoding step, which int8 weights need; use --weights float32"
        )
    found = copy.deepcopy(model).eval()
    step.store_in_int8(found)
    return found
