"""Decoding with a cache against decoding without, for the convolutional families; and convolution against conv1d.

    python benchmarks/convolutions.py [--threads 1] [--repeats 5] [--length 1000] [--clock wall|cpu] [--json]

Decoding: default sizes, 65 characters, rows that have read `length` tokens, a token at a time. With the cache a token
is one `step`; without it (`Recomputed`) all that was read is read again. Beside it stands the price of a cached token
after ten tokens: for `causal_conv` it must be the same, for `attentive_conv` only attention adds to it.

Convolution: forward and backward of the two dilated causal convolutions in a gated layer, (B, T, D) to (B, T, 2 D), of
128 channels on 8 rows of 256: taps laid side by side and two products (`nn.convolution`), or one `conv1d`.

All ways are measured in turns; a figure is a median, and a ratio is the median of the ratios of neighbouring turns, so
that a busy moment of the machine, which touches neighbours alike, does not decide it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from typing import NamedTuple

import torch
import torch.nn.functional as F

from chainrule.families import build
from chainrule.interface.base import AutoregressiveModel, Recomputed
from chainrule.nn.convolution import DelayLine
from chainrule.types import State
from turns import CLOCKS, Clock, Work, medians, turns

VOCABULARY = 65
FAMILIES = ("causal_conv", "attentive_conv")
BATCHES = (1, 16)
SHORT = 10  # tokens read before the cheap end of the comparison
CACHED_STEPS = 20  # a single step is too short for a clock
WIDTH, ROWS, SEGMENT = 128, 8, 256
SHAPES = ((2, 1), (3, 1), (3, 16))  # kernel, dilation


class Decoding(NamedTuple):
    family: str
    batch: int
    cached: float  # milliseconds for a token of every row
    recomputed: float
    ratio: float  # recomputed / cached
    short: float  # cached, after SHORT tokens


class Convolution(NamedTuple):
    kernel: int
    dilation: int
    side_by_side: float  # milliseconds
    conv1d: float
    ratio: float  # conv1d / side_by_side


def read(model: AutoregressiveModel, ids: torch.Tensor) -> State:
    return model.extend(ids, model.start(batch_size=len(ids)).state).state


def stepping(model: AutoregressiveModel, state: State, rows: int, steps: int) -> Work:
    """Writes some tokens after a state; caches are written in place, positions are not, so each turn begins alike."""
    token = torch.zeros(rows, dtype=torch.int64)

    def work() -> None:
        now = state
        for _ in range(steps):
            now = model.step(token, now).state

    return work


@torch.inference_mode()
def decoding(family: str, rows: int, length: int, repeats: int, clock: Clock) -> Decoding:
    torch.manual_seed(0)
    room = {"context": length + CACHED_STEPS + 1} if family == "attentive_conv" else {}
    model = build(family, {"vocabulary": VOCABULARY, **room}).eval()
    slow = Recomputed(model)
    ids = torch.randint(VOCABULARY, (rows, length))
    token = torch.zeros(rows, dtype=torch.int64)
    torch.testing.assert_close(
        model.step(token, read(model, ids)).logits, slow.step(token, (ids,)).logits, rtol=0, atol=1e-3
    )
    works = [
        stepping(model, read(model, ids), rows, CACHED_STEPS),
        stepping(slow, (ids,), rows, 1),
        stepping(model, read(model, ids[:, :SHORT]), rows, CACHED_STEPS),
    ]
    measured = [[a / CACHED_STEPS, b, c / CACHED_STEPS] for a, b, c in turns(works, repeats, clock)]
    cached, recomputed, short = (1000 * value for value in medians(measured))
    return Decoding(family, rows, cached, recomputed, statistics.median(b / a for a, b, _ in measured), short)


def convolution(kernel: int, dilation: int, repeats: int, clock: Clock) -> Convolution:
    torch.manual_seed(0)
    line = DelayLine(WIDTH, kernel, dilation)
    x = torch.randn(ROWS, SEGMENT, WIDTH, requires_grad=True)
    value, gate = (torch.randn(kernel * WIDTH, WIDTH, requires_grad=True) for _ in range(2))
    both = torch.cat([value.detach(), gate.detach()], dim=1).view(kernel, WIDTH, 2 * WIDTH)
    filters = both.permute(2, 1, 0).contiguous().requires_grad_()  # (2 D, D, k)
    ring, positions = line.initial(ROWS, value), torch.zeros(ROWS, dtype=torch.int64)

    def side_by_side() -> torch.Tensor:
        met = line.read(x, ring, positions).met
        y = (met @ value) * (met @ gate)
        y.backward(torch.ones_like(y))
        return y

    def conv1d() -> torch.Tensor:
        values, gates = F.conv1d(F.pad(x.mT, (line.reach, 0)), filters, dilation=dilation).mT.chunk(2, dim=-1)
        y = values * gates
        y.backward(torch.ones_like(y))
        return y

    torch.testing.assert_close(side_by_side(), conv1d(), rtol=1e-3, atol=1e-2)
    measured = turns([side_by_side, conv1d], repeats, clock)
    ours, theirs = (1000 * value for value in medians(measured))
    return Convolution(kernel, dilation, ours, theirs, statistics.median(b / a for a, b in measured))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--length", type=int, default=1000)
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: only with one thread")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.clock == "cpu" and arguments.threads != 1:
        parser.error("--clock cpu adds up the time of all threads; use it with --threads 1")
    if os.environ.get("OPENBLAS_NUM_THREADS") != str(arguments.threads):  # NumPy reads it once, when it is loaded
        os.environ["OPENBLAS_NUM_THREADS"] = str(arguments.threads)
        os.execv(sys.executable, [sys.executable, *sys.argv])
    torch.set_num_threads(arguments.threads)
    clock, repeats = CLOCKS[arguments.clock], arguments.repeats
    decoded = [decoding(family, rows, arguments.length, repeats, clock) for family in FAMILIES for rows in BATCHES]
    convolved = [convolution(kernel, dilation, repeats, clock) for kernel, dilation in SHAPES]
    if arguments.json:
        about = {"threads": arguments.threads, "clock": arguments.clock, "torch": torch.__version__}
        rows = {"decoding": [d._asdict() for d in decoded], "convolution": [c._asdict() for c in convolved]}
        print(json.dumps({**about, "length": arguments.length, **rows}, indent=2))
        return
    print(f"{arguments.threads} thread(s), {arguments.clock} clock, torch {torch.__version__}; milliseconds")
    print(f"a token after {arguments.length} tokens; in the last column after {SHORT}")
    print(f"{'family':16}{'batch':>6}{'cached':>10}{'recomputed':>12}{'ratio':>8}{'short':>10}")
    for family, batch, cached, recomputed, ratio, short in decoded:
        print(f"{family:16}{batch:6}{cached:10.3f}{recomputed:12.2f}{ratio:8.0f}{short:10.3f}")
    print(f"{'kernel':>6}{'dilation':>10}{'side by side':>14}{'conv1d':>10}{'ratio':>8}")
    for kernel, dilation, ours, theirs, ratio in convolved:
        print(f"{kernel:6}{dilation:10}{ours:14.2f}{theirs:10.2f}{ratio:8.2f}")


if __name__ == "__main__":
    main()
