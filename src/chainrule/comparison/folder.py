"""The folder of a comparison.

plan.json            families, model sizes and budget; a resumed comparison keeps it
runs/NAME/           a run folder for each family and for the mixture
jobs/NAME.json       written when a family has been trained and validated
jobs/NAME.log        output of the job's process
jobs/NAME.trial      scoring speed of the planned model, measured before training
seconds              time used so far, for a resumed comparison
surprisals/          surprisal of every held-out token under every model, in nats
predictions/         what every model predicts for the test examples, if it predicts labels or translations
results.json         the table and everything else that the report shows
report.html          the report
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, ValidationError

from chainrule.comparison.plan import ComparisonPlan
from chainrule.config import Settings
from chainrule.errors import RunError
from chainrule.evaluation.likelihood import Surprisals
from chainrule.evaluation.protocol import Protocol
from chainrule.files import whole_file, write_whole

VALIDATION, TEST = "validation", "test"


class JobResult(Settings):
    """Cost of a finished job: the content of jobs/NAME.json."""

    seconds: float = Field(description="wall-clock time of training")
    tokens: int = Field(description="training tokens seen")
    parameters: int
    memory_bytes: int = Field(0, description="peak resident memory of the process")
    texts_per_second: float = Field(0.0, description="test texts labelled or translated per second")
    tokens_per_second: float = Field(0.0, description="validation tokens scored per second")


@dataclass(frozen=True)
class ComparisonFolder:
    """Paths and files of a comparison."""

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
        return self.path / "jobs" / f"{name}.log"

    def job_file(self, name: str) -> Path:
        return self.path / "jobs" / f"{name}.json"

    def trial_file(self, name: str) -> Path:
        return self.path / "jobs" / f"{name}.trial"

    def distilled_file(self, name: str) -> Path:
        """Exists when the teacher of a model has translated the training data."""
        return self.path / "jobs" / f"{name}.distilled"

    @property
    def seconds_file(self) -> Path:
        return self.path / "seconds"

    def seconds_used(self) -> float:
        """The time that this comparison has taken so far."""
        with contextlib.suppress(OSError, ValueError):
            return float(self.seconds_file.read_text(encoding="utf-8"))
        return 0.0

    def require_usable(self, *, resume: bool) -> None:
        """Raise RunError unless a comparison can be started here, or resumed."""
        if self.plan_file.is_file():
            if not resume:
                raise RunError(
                    f"{str(self.path)!r} already holds a comparison; choose another folder, or resume it with --resume"
                )
        elif self.path.is_file() or (self.path.is_dir() and any(self.path.iterdir())):
            raise RunError(f"{str(self.path)!r} exists and is not a comparison; choose a new or empty folder")

    def begin(self, plan: ComparisonPlan, *, resume: bool) -> ComparisonPlan:
        """Write the plan to a new folder, or return the plan of the comparison to resume.

        Raises RunError if the folder holds anything else, or a comparison with other options.
        """
        self.require_usable(resume=resume)
        if self.plan_file.is_file():
            kept = self.plan()
            if _options(kept) != _options(plan):
                differing = next(name for name, value in _options(kept).items() if value != _options(plan)[name])
                raise RunError(
                    f"the comparison in {str(self.path)!r} was started with another {differing}; "
                    "repeat its command, or choose another folder"
                )
            return kept
        self.write_plan(plan)
        return plan

    def write_plan(self, plan: ComparisonPlan) -> None:
        write_whole(self.plan_file, plan.model_dump_json(indent=2))

    def plan(self) -> ComparisonPlan:
        """Read plan.json. Raises RunError if it is missing or invalid."""
        try:
            return ComparisonPlan.model_validate_json(self.plan_file.read_text(encoding="utf-8"))
        except (OSError, ValidationError) as error:
            reason = str(error).splitlines()[0]
            raise RunError(f"the comparison in {str(self.path)!r} is damaged: {reason}; start a new one") from None

    def job_result(self, name: str) -> JobResult | None:
        """The result of a job; None if it has not finished."""
        file = self.job_file(name)
        if not file.is_file():
            return None
        return JobResult.model_validate_json(file.read_text(encoding="utf-8"))

    def write_surprisals(self, name: str, split: str, found: Surprisals) -> None:
        with whole_file(self._surprisals(name, split)) as temporary, temporary.open("wb") as file:
            np.savez(file, nats=found.nats, hits=found.hits, protocol=found.protocol.model_dump_json())

    def has_surprisals(self, name: str, split: str) -> bool:
        return self._surprisals(name, split).is_file()

    def surprisals(self, name: str, split: str) -> Surprisals:
        with np.load(self._surprisals(name, split)) as saved:
            protocol = Protocol.parse(json.loads(str(saved["protocol"])))
            return Surprisals(saved["nats"], saved["hits"], protocol)

    def write_predictions(self, name: str, found: Sequence[Any]) -> None:
        write_whole(self.path / "predictions" / f"{name}.json", json.dumps(list(found), ensure_ascii=False))

    def predictions(self, name: str) -> list[Any]:
        found: list[Any] = json.loads((self.path / "predictions" / f"{name}.json").read_text(encoding="utf-8"))
        return found

    def _surprisals(self, name: str, split: str) -> Path:
        return self.path / "surprisals" / f"{name}-{split}.npz"


def last_record(file: Path) -> dict[str, Any] | None:
    """The latest training record of a metrics file; None if there is none yet."""
    try:
        with file.open("rb") as lines:
            lines.seek(max(0, file.stat().st_size - 4096))
            tail = lines.read().splitlines()
    except OSError:
        return None
    for line in reversed(tail):
        with contextlib.suppress(ValueError):
            record: dict[str, Any] = json.loads(line)
            if "loss" in record:
                return record
    return None


def _options(plan: ComparisonPlan) -> dict[str, object]:
    """What the user chose; a resumed comparison must match it. Model sizes depend on the machine as well."""
    return {
        "data": plan.data,
        "tokenizer": plan.tokenizer,
        "seed": plan.seed,
        "number of threads": plan.threads,
        "budget": (plan.minutes, plan.tokens),
        "choice of families": {*plan.left_out, *(job.name for job in plan.jobs)},
        "--set": plan.overrides,
    }
