"""Dropout of vectors and of attention weights, forward and backward, against PyTorch's.

    python benchmarks/dropout.py [--threads 1] [--repeats 15] [--clock cpu] [--json]

The shapes are those of a small Transformer in training: vectors of 5,000 tokens, attention of 100 rows with 4 heads.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from chainrule.nn.attention import BidirectionalAttention
from chainrule.nn.dropout import apply_dropout
from chainrule.training.process import keep_freed_memory
from timing import CLOCKS, compare_speed

RATE = 0.2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    keep_freed_memory()

    x = torch.randn(5000, 192, requires_grad=True)
    heads = tuple(torch.randn(100, 4, 40, 48, requires_grad=True) for _ in range(3))
    variants: dict[str, tuple[Callable[[], Tensor], Callable[[], Tensor]]] = {
        "vectors": (lambda: apply_dropout(x, RATE), lambda: F.dropout(x, RATE)),
        "attention": (
            lambda: BidirectionalAttention(None, RATE)(*heads),
            lambda: F.scaled_dot_product_attention(*heads, dropout_p=RATE),
        ),
    }
    found = {}
    for name, (ours, theirs) in variants.items():
        mine, peer, ratio = compare_speed(
            lambda forward=ours: forward().sum().backward(),
            lambda forward=theirs: forward().sum().backward(),
            1.0,
            arguments.repeats,
            CLOCKS[arguments.clock],
        )
        found[name] = {"milliseconds": 1000 / mine, "torch": 1000 / peer, "speedup": ratio}
    if arguments.json:
        print(json.dumps({"threads": arguments.threads, "torch": torch.__version__, "rows": found}, indent=2))
        return
    for name, row in found.items():
        print(f"{name:10} {row['milliseconds']:7.2f} ms, torch {row['torch']:7.2f} ms: speed-up {row['speedup']:.2f}")


if __name__ == "__main__":
    main()
