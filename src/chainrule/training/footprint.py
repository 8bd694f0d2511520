"""The memory that training takes, estimated from the shapes of the weights before anything is allocated.

Systems promise more memory than they have and end the process, or another one, when it is used; so a model that does
not fit is refused here, where the message can say what fits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from chainrule.config import TrainConfig
from chainrule.errors import ConfigError, in_units
from chainrule.families import family
from chainrule.interface.base import SparseUpdates, Trainable
from chainrule.memory import available_memory
from chainrule.training.shapes import build_shapes

ADAMW_COPIES, MUON_COPIES = 2, 2  # of the weights, in the state of an optimizer and while it takes a step
WIDTH_STEP = 64  # widths that are offered are multiples of it


class Footprint(NamedTuple):
    """Bytes that training takes."""

    weights: int  # weights with their gradients, optimizer state and averages
    activations: int  # what one part of a batch keeps for the backward pass; a rough, low estimate

    @property
    def total(self) -> int:
        return self.weights + self.activations


def require_memory(name: str, settings: Mapping[str, Any], train: TrainConfig, device: torch.device) -> None:
    """Raise ConfigError if a model with these settings cannot be trained in the memory of the device."""
    memory = available_memory(device)
    found = footprint(name, settings, train)
    if found is None or found.total <= memory:
        return
    raise ConfigError(
        f"training this {name} takes about {in_units(found.total)} of memory ({in_units(found.weights)} for weights, "
        f"gradients and optimizer state, {in_units(found.activations)} for activations), and {in_units(memory)} is "
        f"available; {_remedy(name, settings, train, found, memory)}"
    )


def footprint(name: str, settings: Mapping[str, Any], train: TrainConfig) -> Footprint | None:
    """Estimate the memory of training; None for count models and for families that cannot be built without weights."""
    if not issubclass(family(name), Trainable):
        return None
    try:
        model = build_shapes(name, settings)
    except (RuntimeError, TypeError, ValueError):  # parts of a pretrained model are read from a file
        return None
    assert isinstance(model, Trainable)
    return Footprint(_weight_bytes(model, train), _activation_bytes(model, train))


def _weight_bytes(model: Trainable, train: TrainConfig) -> int:
    averages = (1 if train.ema else 0) + (train.average_checkpoints or 0)
    tables = {id(table) for table in model.tables()}
    total = sum(buffer.nbytes for buffer in model.buffers())
    for parameter in model.parameters():
        copies = 1 + averages
        if parameter.requires_grad and not isinstance(model, SparseUpdates):
            muon = train.optimizer == "muon" and parameter.ndim == 2 and id(parameter) not in tables
            copies += 1 + (MUON_COPIES if muon else ADAMW_COPIES)
        total += copies * parameter.nbytes
    return total


def _activation_bytes(model: Trainable, train: TrainConfig) -> int:
    """A matrix keeps its input and output of every token. Logits are not counted: they are computed in chunks."""
    if isinstance(model, SparseUpdates):
        return 0
    tables = {id(table) for table in model.tables()}
    per_token = 0
    for parameter in model.parameters():
        if parameter.requires_grad and parameter.ndim >= 2:
            inside, outside = parameter.shape[1], 0 if id(parameter) in tables else parameter.shape[0]
            per_token += (inside + outside) * parameter.element_size()
    return per_token * math.ceil(train.batch_tokens / train.accumulate)


def _remedy(name: str, settings: Mapping[str, Any], train: TrainConfig, found: Footprint, memory: int) -> str:
    """Which setting fits."""
    if found.weights < memory:
        tokens = train.batch_tokens * (memory - found.weights) // found.activations
        if tokens >= 1:
            return f"set train.batch_tokens={tokens} or less"

    fields = family(name).Config.model_fields
    if "width" in fields:
        heads = settings.get("heads", fields["heads"].default if "heads" in fields else 1)
        step = math.lcm(WIDTH_STEP, heads if isinstance(heads, int) else 1)
        widest = settings.get("width", fields["width"].default)

        def fits(multiple: int) -> bool:
            one = footprint(name, {**settings, "width": multiple * step}, train)
            return one is not None and one.total <= memory

        if (largest := _largest(fits, int(widest) // step)) > 0:
            return f"model.width={largest * step} fits"
    return "use a smaller model: fewer layers, a shorter context or a smaller vocabulary"


def _largest(fits: Callable[[int], bool], limit: int) -> int:
    """The largest multiple of the step that fits, assuming that all smaller ones do; 0 if none does."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low
