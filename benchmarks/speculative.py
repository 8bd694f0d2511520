"""Speculative decoding against plain cached decoding of the same model: speed-up at identical output.

    python benchmarks/speculative.py [--run RUN ...] [--draft ngram self int8 RUN2] [--threads 1] [--repeats 5] [--json]

Without --run, a GPT of ten million parameters is trained for --minutes on the characters of builtin:python, or of
--data: long enough for its output to resemble the data, so that draft tokens are accepted. Prompts are taken from the
validation data. Plain and speculative decoding alternate; a speed is the median over the rounds and the ratio the
median of the ratios within a round. The outputs must be equal, token by token.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

import chainrule
from chainrule.data.corpus import prepare
from chainrule.decoding import GREEDY, Generation, Sampling, generate_tokens
from chainrule.decoding.block_size import BlockSize
from chainrule.decoding.drafts import Drafter
from timing import set_threads

BATCHES = (1, 16)
PROMPT, GENERATED = 64, 400  # tokens
SAMPLINGS = {"greedy": GREEDY, "temperature 0.8": Sampling(temperature=0.8), "temperature 1": Sampling()}
TEN_MILLION = {"model": {"layers": 6, "width": 384, "heads": 6, "context": 256}}


class Measurement(NamedTuple):
    run: str
    draft: str
    sampling: str
    batch: int
    plain: float  # tokens per second
    drafted: float
    ratio: float
    acceptance: float  # recent fraction of draft tokens accepted


def trained(data: str, minutes: float, out: Path) -> chainrule.Run:
    return chainrule.train("gpt", data=data, out=out, minutes=minutes, settings=TEN_MILLION, scored=False)


def prompts(run: chainrule.Run, rows: int) -> list[list[int]]:
    """Evenly spaced prompts from the validation data."""
    tokens = prepare(run.config.data, run.config.tokenizer, tokenizer=run.tokenizer).valid.tokens
    starts = [row * (len(tokens) - PROMPT) // rows for row in range(rows)]
    return [[int(token) for token in tokens[start : start + PROMPT]] for start in starts]


def generate(
    run: chainrule.Run,
    given: Sequence[Sequence[int]],
    sampling: Sampling,
    drafter: Drafter | None = None,
    block_size: BlockSize | None = None,
) -> tuple[float, list[Generation]]:
    """Seconds, and the outputs."""
    start = time.perf_counter()
    found = generate_tokens(
        run.autoregressive,
        given,
        length=GENERATED,
        sampling=sampling,
        seeds=range(len(given)),
        draft=drafter,
        block_size=block_size,
    )
    return time.perf_counter() - start, found


def measure(run: chainrule.Run, draft: str, name: str, rows: int, repeats: int) -> Measurement:
    sampling, given = SAMPLINGS[name], prompts(run, rows)
    drafter = run.drafter(draft if draft in ("ngram", "self", "int8") else chainrule.load(draft, device="cpu"))
    drafter.prepare(math.inf)  # an n-gram is counted or loaded now
    rounds = []
    for _ in range(repeats + 1):
        size = BlockSize()
        (plain, expected), (drafted, found) = (
            generate(run, given, sampling),
            generate(run, given, sampling, drafter, size),
        )
        assert [text.ids for text in found] == [text.ids for text in expected], "the outputs differ"
        rounds.append((plain, drafted))
    plain, drafted = (statistics.median(column) for column in zip(*rounds[1:], strict=True))
    ratio = statistics.median(slow / fast for slow, fast in rounds[1:])
    tokens = rows * GENERATED
    return Measurement(
        run.path.name, Path(draft).name, name, rows, tokens / plain, tokens / drafted, ratio, size.acceptance_rate
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", nargs="+", default=[], help="folders of trained runs")
    parser.add_argument("--data", nargs="+", default=["builtin:python"], help="training data if there is no --run")
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--draft", nargs="+", default=["ngram", "self"])
    parser.add_argument("--samplings", nargs="+", choices=SAMPLINGS, default=list(SAMPLINGS))
    parser.add_argument("--batch", nargs="+", type=int, default=list(BATCHES))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    set_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as folder:
        runs = [chainrule.load(path, device="cpu") for path in arguments.run]
        for number, data in enumerate([] if runs else arguments.data):
            runs.append(trained(data, arguments.minutes, Path(folder) / f"{number}-{Path(data).stem}"))
        found = [
            measure(run, draft, name, rows, arguments.repeats)
            for run in runs
            for rows in arguments.batch
            for draft in arguments.draft
            for name in arguments.samplings
        ]
    if arguments.json:
        rows = [row._asdict() for row in found]
        print(json.dumps({"threads": arguments.threads, "torch": torch.__version__, "rows": rows}, indent=2))
        return
    print(f"{arguments.threads} thread(s), torch {torch.__version__}; tokens/s")
    print(f"{'run':16}{'draft':10}{'sampling':18}{'batch':>6}{'plain':>9}{'drafted':>9}{'ratio':>7}{'accepted':>10}")
    for run, draft, sampling, batch, plain, drafted, ratio, acceptance in found:
        print(f"{run:16}{draft:10}{sampling:18}{batch:6}{plain:9,.0f}{drafted:9,.0f}{ratio:7.2f}{acceptance:10.2f}")


if __name__ == "__main__":
    main()
