"""PixelCNN: sampling with cached rows against sampling without, and training speed in images per second.

    python benchmarks/pixelcnn.py [--threads 1] [--repeats 3] [--images 16] [--side 28] [--clock wall|cpu] [--json]

Sampling: `--images` images of two levels in a batch, default sizes. With the cache the whole images are generated,
value by value. Without it (`Recomputed`) each value needs a pass over all preceding values; that is slow, so only a
few values at evenly spaced positions are timed, and the total is estimated from their mean.

Training: forward, backward and optimizer step on batches of 32 random images, at several sizes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from typing import NamedTuple

import torch

from chainrule.config import TrainConfig
from chainrule.families import build
from chainrule.interface.base import AutoregressiveModel, Recomputed
from chainrule.models.pixelcnn import PixelCNN
from chainrule.objectives import Likelihood
from chainrule.training.learner import WholeSequences
from chainrule.training.optim import build_optimizers
from chainrule.types import Batch, Sequences
from timing import CLOCKS, Clock, medians, time_rounds

LEVELS = 2
POSITIONS = 4  # values that are timed without the cache
BATCH = 32
SIZES = ({"layers": 7, "width": 32}, {"layers": 7, "width": 48}, {"layers": 10, "width": 48})


class SamplingTime(NamedTuple):
    images: int
    cached: float  # seconds for all images
    recomputed: float  # without the cache, estimated from some values
    ratio: float


class TrainingSpeed(NamedTuple):
    layers: int
    width: int
    parameters: int
    images_per_second: float


def model_of(side: int, **sizes: int) -> PixelCNN:
    torch.manual_seed(0)
    model = build("pixelcnn", {"vocabulary": LEVELS, "shape": (1, side, side), **sizes})
    assert isinstance(model, PixelCNN)
    return model


@torch.inference_mode()
def sample_greedily(model: AutoregressiveModel, images: int, values: int) -> None:
    """Generate the first `values` values of each image greedily."""
    step = model.start(batch_size=images)
    for _ in range(values - 1):
        step = model.extend(step.logits[:, -1].argmax(-1)[:, None], step.state)


@torch.inference_mode()
def predict_uncached(model: AutoregressiveModel, images: int, position: int) -> None:
    """Predict the value at a position from all preceding ones."""
    nothing = torch.zeros(images, 0, dtype=torch.int64)
    Recomputed(model).extend(torch.zeros(images, position, dtype=torch.int64), (nothing,))


def measure_sampling(side: int, images: int, repeats: int, clock: Clock) -> SamplingTime:
    model = model_of(side).eval()
    size = side * side
    positions = [round((number + 0.5) * size / POSITIONS) for number in range(POSITIONS)]
    works = [
        lambda: sample_greedily(model, images, size),
        lambda: [predict_uncached(model, images, position) for position in positions],
    ]
    measured = [(cached, some * size / POSITIONS) for cached, some in time_rounds(works, repeats, clock)]
    cached, recomputed = medians(measured)
    return SamplingTime(images, cached, recomputed, statistics.median(slow / fast for fast, slow in measured))


def measure_training(side: int, sizes: dict[str, int], repeats: int, clock: Clock) -> TrainingSpeed:
    model = model_of(side, **sizes).train()
    optimizers = build_optimizers(model, TrainConfig(**PixelCNN.recipe))
    learner = WholeSequences(model, Likelihood())
    batch = Batch(Sequences.full(torch.randint(LEVELS, (BATCH, side * side))))

    def step() -> None:
        learner.gradient(batch)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    [seconds] = medians(time_rounds([step], repeats, clock))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return TrainingSpeed(sizes["layers"], sizes["width"], parameters, BATCH / seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--side", type=int, default=28)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    clock = CLOCKS[options.clock]
    sampled = measure_sampling(options.side, options.images, options.repeats, clock)
    trained = [measure_training(options.side, sizes, options.repeats, clock) for sizes in SIZES]
    if options.json:
        print(json.dumps({"sampling": sampled._asdict(), "training": [one._asdict() for one in trained]}, indent=2))
        return
    print(f"{options.side}×{options.side} pixels, {LEVELS} levels, {options.threads} thread(s), {options.clock} clock")
    print(
        f"sampling {sampled.images} images: {sampled.cached:.2f} s with the cache, {sampled.recomputed:.1f} s without: "
        f"speed-up {sampled.ratio:.0f}"
    )
    for one in trained:
        print(
            f"training, {one.layers} layers of {one.width} ({one.parameters:,} parameters): "
            f"{one.images_per_second:.1f} images/s"
        )


if __name__ == "__main__":
    sys.exit(main())
