"""Training speed at a vocabulary of 33,000 words: the full softmax against objectives that score a few words.

    python benchmarks/noise.py [--threads 1] [--repeats 5] [--noise 1024] [--clock wall|cpu] [--json]

A step is what training makes of it: forward and backward of a recurrent net (two layers, width 200, 16 lanes of 32
tokens), clipping, and AdamW and Muon. All objectives are measured in the same run, one after the other, again and
again; a figure is a median, and a ratio is the median of the ratios within a repeat. On a machine that others use as
well, `--clock cpu` counts the processor time of one thread instead of the time on the wall.
"""

from __future__ import annotations

import argparse
import json

import numpy as np
import torch

from chainrule.config import TrainConfig
from chainrule.data.batching import Segment
from chainrule.models.recurrent import Recurrent, RecurrentConfig
from chainrule.objectives import Likelihood, Noise, NoiseContrastive, Objective, SampledSoftmax
from chainrule.training.learner import CarriedSegments
from chainrule.training.optim import build_optimizers
from chainrule.training.process import keep_freed_memory
from turns import CLOCKS, Work, against_first

VOCABULARY = 33_000
WIDTH = 200
LANES = 16
SEGMENT = 32
STEPS = 4  # in a repeat
FULL = "likelihood"


def training(objective: Objective, tokens: torch.Tensor) -> Work:
    """A few steps of training."""
    torch.manual_seed(0)
    model = Recurrent(RecurrentConfig(vocabulary=VOCABULARY, width=WIDTH)).train()
    learner = CarriedSegments(model, objective)
    optimizers = build_optimizers(model, TrainConfig.parse(Recurrent.recipe))
    segment = Segment(tokens[:, :-1], tokens[:, 1:], fresh=False)

    def run() -> None:
        for _ in range(STEPS):
            learner.gradient(segment)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--noise", type=int, default=1024, help="words drawn in a step")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: only with one thread")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    arguments = parser.parse_args()
    if arguments.clock == "cpu" and arguments.threads != 1:
        parser.error("--clock cpu adds up the time of all threads; use it with --threads 1")
    torch.set_num_threads(arguments.threads)
    keep_freed_memory()

    counts = 1e6 / np.arange(1, VOCABULARY + 1)  # Zipf's law
    noise = Noise(counts)
    tokens = noise.table.draw(LANES * (SEGMENT + 1), generator=torch.Generator().manual_seed(0)).view(LANES, -1)
    objectives: dict[str, Objective] = {
        FULL: Likelihood(),
        "nce": NoiseContrastive(noise, arguments.noise),
        "sampled": SampledSoftmax(noise, arguments.noise),
    }
    runs = {name: training(objective, tokens) for name, objective in objectives.items()}
    measured = against_first(runs, STEPS * LANES * SEGMENT, arguments.repeats, CLOCKS[arguments.clock])
    rows = {name: {"tokens_per_second": speed, "ratio": ratio} for name, (speed, ratio) in measured.items()}

    if arguments.json:
        about = {"threads": arguments.threads, "clock": arguments.clock, "noise": arguments.noise}
        print(json.dumps({**about, "torch": torch.__version__, "rows": rows}, indent=2))
        return
    print(f"{arguments.threads} thread(s), {arguments.clock} clock, torch {torch.__version__}")
    print(f"recurrent, width {WIDTH}, vocabulary {VOCABULARY:,}, {arguments.noise} words of noise; ratio: to {FULL}")
    print(f"{'objective':12}{'tokens/s':>11}{'ratio':>8}")
    for name, figures in rows.items():
        print(f"{name:12}{figures['tokens_per_second']:11,.0f}{figures['ratio']:8.2f}")


if __name__ == "__main__":
    main()
