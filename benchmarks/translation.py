"""The translation families compared: training, greedy decoding and beam search, at about equal sizes.

    python benchmarks/translation.py [--threads 1] [--repeats 5] [--batches 1 16] [--clock wall|cpu] [--json]

All have about as many parameters as the transformer with 3 + 3 layers of width 192, a shared vocabulary of 4,000
tokens, and random weights. Sources have 10 to 20 tokens; EOS is suppressed, so that all generate 15, as in Multi30k, or
256, which transformer and fat do at batch 1, greedily. The shortlists of fat are as long as those of Multi30k with
shortlist.partners=20 and shortlist.threshold=0.02, some 1,180 tokens. Training is forward and backward on 128 such
pairs, without the optimizer, whose cost is the same for all. Timing is by interleaved rounds (see timing.py); ratios
are relative to the transformer.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from chainrule.decoding import beam_search
from chainrule.families import build
from chainrule.interface.base import AutoregressiveModel, NeuralModel
from chainrule.models.fat import FAT
from chainrule.objectives import Likelihood
from chainrule.training.learner import WholeSequences
from chainrule.types import Batch, Sequences
from timing import CLOCKS, Clock, Work, compare_with_first

VOCABULARY = 4000
SHORTEST, LONGEST, GENERATED = 10, 20, 15  # tokens of a source, and of a target
LONG = 256  # tokens of a long target
ROWS = 128
FREQUENT, PARTNERS = 942, 20  # tokens on every shortlist, and those that each token of the source adds
SHORTLISTED = "fat with shortlist"
SIZES: dict[str, dict[str, Any]] = {
    "transformer": {"width": 192, "encoder_layers": 3, "decoder_layers": 3, "context": LONG + 1},
    "fat": {
        "width": 192,
        "encoder_layers": 6,
        "decoder_layers": 1,
        "shortlist": {"partners": PARTNERS, "threshold": 0.02},
    },
    "seq2seq": {"width": 320, "layers": 2},
    "autoregressive_transformer": {"width": 384, "layers": 2},
}


class Measurement(NamedTuple):
    family: str
    parameters: int
    work: str
    speed: float  # tokens or sentences per second
    ratio: float  # to the transformer


def models() -> dict[str, NeuralModel]:
    found = {}
    for name, settings in SIZES.items():
        torch.manual_seed(0)
        both = {"vocabulary": VOCABULARY, "source_vocabulary": VOCABULARY, "shared_embeddings": True}
        model = build(name, {**both, **settings})
        assert isinstance(model, NeuralModel)
        for parameter in model.parameters():  # branches initialized to zero would predict the same everywhere
            if parameter.dim() > 1 and not parameter.any():
                parameter.data.normal_(std=0.02)
        found[name] = model
    return found


def shortlisted(model: NeuralModel) -> AutoregressiveModel:
    assert isinstance(model, FAT)
    assert model.shortlist is not None
    partners = torch.randint(FREQUENT, VOCABULARY, (VOCABULARY, PARTNERS), generator=torch.Generator().manual_seed(3))
    model.shortlist.set(torch.arange(VOCABULARY) < FREQUENT, partners)
    return model.shortlisted()


def sources(rows: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(SHORTEST, LONGEST + 1, (rows,), generator=generator).tolist()
    return [torch.randint(1, VOCABULARY, (length,), generator=generator).tolist() for length in lengths]


def train(model: NeuralModel) -> Work:
    """Forward and backward, as in the training loop."""
    target = Sequences.full(torch.randint(1, VOCABULARY, (ROWS, GENERATED), generator=torch.Generator().manual_seed(2)))
    batch = Batch(target, Sequences.pack(sources(ROWS)))
    learner = WholeSequences(model, Likelihood())

    def step() -> None:
        model.train()
        model.zero_grad()
        learner.gradient(batch)

    return step


def decode(model: AutoregressiveModel, rows: int, beam: int, length: int = GENERATED) -> Work:
    given = sources(rows)

    def search() -> None:
        if model.training:
            model.eval()  # takes a tenth of a millisecond
        beam_search(model, [[]] * rows, width=beam, length=length, suppress=[0], source=Sequences.pack(given))

    return search


def measure(batches: Sequence[int], repeats: int, clock: Clock) -> list[Measurement]:
    made = models()
    sizes = {name: sum(parameter.numel() for parameter in model.parameters()) for name, model in made.items()}
    works: dict[str, tuple[float, dict[str, Work]]] = {
        "training tokens/s": (ROWS * GENERATED, {name: train(model) for name, model in made.items()})
    }
    decoders: dict[str, AutoregressiveModel] = {**made, SHORTLISTED: shortlisted(made["fat"])}
    sizes[SHORTLISTED] = sizes["fat"]
    for batch in batches:
        for beam in (1, 5):
            label = f"sentences/s, batch {batch}, {'greedy' if beam == 1 else f'beam {beam}'}"
            works[label] = (batch, {name: decode(model, batch, beam) for name, model in decoders.items()})
    long = {name: decode(decoders[name], 1, 1, LONG) for name in ("transformer", "fat", SHORTLISTED)}
    works[f"sentences/s, batch 1, greedy, targets of {LONG} tokens"] = (1, long)
    found = []
    for label, (count, by_family) in works.items():
        for name, (speed, ratio) in compare_with_first(by_family, count, repeats, clock).items():
            found.append(Measurement(name, sizes[name], label, speed, ratio))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: for a machine with other load")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    found = measure(arguments.batches, arguments.repeats, CLOCKS[arguments.clock])
    if arguments.json:
        rows = [row._asdict() for row in found]
        print(json.dumps({"threads": arguments.threads, "torch": torch.__version__, "rows": rows}, indent=2))
        return
    print(f"{arguments.threads} thread(s), torch {torch.__version__}, {arguments.clock} time")
    for label in dict.fromkeys(row.work for row in found):
        print(f"\n{label}")
        for row in found:
            if row.work == label:
                size = f"{row.parameters / 1e6:.2f}M"
                print(f"  {row.family:28}{size:>7}{row.speed:12,.1f}{row.ratio:8.2f}")


if __name__ == "__main__":
    main()
