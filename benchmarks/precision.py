"""Training in bfloat16 against float32 on this processor: forward and backward pass of the families of a comparison.

    python benchmarks/precision.py [--threads 1] [--repeats 9] [--clock cpu] [--json]

The weights are float32 on both sides. `train.precision=auto` computes in bfloat16 where this is faster on processors
that multiply it by instructions of their own; on others it is slower.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from typing import Any

import torch

from chainrule.families import build
from chainrule.interface.base import NeuralModel
from chainrule.training.precision import multiplies_bfloat16
from chainrule.types import Batch, Sequences
from timing import CLOCKS, compare_speed, set_threads

VOCABULARY, ROWS, LENGTH = 65, 8, 128
MODELS: list[tuple[str, dict[str, Any]]] = [
    *(("gpt", {"layers": 2, "heads": 2, "width": width}) for width in (32, 64, 96, 128, 192)),
    *((name, {"width": width}) for name in ("causal_conv", "attentive_conv", "finite_memory") for width in (32, 64)),
    ("recurrent", {"width": 128}),
    ("hybrid_language", {"width": 128}),
]


def train(model: NeuralModel, batch: Batch, *, half: bool) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
        loss = -model.log_prob(batch).sum()
    loss.backward()  # type: ignore[no-untyped-call]
    model.zero_grad()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    set_threads(arguments.threads)
    batch = Batch(Sequences.full(torch.randint(VOCABULARY, (ROWS, LENGTH), generator=torch.Generator().manual_seed(0))))
    rows = []
    for name, settings in MODELS:
        torch.manual_seed(0)
        model = build(name, {"vocabulary": VOCABULARY, **settings}).train()
        assert isinstance(model, NeuralModel)
        mine, whole, ratio = compare_speed(
            partial(train, model, batch, half=True),
            partial(train, model, batch, half=False),
            ROWS * LENGTH,
            arguments.repeats,
            CLOCKS[arguments.clock],
        )
        count = sum(parameter.numel() for parameter in model.parameters())
        rows.append(
            {"family": name, **settings, "parameters": count, "bfloat16": mine, "float32": whole, "ratio": ratio}
        )
        if not arguments.json:
            print(f"{name:16} width {settings['width']:3}, {count:9,} parameters: bfloat16 {mine:8,.0f} tokens/s, "
                  f"float32 {whole:8,.0f}: ratio {ratio:.2f}")  # fmt: skip
    if arguments.json:
        about = {"threads": arguments.threads, "torch": torch.__version__, "hardware": multiplies_bfloat16("cpu")}
        print(json.dumps({**about, "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
