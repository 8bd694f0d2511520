"""Speculative decoding against plain cached decoding of the same model: the same text, in how much less time?

    python benchmarks/speculative.py [--run RUN ...] [--draft ngram self RUN2] [--threads 1] [--repeats 5] [--json]

Without --run, a GPT of ten million parameters is trained for --minutes on the characters of builtin:python, or of
--data, which is long enough for its text to be like the data's, and so to be guessed. Prompts are taken from the
validation data. Plain and drafted decoding take turns; a figure is a median, and the ratio is the median of the ratios
of neighbouring turns, so that a busy moment of the machine, which touches neighbours alike, does not decide it. The
texts must be equal, token by token, or nothing is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

import chainrule
from chainrule.data.corpus import prepare
from chainrule.decoding import GREEDY, Generation, Sampling, generate_tokens
from chainrule.decoding.drafts import Drafter
from chainrule.decoding.speculative import BlockSize

BATCHES = (1, 16)
PROMPT, WRITTEN = 64, 400
WAYS = {"greedy": GREEDY, "temperature 0.8": Sampling(temperature=0.8), "temperature 1": Sampling()}
TEN_MILLION = {"model": {"layers": 6, "width": 384, "heads": 6, "context": 256}}


class Figure(NamedTuple):
    run: str
    draft: str
    way: str
    batch: int
    plain: float  # tokens a second
    drafted: float
    ratio: float
    accuracy: float  # how often a guess was right, lately


def trained(data: str, minutes: float, out: Path) -> chainrule.Run:
    return chainrule.train("gpt", data=data, out=out, minutes=minutes, settings=TEN_MILLION, scored=False)


def prompts(run: chainrule.Run, rows: int) -> list[list[int]]:
    """From evenly spaced places of the validation data."""
    tokens = prepare(run.config.data, run.config.tokenizer, tokenizer=run.tokenizer).valid.tokens
    starts = [row * (len(tokens) - PROMPT) // rows for row in range(rows)]
    return [[int(token) for token in tokens[start : start + PROMPT]] for start in starts]


def write(
    run: chainrule.Run,
    given: Sequence[Sequence[int]],
    sampling: Sampling,
    drafter: Drafter | None = None,
    block_size: BlockSize | None = None,
) -> tuple[float, list[Generation]]:
    """Seconds, and the texts."""
    start = time.perf_counter()
    found = generate_tokens(
        run.autoregressive,
        given,
        length=WRITTEN,
        sampling=sampling,
        seeds=range(len(given)),
        draft=drafter,
        block_size=block_size,
    )
    return time.perf_counter() - start, found


def measure(run: chainrule.Run, draft: str, way: str, rows: int, repeats: int) -> Figure:
    sampling, given = WAYS[way], prompts(run, rows)
    drafter = run.drafter(draft if draft in ("ngram", "self") else chainrule.load(draft, device="cpu"))
    turns = []
    for _ in range(repeats + 1):
        size = BlockSize()
        (plain, expected), (drafted, found) = (
            write(run, given, sampling),
            write(run, given, sampling, drafter, size),
        )
        assert [text.ids for text in found] == [text.ids for text in expected], "the texts differ"
        turns.append((plain, drafted))
    plain, drafted = (statistics.median(column) for column in zip(*turns[1:], strict=True))
    ratio = statistics.median(slow / fast for slow, fast in turns[1:])
    tokens = rows * WRITTEN
    return Figure(
        run.path.name, Path(draft).name, way, rows, tokens / plain, tokens / drafted, ratio, size.acceptance_rate
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", nargs="+", default=[], help="folders of trained runs")
    parser.add_argument("--data", nargs="+", default=["builtin:python"], help="what to train on without --run")
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--draft", nargs="+", default=["ngram", "self"])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--batch", nargs="+", type=int, default=list(BATCHES))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if os.environ.get("OPENBLAS_NUM_THREADS") != str(arguments.threads):  # NumPy reads it once, when it is loaded
        os.environ["OPENBLAS_NUM_THREADS"] = str(arguments.threads)
        os.execv(sys.executable, [sys.executable, *sys.argv])
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as folder:
        runs = [chainrule.load(path, device="cpu") for path in arguments.run]
        for number, data in enumerate([] if runs else arguments.data):
            runs.append(trained(data, arguments.minutes, Path(folder) / f"{number}-{Path(data).stem}"))
        found = [
            measure(run, draft, way, rows, arguments.repeats)
            for run in runs
            for rows in arguments.batch
            for draft in arguments.draft
            for way in arguments.ways
        ]
    if arguments.json:
        rows = [figure._asdict() for figure in found]
        print(json.dumps({"threads": arguments.threads, "torch": torch.__version__, "rows": rows}, indent=2))
        return
    print(f"{arguments.threads} thread(s), torch {torch.__version__}; tokens/s")
    print(f"{'run':16}{'draft':10}{'way':18}{'batch':>6}{'plain':>9}{'drafted':>9}{'ratio':>7}{'accuracy':>10}")
    for run, draft, way, batch, plain, drafted, ratio, accuracy in found:
        print(f"{run:16}{draft:10}{way:18}{batch:6}{plain:9,.0f}{drafted:9,.0f}{ratio:7.2f}{accuracy:10.2f}")


if __name__ == "__main__":
    main()
