"""What the decoding loop takes besides the compiled step: choosing tokens, log-probabilities, stop conditions, results.

    python benchmarks/loop.py [--tokens 400] [--repeats 9] [--clock cpu] [--threads 1] [--json]

`step` executes the program of a model for the given tokens, one after the other, in one call: nothing is chosen.
`greedy` and `sampled` (temperature 0.8, top-k 40) generate as many tokens by `generate_tokens`, with log-probabilities;
with `stop`, a function of the user is called for every token. Turns are interleaved (see timing.py), and times are
those of the processor. The share of the loop is 1 − step / whole, the median of the rounds. Weights are random.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, cast

import torch

from chainrule.decoding import GREEDY, Sampling, generate_tokens
from chainrule.families import build
from chainrule.interface.base import AutoregressiveModel
from chainrule.kernels import step
from chainrule.kernels.step import Compilable
from timing import CLOCKS, Clock, Work, set_threads, time_rounds

MODELS = {
    "gpt": {"layers": 4, "width": 128, "heads": 4, "context": 512},
    "recurrent": {"layers": 2, "width": 256},
}
VOCABULARY = 65
SAMPLED = Sampling(temperature=0.8, top_k=40)
STEP = "step"


class Measurement(NamedTuple):
    model: str
    parameters: int
    microseconds: dict[str, float]  # per token
    shares: dict[str, float]  # of the loop


def bare_steps(model: AutoregressiveModel, tokens: torch.Tensor) -> Work:
    """Reads tokens (1, N) in one call, each by itself."""
    assert isinstance(model, Compilable)
    program = step.program_of(model)
    assert program is not None
    one_by_one = replace(program, sequential=True)

    @torch.inference_mode()
    def run() -> None:
        state = model.make_room(model.start().state, tokens.shape[1])
        step.run(one_by_one, tokens, state)

    return run


def generation(model: AutoregressiveModel, count: int, sampling: Sampling, stop: Callable | None = None) -> Work:
    return lambda: generate_tokens(model, [[]], length=count, sampling=sampling, seeds=[0], stop=stop)


def measure(name: str, count: int, repeats: int, clock: Clock) -> Measurement:
    torch.manual_seed(0)
    model = cast(AutoregressiveModel, build(name, {"vocabulary": VOCABULARY, **MODELS[name]}).eval())
    works = {
        STEP: bare_steps(model, torch.randint(VOCABULARY, (1, count))),
        "greedy": generation(model, count, GREEDY),
        "sampled": generation(model, count, SAMPLED),
        "sampled, stop": generation(model, count, SAMPLED, stop=lambda ids: ids[-1] < 0),
    }
    for _ in range(3):  # by then a call generates as many tokens as it can
        for work in works.values():
            work()
    rounds = [dict(zip(works, times, strict=True)) for times in time_rounds(list(works.values()), repeats, clock)]
    return Measurement(
        name,
        sum(parameter.numel() for parameter in model.parameters()),
        {work: statistics.median(times[work] for times in rounds) / count * 1e6 for work in works},
        {work: statistics.median(1 - times[STEP] / times[work] for times in rounds) for work in works if work != STEP},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--clock", choices=CLOCKS, default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    set_threads(arguments.threads)
    clock = CLOCKS[arguments.clock]
    found = [measure(name, arguments.tokens, arguments.repeats, clock) for name in arguments.models]
    if arguments.json:
        print(json.dumps({"threads": arguments.threads, "rows": [row._asdict() for row in found]}, indent=2))
        return
    names = list(found[0].microseconds)
    print(f"{arguments.threads} thread(s), {arguments.tokens} tokens; µs per token (share of the loop)")
    print(f"{'model':12}{'parameters':>12}" + "".join(f"{name:>18}" for name in names))
    for row in found:
        cells = [f"{row.microseconds[name]:.1f}" for name in names]
        shares = ["" if name == STEP else f" ({row.shares[name]:.0%})" for name in names]
        columns = "".join(f"{cell + share:>18}" for cell, share in zip(cells, shares, strict=True))
        print(f"{row.model:12}{row.parameters:12,}{columns}")


if __name__ == "__main__":
    main()
