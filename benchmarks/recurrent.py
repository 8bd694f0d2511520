"""Training and decoding speed of the six recurrent cells against torch.nn.LSTM + Linear of the same sizes.

    python benchmarks/recurrent.py [--threads 1] [--repeats 5] [--clock wall|cpu] [--quick] [--json]

Training is forward and backward through embedding, two layers, a readout of 10,000 words and cross entropy; decoding
is single steps of one row with the state carried over. Timing is by interleaved rounds (see timing.py); on a machine
with other load, `--clock cpu` measures the processor time of one thread.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chainrule.models.recurrent import Recurrent, RecurrentConfig
from chainrule.nn.recurrent import CELLS
from timing import CLOCKS, Work, compare_with_first

VOCABULARY = 10_000
GENERATED = 100  # tokens
LAYERS = 2
PEER = "torch.nn.LSTM"


class Size(NamedTuple):
    width: int
    batch: int
    segment: int


SIZES = [Size(200, 20, 35), Size(200, 64, 64), Size(512, 20, 35), Size(512, 64, 64)]


class TorchPeer(nn.Module):
    """The same model built from torch's modules."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.lstm = nn.LSTM(width, width, num_layers=LAYERS, batch_first=True)
        self.linear = nn.Linear(width, VOCABULARY)

    def forward(
        self, tokens: Tensor, state: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        hidden, state = self.lstm(self.embedding(tokens), state)
        return self.linear(hidden), state


def ours(cell: str, width: int) -> Recurrent:
    config = {"vocabulary": VOCABULARY, "cell": cell, "layers": LAYERS, "width": width, "dropout": 0.0}
    return Recurrent(RecurrentConfig.parse(config))


def training(model: nn.Module, predict: Callable[[Tensor], Tensor], size: Size) -> Work:
    tokens = torch.randint(VOCABULARY, (size.batch, size.segment + 1))

    def run() -> None:
        model.zero_grad()
        loss = F.cross_entropy(predict(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()

    return run


def training_runs(size: Size) -> dict[str, Work]:
    peer = TorchPeer(size.width)
    runs = {PEER: training(peer, lambda tokens: peer(tokens)[0], size)}
    for cell in CELLS:
        model = ours(cell, size.width)
        state = model.initial(None, size.batch)
        predict = lambda tokens, model=model, state=state: model.extend(tokens, state).logits  # noqa: E731
        runs[cell] = training(model, predict, size)
    return runs


def decoding_runs(width: int) -> dict[str, Work]:
    token = torch.zeros(1, 1, dtype=torch.int64)
    peer = TorchPeer(width).eval()

    @torch.no_grad()
    def decode_peer() -> None:
        state = None
        for _ in range(GENERATED):
            _, state = peer(token, state)

    def decoder(model: Recurrent) -> Work:
        @torch.no_grad()
        def decode() -> None:
            state = model.start().state
            for _ in range(GENERATED):
                _, state = model.extend(token, state)

        return decode

    return {PEER: decode_peer, **{cell: decoder(ours(cell, width).eval()) for cell in CELLS}}


def cells(measured: dict[str, tuple[float, float]]) -> list[dict[str, Any]]:
    return [{"cell": name, "tokens_per_second": speed, "ratio": ratio} for name, (speed, ratio) in measured.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: with one thread only")
    parser.add_argument("--quick", action="store_true", help="only the smallest size")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    arguments = parser.parse_args()
    if arguments.clock == "cpu" and arguments.threads != 1:
        parser.error("--clock cpu adds up the time of all threads; use it with --threads 1")
    torch.set_num_threads(arguments.threads)
    clock = CLOCKS[arguments.clock]
    torch.manual_seed(0)

    sizes = SIZES[:1] if arguments.quick else SIZES
    rows = []
    for size in sizes:
        measured = compare_with_first(training_runs(size), size.batch * size.segment, arguments.repeats, clock)
        rows += [{"task": "training", **size._asdict(), **row} for row in cells(measured)]
    for width in sorted({size.width for size in sizes}):
        measured = compare_with_first(decoding_runs(width), GENERATED, arguments.repeats, clock)
        common = {"task": "decoding", "width": width, "batch": 1, "segment": 1}
        rows += [{**common, **row} for row in cells(measured)]

    if arguments.json:
        print(
            json.dumps(
                {"threads": arguments.threads, "clock": arguments.clock, "torch": torch.__version__, "rows": rows},
                indent=2,
            )
        )
        return
    print(f"{arguments.threads} thread(s), {arguments.clock} clock, torch {torch.__version__}")
    print(f"{LAYERS} layers, vocabulary {VOCABULARY}; ratio: speed-up over {PEER}")
    print(f"{'task':10}{'cell':18}{'width':>7}{'batch':>7}{'segment':>9}{'tokens/s':>11}{'ratio':>8}")
    for row in rows:
        print(
            f"{row['task']:10}{row['cell']:18}{row['width']:7}{row['batch']:7}{row['segment']:9}"
            f"{row['tokens_per_second']:11,.0f}{row['ratio']:8.2f}"
        )


if __name__ == "__main__":
    main()
