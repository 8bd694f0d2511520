"""Training speed with a vocabulary of 33,000 words: full softmax against sampled objectives.

    python benchmarks/noise.py [--threads 1] [--repeats 5] [--noise 1024] [--clock wall|cpu] [--json]

A step is a full training step: forward and backward of a recurrent network (two layers, width 200, 16 lanes of 32
tokens), gradient clipping, and AdamW and Muon. Timing is by interleaved rounds (see timing.py); on a machine with other
load, `--clock cpu` measures the processor time of one thread.
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
from timing import CLOCKS, Work, compare_with_first

VOCABULARY = 33_000
WIDTH = 200
LANES = 16
SEGMENT = 32
STEPS = 4  # per round
FULL = "likelihood"


def training(objective: Objective, tokens: torch.Tensor) -> Work:
    """A few training steps."""
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
    parser.add_argument("--noise", type=int, default=1024, help="noise words per step")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: with one thread only")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
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
    measured = compare_with_first(runs, STEPS * LANES * SEGMENT, arguments.repeats, CLOCKS[arguments.clock])
    rows = {name: {"tokens_per_second": speed, "ratio": ratio} for name, (speed, ratio) in measured.items()}

    if arguments.json:
        about = {"threads": arguments.threads, "clock": arguments.clock, "noise": arguments.noise}
        print(json.dumps({**about, "torch": torch.__version__, "rows": rows}, indent=2))
        return
    print(f"{arguments.threads} thread(s), {arguments.clock} clock, torch {torch.__version__}")
    print(f"recurrent, width {WIDTH}, vocabulary {VOCABULARY:,}, {arguments.noise} noise words; ratio: over {FULL}")
    print(f"{'objective':12}{'tokens/s':>11}{'ratio':>8}")
    for name, row in rows.items():
        print(f"{name:12}{row['tokens_per_second']:11,.0f}{row['ratio']:8.2f}")


if __name__ == "__main__":
    main()
