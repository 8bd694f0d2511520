"""Models without memory for their weights, to count parameters before anything is allocated."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from chainrule.families import build, family
from chainrule.interface.base import Model

RANDOM = ("normal_", "uniform_", "trunc_normal_", "orthogonal_")


def build_shapes(name: str, settings: Mapping[str, Any]) -> Model:
    """A new model of a family whose weights have shapes and no values."""
    family(name)  # imports its modules, whose constants must have values
    with torch.device("meta"), _NoInitialisation(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # pretrained weights that are read have nowhere to go
        return build(name, settings)


class _NoInitialisation(TorchFunctionMode):
    """Leaves weights as they are: PyTorch loads its compiler, for seconds, to initialise tensors without memory."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if "out" in given:
            return given["out"]
        if getattr(func, "__name__", "") in RANDOM:
            return args[0] if args else given["tensor"]
        if func is torch.arange:  # tables of positions have values
            return func(*args, **{"device": "cpu", **given})
        return func(*args, **given)
