"""One family of a comparison, in a process of its own: `python -m chainrule.comparison.leg FOLDER FAMILY`.

A process for each family keeps its memory apart from the others', lets it fail alone, and gives it its own threads.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from chainrule.errors import ChainruleError
from chainrule.files import write_whole

STOPPED = 3  # exit status of a leg that was asked to stop, and has saved


def run_leg(path: Path, name: str) -> None:
    """Train one family and score it; what was done before is not done again."""
    from chainrule.api import train
    from chainrule.comparison.folder import ComparisonFolder, Finish, read_splits
    from chainrule.comparison.plan import is_neural
    from chainrule.evaluation.likelihood import surprisals
    from chainrule.runs import SequenceRun, parameters, require

    folder = ComparisonFolder(path)
    plan = folder.plan()
    leg = next(leg for leg in plan.legs if leg.family == name)
    budget = {"tokens": plan.tokens} if plan.tokens is not None else {"minutes": plan.leg_minutes}
    began = time.monotonic()
    run = require(
        train(
            name,
            tokenizer=plan.tokenizer,
            seed=plan.seed,
            threads=plan.threads,
            out=folder.run(name),
            settings={
                "data": plan.data.model_dump(exclude_none=True),
                "model": leg.model,
                "train": {**leg.train, **(budget if is_neural(name) else {})},
            },
            resume=True,
            scored=False,
        ),
        SequenceRun,  # type: ignore[type-abstract]  # nothing is made of it
    )
    seconds = time.monotonic() - began
    if run.outcome is not None and run.outcome.reason == "stopped":
        raise SystemExit(STOPPED)
    prepared = read_splits(run)
    for split, corpus in prepared.held_out.items():
        folder.keep_surprisals(name, split, surprisals(run.autoregressive, corpus))
    finish = Finish(
        seconds=run.outcome.seconds if run.outcome else seconds,
        tokens=run.outcome.tokens if run.outcome else len(prepared.train),
        parameters=parameters(run.model),
    )
    write_whole(folder.finish_file(name), finish.model_dump_json(indent=2))


def main() -> None:
    path, name = sys.argv[1:]
    try:
        run_leg(Path(path), name)
    except (ChainruleError, OSError, MemoryError) as error:
        print(str(error) or type(error).__name__, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", "1"))
    main()
