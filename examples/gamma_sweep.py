"""How good is a trained hybrid at each share γ of its two branches? Nats/token and BLEU of held-out pairs, and a plot.

python examples/gamma_sweep.py RUN --source test.en --target test.de [--pairs 200] [--out sweep]

Writes OUT.json and OUT.png.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import chainrule
from chainrule.decoding import Search
from chainrule.errors import ChainruleError
from chainrule.evaluation.gamma_sweep import SweepPoint, draw_sweep, sweep_gamma
from chainrule.tasks.translation import TranslationRun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run of hybrid")
    parser.add_argument("--source", type=Path, required=True, help="held-out sources, one a line")
    parser.add_argument("--target", type=Path, required=True, help="their translations")
    parser.add_argument("--pairs", type=int, help="only so many from the start")
    parser.add_argument("--beam", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("gamma_sweep"), help="name of the files, without an ending")
    arguments = parser.parse_args()

    sources, targets = (
        file.read_text(encoding="utf-8").splitlines()[: arguments.pairs]
        for file in (arguments.source, arguments.target)
    )
    run = chainrule.load(arguments.run)
    if not isinstance(run, TranslationRun):
        parser.error(f"{arguments.run} is a run of {run.config.family}, and this sweep translates; give one of hybrid")
    points = sweep_gamma(
        run.translator(),
        sources,
        targets,
        search=Search(beam=arguments.beam),
        target_language=run.config.data.target_language or "",
        progress=show,
    )
    values = [point.model_dump() for point in points]
    arguments.out.with_suffix(".json").write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    draw_sweep(points, arguments.out.with_suffix(".png"))


def show(point: SweepPoint) -> None:
    gamma = "own" if point.gamma is None else f"{point.gamma:.1f}"
    print(f"γ {gamma:>4}   {point.nats_per_token:.3f} nats/token   {point.bleu:5.1f} BLEU", flush=True)


if __name__ == "__main__":
    try:
        main()
    except ChainruleError as error:
        sys.exit(f"error {error}")
