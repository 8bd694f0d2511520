"""Started by torchrun from `test_distributed.py`: training in float16, with gradients that overflow.

Arguments: the folder for the loss scales that each process had after every step, then those of `chainrule train`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from chainrule.cli import main
from chainrule.training import loss_scale
from chainrule.training.learner import Learner
from chainrule.training.loop import Trainer
from chainrule.training.placement import is_sharded

ONE_SIDED = 30  # the step at which a single process has a gradient that is not finite
RANK = int(os.environ.get("RANK", "0"))


def run(out: Path) -> None:
    scales: list[float] = []
    learn, gradient = Trainer.learn, Learner.gradient

    def noted(trainer: Any, *rest: Any) -> Any:
        loss = learn(trainer, *rest)
        scales.append(trainer.scale.factor)
        return loss

    def overflowing(learner: Any, *rest: Any, **named: Any) -> Any:
        loss = gradient(learner, *rest, **named)
        if len(scales) == ONE_SIDED and RANK == 1:
            for parameter in learner.placement.model.parameters():
                if parameter.grad is not None and is_sharded(parameter.grad) and parameter.grad.to_local().numel():
                    parameter.grad.to_local().view(-1)[0] = float("inf")
                    break
        return loss

    loss_scale.FIRST = 2.0**40
    Trainer.learn, Learner.gradient = noted, overflowing  # type: ignore[method-assign]
    try:
        main()
    finally:
        (out / f"{RANK}.json").write_text(json.dumps(scales))


if __name__ == "__main__":
    run(Path(sys.argv.pop(1)))
