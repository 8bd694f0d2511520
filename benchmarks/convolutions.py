"""Cached against uncached decoding of the convolutional families; and our causal convolution against conv1d.

    python benchmarks/convolutions.py [--threads 1] [--repeats 5] [--length 1000] [--clock wall|cpu] [--json]

Decoding: default sizes, vocabulary of 65, one token at a time after a prefix of `length` tokens. With the cache a
token is one `step`; without it (`Recomputed`) the whole prefix is processed again. The last column is the time of a
cached token after ten tokens: for `causal_conv` it must be the same, for `attentive_conv` only attention adds to it.

Convolution: forward and backward of the two dilated causal convolutions in a gated layer, (B, T, D) to (B, T, 2 D), of
128 channels on 8 rows of 256: concatenated taps and two matrix products (`nn.convolution`), or one `conv1d`. Timing is
by interleaved rounds (see timing.py).
"""

from __future__ import annotations

import argparse
import json
import statistics
from typing import NamedTuple

import torch
import torch.nn.functional as F

from chainrule.families import build
from chainrule.interface.base import AutoregressiveModel, Recomputed
from chainrule.nn.convolution import DelayLine
from chainrule.types import State
from timing import CLOCKS, Clock, Work, medians, set_threads, time_rounds

VOCABULARY = 65
FAMILIES = ("causal_conv", "attentive_conv")
BATCHES = (1, 16)
SHORT = 10  # tokens of the short prefix
CACHED_STEPS = 20  # a single step is too short to time
WIDTH, ROWS, SEGMENT = 128, 8, 256
SHAPES = ((2, 1), (3, 1), (3, 16))  # kernel, dilation


class Decoding(NamedTuple):
    family: str
    batch: int
    cached: float  # milliseconds per token of every row
    recomputed: float
    ratio: float  # recomputed / cached
    short: float  # cached, after SHORT tokens


class Convolution(NamedTuple):
    kernel: int
    dilation: int
    concatenated: float  # milliseconds
    conv1d: float
    ratio: float  # conv1d / concatenated


def read(model: AutoregressiveModel, ids: torch.Tensor) -> State:
    return model.extend(ids, model.start(batch_size=len(ids)).state).state


def stepping(model: AutoregressiveModel, state: State, rows: int, steps: int) -> Work:
    """Decode some tokens from a state; caches are modified in place but positions are not, so all rounds are alike."""
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
    measured = [[a / CACHED_STEPS, b, c / CACHED_STEPS] for a, b, c in time_rounds(works, repeats, clock)]
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

    def concatenated() -> torch.Tensor:
        met = line.read(x, ring, positions).met
        y = (met @ value) * (met @ gate)
        y.backward(torch.ones_like(y))
        return y

    def conv1d() -> torch.Tensor:
        padded = F.pad(x.mT, (line.receptive_field, 0))
        values, gates = F.conv1d(padded, filters, dilation=dilation).mT.chunk(2, dim=-1)
        y = values * gates
        y.backward(torch.ones_like(y))
        return y

    torch.testing.assert_close(concatenated(), conv1d(), rtol=1e-3, atol=1e-2)
    measured = time_rounds([concatenated, conv1d], repeats, clock)
    ours, theirs = (1000 * value for value in medians(measured))
    return Convolution(kernel, dilation, ours, theirs, statistics.median(b / a for a, b in measured))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--length", type=int, default=1000)
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: with one thread only")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.clock == "cpu" and arguments.threads != 1:
        parser.error("--clock cpu adds up the time of all threads; use it with --threads 1")
    set_threads(arguments.threads)
    clock, repeats = CLOCKS[arguments.clock], arguments.repeats
    decoded = [decoding(family, rows, arguments.length, repeats, clock) for family in FAMILIES for rows in BATCHES]
    convolved = [convolution(kernel, dilation, repeats, clock) for kernel, dilation in SHAPES]
    if arguments.json:
        about = {"threads": arguments.threads, "clock": arguments.clock, "torch": torch.__version__}
        rows = {"decoding": [d._asdict() for d in decoded], "convolution": [c._asdict() for c in convolved]}
        print(json.dumps({**about, "length": arguments.length, **rows}, indent=2))
        return
    print(f"{arguments.threads} thread(s), {arguments.clock} clock, torch {torch.__version__}; milliseconds")
    print(f"per token after {arguments.length} tokens; last column: after {SHORT}")
    print(f"{'family':16}{'batch':>6}{'cached':>10}{'recomputed':>12}{'ratio':>8}{'short':>10}")
    for family, batch, cached, recomputed, ratio, short in decoded:
        print(f"{family:16}{batch:6}{cached:10.3f}{recomputed:12.2f}{ratio:8.0f}{short:10.3f}")
    print(f"{'kernel':>6}{'dilation':>10}{'concatenated':>14}{'conv1d':>10}{'ratio':>8}")
    for kernel, dilation, ours, theirs, ratio in convolved:
        print(f"{kernel:6}{dilation:10}{ours:14.2f}{theirs:10.2f}{ratio:8.2f}")


if __name__ == "__main__":
    main()
