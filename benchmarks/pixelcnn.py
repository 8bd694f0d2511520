"""PixelCNN: drawing with cached rows against drawing without, and how many images a second it learns from.

    python benchmarks/pixelcnn.py [--threads 1] [--repeats 3] [--images 16] [--side 28] [--clock wall|cpu] [--json]

Drawing: `--images` images of two levels at once, default sizes. With the cache the whole images are drawn, value by
value. Without it (`Recomputed`) each value reads the image anew, as far as it is drawn; that takes long, so only a few
values are drawn, at places spread evenly over the image, and their mean stands for all.

Training: forward, backward and the optimizers' step, on batches of 32 random images, at several sizes.
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
from turns import CLOCKS, Clock, medians, turns

LEVELS = 2
PLACES = 4  # values that are drawn without a cache
BATCH = 32
SIZES = ({"layers": 7, "width": 32}, {"layers": 7, "width": 48}, {"layers": 10, "width": 48})


class Drawing(NamedTuple):
    images: int
    cached: float  # seconds for all images
    recomputed: float  # the same without a cache, estimated from some values
    ratio: float


class Training(NamedTuple):
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
def draw(model: AutoregressiveModel, images: int, values: int) -> None:
    """So many values of each image, one after the other, always the likeliest."""
    step = model.start(batch_size=images)
    for _ in range(values - 1):
        step = model.extend(step.logits[:, -1].argmax(-1)[:, None], step.state)


@torch.inference_mode()
def read_again(model: AutoregressiveModel, images: int, read: int) -> None:
    """The prediction after so many values, from nothing."""
    nothing = torch.zeros(images, 0, dtype=torch.int64)
    Recomputed(model).extend(torch.zeros(images, read, dtype=torch.int64), (nothing,))


def drawing(side: int, images: int, repeats: int, clock: Clock) -> Drawing:
    model = model_of(side).eval()
    size = side * side
    places = [round((number + 0.5) * size / PLACES) for number in range(PLACES)]
    works = [
        lambda: draw(model, images, size),
        lambda: [read_again(model, images, place) for place in places],
    ]
    measured = [(cached, some * size / PLACES) for cached, some in turns(works, repeats, clock)]
    cached, recomputed = medians(measured)
    return Drawing(images, cached, recomputed, statistics.median(slow / fast for fast, slow in measured))


def training(side: int, sizes: dict[str, int], repeats: int, clock: Clock) -> Training:
    model = model_of(side, **sizes).train()
    optimizers = build_optimizers(model, TrainConfig(**PixelCNN.recipe))
    learner = WholeSequences(model, Likelihood())
    batch = Batch(Sequences.full(torch.randint(LEVELS, (BATCH, side * side))))

    def step() -> None:
        learner.gradient(batch)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    [seconds] = medians(turns([step], repeats, clock))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return Training(sizes["layers"], sizes["width"], parameters, BATCH / seconds)


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
    drawn = drawing(options.side, options.images, options.repeats, clock)
    trained = [training(options.side, sizes, options.repeats, clock) for sizes in SIZES]
    if options.json:
        print(json.dumps({"drawing": drawn._asdict(), "training": [one._asdict() for one in trained]}, indent=2))
        return
    print(f"{options.side}×{options.side} pixels, {LEVELS} levels, {options.threads} thread(s), {options.clock} clock")
    print(
        f"drawing {drawn.images} images: {drawn.cached:.2f} s with the cache, {drawn.recomputed:.1f} s without: "
        f"{drawn.ratio:.0f} times as fast"
    )
    for one in trained:
        print(
            f"training, {one.layers} layers of {one.width} ({one.parameters:,} parameters): "
            f"{one.images_per_second:.1f} images/s"
        )


if __name__ == "__main__":
    sys.exit(main())
