"""The folder of a comparison: what has been decided, what is done, and what was found.

plan.json            the families, their sizes and the budget; a comparison that goes on keeps it
runs/NAME/           a run folder for each family and for the mixture
legs/NAME.json       written when a family is trained and scored
legs/NAME.log        what its process had to say
surprisals/          nats of every held-out token under every model
results.json         the table and all that the report draws
report.html          the report
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from pydantic import Field, ValidationError

from chainrule.comparison.plan import Plan
from chainrule.config import Settings
from chainrule.data.corpus import Corpus
from chainrule.errors import RunError
from chainrule.evaluation.likelihood import Protocol, Surprisals
from chainrule.files import whole_file, write_whole
from chainrule.runs import SequenceRun

VALIDATION, TEST = "validation", "test"


class Finish(Settings):
    """What a leg leaves behind, beside its run."""

    seconds: float = Field(description="wall-clock time of training")
    tokens: int = Field(description="training tokens seen")
    parameters: int
    memory_bytes: int = Field(0, description="peak resident memory of the process")


class Splits(NamedTuple):
    """The text of a comparison as one tokenizer encodes it."""

    train: Corpus
    held_out: dict[str, Corpus]  # validation: for stopping and for gates; test: for the figures


def read_splits(run: SequenceRun) -> Splits:
    """What a run was trained on and what it has not seen."""
    found = run.splits(run.config.data)
    assert found.test is not None
    return Splits(found.train, {VALIDATION: found.valid, TEST: found.test})


@dataclass(frozen=True)
class ComparisonFolder:
    """A comparison on disk."""

    path: Path

    @property
    def plan_file(self) -> Path:
        return self.path / "plan.json"

    @property
    def results_file(self) -> Path:
        return self.path / "results.json"

    @property
    def report_file(self) -> Path:
        return self.path / "report.html"

    def run(self, name: str) -> Path:
        return self.path / "runs" / name

    def log_file(self, name: str) -> Path:
        return self.path / "legs" / f"{name}.log"

    def finish_file(self, name: str) -> Path:
        return self.path / "legs" / f"{name}.json"

    def begin(self, plan: Plan, *, resume: bool) -> Plan:
        """Write the plan into a new folder, or take up the one that is there."""
        if self.plan_file.is_file():
            if not resume:
                raise RunError(
                    f"{str(self.path)!r} already holds a comparison; choose another folder, or go on with --resume"
                )
            kept = self.plan()
            if _asked(kept) != _asked(plan):
                differing = next(name for name, value in _asked(kept).items() if value != _asked(plan)[name])
                raise RunError(
                    f"the comparison in {str(self.path)!r} was begun with another {differing}; "
                    "repeat its command, or choose another folder"
                )
            return kept
        if self.path.is_file() or (self.path.is_dir() and any(self.path.iterdir())):
            raise RunError(f"{str(self.path)!r} exists and is not a comparison; choose a new or empty folder")
        write_whole(self.plan_file, plan.model_dump_json(indent=2))
        return plan

    def plan(self) -> Plan:
        try:
            return Plan.model_validate_json(self.plan_file.read_text(encoding="utf-8"))
        except (OSError, ValidationError) as error:
            reason = str(error).splitlines()[0]
            raise RunError(f"the comparison in {str(self.path)!r} is damaged: {reason}; begin a new one") from None

    def finish(self, name: str) -> Finish | None:
        """How a leg ended; None where it has not."""
        file = self.finish_file(name)
        if not file.is_file():
            return None
        return Finish.model_validate_json(file.read_text(encoding="utf-8"))

    def keep_surprisals(self, name: str, split: str, found: Surprisals) -> None:
        with whole_file(self._surprisals(name, split)) as temporary, temporary.open("wb") as file:
            np.savez(file, nats=found.nats, hits=found.hits, protocol=found.protocol.model_dump_json())

    def surprisals(self, name: str, split: str) -> Surprisals:
        with np.load(self._surprisals(name, split)) as saved:
            protocol = Protocol.parse(json.loads(str(saved["protocol"])))
            return Surprisals(saved["nats"], saved["hits"], protocol)

    def _surprisals(self, name: str, split: str) -> Path:
        return self.path / "surprisals" / f"{name}-{split}.npz"


def _asked(plan: Plan) -> dict[str, object]:
    """What the user has decided; sizes follow from the machine as well."""
    return {
        "data": plan.data,
        "tokenizer": plan.tokenizer,
        "seed": plan.seed,
        "number of threads": plan.threads,
        "budget": (plan.minutes, plan.tokens),
        "choice of families": [leg.family for leg in plan.legs],
        "--set": plan.overrides,
    }
