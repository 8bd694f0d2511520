"""Decoding in one pass: `nonautoregressive` with and without n-gram shallow fusion, sentences per second.

    python benchmarks/one_pass.py [--threads 1] [--repeats 5] [--batches 1 16] [--clock wall|cpu] [--json]

Width 192, a shared vocabulary of 4,000 tokens, random weights that emit some tokens per sentence, and a 4-gram of
random targets. Sources have 9 to 21 tokens, drawn by Zipf's law. With the PYTHONPATH of another version it
measures that one.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence

import torch

from chainrule.decoding import Search
from chainrule.decoding.translation import decode_sources
from chainrule.families import build
from chainrule.models.nonautoregressive import CTCOutput, NonAutoregressive
from timing import CLOCKS, Work, medians, set_threads, time_rounds

VOCABULARY, WIDTH = 4000, 192
SENTENCES, TARGETS = 32, 3000


def sentences(count: int, seed: int) -> list[list[int]]:
    generator = random.Random(seed)
    frequencies = [1 / (rank + 2) for rank in range(VOCABULARY - 1)]
    words = range(1, VOCABULARY)
    return [[*generator.choices(words, frequencies, k=generator.randint(8, 20)), 0] for _ in range(count)]


def random_model() -> NonAutoregressive:
    torch.manual_seed(0)
    both = {"vocabulary": VOCABULARY, "source_vocabulary": VOCABULARY, "shared_embeddings": True}
    model = build("nonautoregressive", {**both, "width": WIDTH}).eval()
    assert isinstance(model, NonAutoregressive)
    assert isinstance(model.output, CTCOutput)
    with torch.no_grad():
        for parameter in model.parameters():  # branches initialized to zero would predict the same everywhere
            if parameter.dim() > 1 and not parameter.any():
                parameter.normal_(std=0.02)
        model.body.tokens.matrix.mul_(12)  # few candidates per frame, as after training
        model.output.blank.normal_(std=0.05)
    model.fit_statistics([([], target) for target in sentences(TARGETS, 1)])
    return model


def measure(batches: Sequence[int], beams: Sequence[int], repeats: int, clock: str) -> dict[str, float]:
    """Sentences per second."""
    model, sources = random_model(), sentences(SENTENCES, 2)
    works: dict[str, Work] = {
        f"batch {batch}, beam {beam}": lambda batch=batch, beam=beam: decode_sources(
            model, sources, Search(beam=beam), batch=batch
        )
        for batch in batches
        for beam in beams
    }
    rounds = time_rounds(list(works.values()), repeats, CLOCKS[clock])
    return {name: SENTENCES / seconds for name, seconds in zip(works, medians(rounds), strict=True)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: for a machine with other load")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    set_threads(arguments.threads)
    found = measure(arguments.batches, (1, 5), arguments.repeats, arguments.clock)
    if arguments.json:
        print(json.dumps({"threads": arguments.threads, "sentences_per_second": found}, indent=2))
        return
    for name, speed in found.items():
        print(f"{name}: {speed:,.0f} sentences/s")


if __name__ == "__main__":
    main()
