"""The type that training computes in: that of the weights, or 16 bits where the hardware multiplies those faster."""

from __future__ import annotations

from functools import cache

import torch

from chainrule.config import TrainConfig
from chainrule.interface.base import Trainable

MIN_PARAMETERS = 100_000  # of a model that a CPU trains faster in bfloat16; conversions outweigh the gain below


def computing_type(settings: TrainConfig, model: Trainable) -> torch.dtype | None:
    """The type that is set, or bfloat16 if the hardware is faster with it; none: that of the weights."""
    if settings.precision == "auto":
        large = model.device.type != "cpu" or model.used_parameters() >= MIN_PARAMETERS
        return torch.bfloat16 if large and multiplies_bfloat16(model.device.type) else None
    return {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}[settings.precision]


@cache
def multiplies_bfloat16(device: str) -> bool:
    """Whether this type of device multiplies matrices of bfloat16 by instructions of its own."""
    if device == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device != "cpu":
        return False
    import llvmlite.binding as llvm

    features = llvm.get_host_cpu_features()
    return bool(features.get("avx512bf16") or features.get("amx-bf16"))
