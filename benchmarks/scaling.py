"""The cost of a decoding step against the length of the text, the vocabulary and the batch, for float32 and int8.

    python benchmarks/scaling.py [--threads 1] [--json]

A GPT of four layers and width 256 with random weights; one of the three varies, the others are 256 tokens, a vocabulary
of 1,000 and one row. A point is the fastest of three measurements of sixteen steps.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import NamedTuple, cast

import numpy as np
import torch

from chainrule.kernels import step
from chainrule.kernels.quantization import quantized
from chainrule.models.gpt import GPT, GPTConfig, GPTState
from timing import set_threads

STEPS, REPEATS = 16, 3
LENGTHS, VOCABULARIES, BATCHES = (256, 1024, 4096, 8192), (1_000, 10_000, 100_000), (1, 2, 4, 8, 16, 32, 64)
BASE = {"length": 256, "vocabulary": 1_000, "batch": 1}


class Measurement(NamedTuple):
    variable: str
    value: int
    weights: str
    milliseconds: float  # per token and row


def milliseconds(model: GPT, length: int, batch: int) -> float:
    """Of one step of one row, after `length` tokens."""
    program = step.program_of(model)
    assert program is not None
    state = cast(GPTState, model.make_room(model.initial(None, batch), length))
    for cache in (*state.keys, *state.values):
        cache.normal_()
    tokens, noise, rules = torch.zeros(batch, dtype=torch.int64), np.empty((batch, STEPS, 0)), np.zeros((batch, 4))
    found = []
    for _ in range(REPEATS):
        here = GPTState(state.keys, state.values, torch.full((batch,), length - STEPS))
        began = time.perf_counter()
        step.generate(program, tokens, here, noise, rules, step.NOTHING)
        found.append(time.perf_counter() - began)
    return min(found) / STEPS / batch * 1e3


def measure(variable: str, values: tuple[int, ...]) -> list[Measurement]:
    found = []
    for value in values:
        sizes = {**BASE, variable: value}
        torch.manual_seed(0)
        model = GPT(
            GPTConfig(vocabulary=sizes["vocabulary"], layers=4, width=256, heads=4, context=sizes["length"])
        ).eval()
        for weights, one in (("float32", model), ("int8", quantized(model))):
            found.append(Measurement(variable, value, weights, milliseconds(one, sizes["length"], sizes["batch"])))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    set_threads(arguments.threads)
    with torch.inference_mode():
        found = [
            *measure("length", LENGTHS),
            *measure("vocabulary", VOCABULARIES),
            *measure("batch", BATCHES),
        ]
    if arguments.json:
        print(json.dumps({"threads": arguments.threads, "rows": [row._asdict() for row in found]}, indent=2))
        return
    for variable, value, weights, cost in found:
        print(f"{variable:12}{value:8,} {weights:8}{cost:10.3f} ms per token and row")


if __name__ == "__main__":
    main()
