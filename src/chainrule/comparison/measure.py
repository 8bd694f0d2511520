"""How fast a model writes."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from chainrule.decoding import Sampling, stream_tokens
from chainrule.interface.base import AutoregressiveModel

WARM_UP = 8  # tokens written before the clock starts


def decoding_speed(
    model: AutoregressiveModel, prompt: Sequence[int], length: int, *, threads: int, seconds: float = 2.0
) -> float:
    """Tokens a second, one text at a time, sampled after a prompt; `length` tokens at most."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return _speed(model, prompt, length, seconds)
    finally:
        torch.set_num_threads(before)


def _speed(model: AutoregressiveModel, prompt: Sequence[int], length: int, seconds: float) -> float:
    written, began = 0, 0.0
    warm_up = min(WARM_UP, length // 2)
    for _ in stream_tokens(model, [prompt], length=length, sampling=Sampling(), seeds=[0]):
        written += 1
        now = time.perf_counter()
        if written == warm_up:
            began = now
        elif written > warm_up and now - began > seconds:
            break
    return (written - warm_up) / (time.perf_counter() - began)
