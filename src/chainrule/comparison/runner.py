"""Training jobs: one family each, in a process of its own, a few in parallel.

`python -m chainrule.comparison.runner FOLDER FAMILY` is one job. A process per family isolates its memory, so that peak
usage can be measured; confines a crash to that family; and gives each family its own threads.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from chainrule.comparison.folder import TEST, VALIDATION, ComparisonFolder, JobResult
from chainrule.comparison.plan import ComparisonPlan, counted_first, is_neural
from chainrule.comparison.results import FailedFamily
from chainrule.errors import ChainruleError, memory_problem
from chainrule.files import write_whole
from chainrule.training.process import stop_signals

JobProgress = Callable[[str, float, dict[str, Any]], None]
"""Called with a family, the fraction of its budget used so far, and its latest training record."""

STOPPED = 3  # exit status of a job that was asked to stop and has saved a checkpoint
POLL_SECONDS = 0.5
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class JobRunner:
    """Runs all unfinished jobs of a plan. The first Ctrl-C lets them save and stop; the second kills them."""

    def __init__(self, folder: ComparisonFolder, plan: ComparisonPlan, progress: JobProgress) -> None:
        self.folder = folder
        self.plan = plan
        self.progress = progress
        self.stopping = False
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def run(self) -> list[FailedFamily]:
        """Run the jobs and return those that failed. Raises KeyboardInterrupt if they were stopped."""
        names = counted_first([job.family for job in self.plan.jobs if not self.folder.job_result(job.family)])
        with ThreadPoolExecutor(self.plan.workers) as pool, self._stoppable():
            outcomes = [pool.submit(self._run_job, name) for name in names]
            found = [outcome.result() for outcome in outcomes]
        if self.stopping:
            raise KeyboardInterrupt
        return [failure for failure in found if failure is not None]

    def _run_job(self, name: str) -> FailedFamily | None:
        if self.stopping:
            return None
        log = self.folder.log_file(name)
        log.parent.mkdir(parents=True, exist_ok=True)
        environment = os.environ | {variable: str(self.plan.threads) for variable in THREAD_VARIABLES}
        with log.open("wb") as output:
            process = self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "chainrule.comparison.runner", str(self.folder.path), name],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,  # the terminal's Ctrl-C goes to this process only, which forwards it
            )
        status, memory = self._wait(name, process)
        result = self.folder.job_result(name)
        if status == 0 and result is not None:
            write_whole(
                self.folder.job_file(name),
                result.model_copy(update={"memory_bytes": memory}).model_dump_json(indent=2),
            )
            self.progress(name, 1.0, {})
            return None
        if self.stopping or status == STOPPED:
            return None
        return FailedFamily(name=name, reason=failure_reason(status, log))

    def _wait(self, name: str, process: subprocess.Popen[bytes]) -> tuple[int, int]:
        """Wait for a process; return its exit status and its peak memory in bytes."""
        while True:
            done, status, usage = os.wait4(process.pid, os.WNOHANG)
            if done:
                process.returncode = os.waitstatus_to_exitcode(status)
                scale = 1 if sys.platform == "darwin" else 1024  # ru_maxrss is in bytes on macOS, in KiB elsewhere
                return process.returncode, usage.ru_maxrss * scale
            self._report_progress(name)
            time.sleep(POLL_SECONDS)

    def _report_progress(self, name: str) -> None:
        record = last_record(self.folder.run(name) / "metrics.jsonl")
        if record is None:
            return
        if self.plan.tokens is not None:
            fraction = record["tokens"] / self.plan.tokens
        else:
            fraction = record["seconds"] / 60 / (self.plan.job_minutes or 1.0)
        self.progress(name, min(0.999, fraction), record)

    @contextlib.contextmanager
    def _stoppable(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():  # only the main thread receives signals
            yield
            return

        def stop(number: int, frame: object) -> None:
            urgent, self.stopping = self.stopping, True
            for process in self.processes.values():
                if process.returncode is None:
                    process.send_signal(signal.SIGKILL if urgent else signal.SIGTERM)

        kept = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in kept.items():
                signal.signal(number, handler)


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


def failure_reason(status: int, log: Path) -> str:
    """Why a process failed, in one line: the signal, or the last line of its log."""
    if status < 0:
        name = signal.Signals(-status).name
        return f"its process was ended by {name}" + ("; there may be too little memory" if name == "SIGKILL" else "")
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else f"its process ended with status {status}"


def run_job(folder: ComparisonFolder, name: str) -> None:
    """Train one family, or resume its training, then score it on the validation and test data."""
    from chainrule.api import train
    from chainrule.evaluation.likelihood import surprisals
    from chainrule.tasks.base import parameters, require
    from chainrule.tasks.sequences import SequenceRun

    plan = folder.plan()
    job = next(job for job in plan.jobs if job.family == name)
    budget = {"tokens": plan.tokens} if plan.tokens is not None else {"minutes": plan.job_minutes}
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
                "model": job.model,
                "train": {**job.train, **(budget if is_neural(name) else {})},
            },
            resume=True,
            scored=False,
            progress=False,
        ),
        SequenceRun,  # type: ignore[type-abstract]  # only an isinstance check
    )
    seconds = time.monotonic() - began
    if run.outcome is not None and run.outcome.reason == "stopped":
        raise SystemExit(STOPPED)
    splits = run.splits(run.config.data)
    assert splits.test is not None
    for split, corpus in ((VALIDATION, splits.valid), (TEST, splits.test)):
        folder.write_surprisals(name, split, surprisals(run.autoregressive, corpus))
    result = JobResult(
        seconds=run.outcome.seconds if run.outcome else seconds,
        tokens=run.outcome.tokens if run.outcome else len(splits.train),
        parameters=parameters(run.model),
    )
    write_whole(folder.job_file(name), result.model_dump_json(indent=2))


def main() -> None:
    """Run one job. An expected failure is one line on stderr and status 2."""
    path, name = sys.argv[1:]
    with stop_signals() as received:
        try:
            run_job(ComparisonFolder(Path(path)), name)
        except KeyboardInterrupt:
            sys.exit(received.status)
        except (ChainruleError, OSError) as error:
            print(error, file=sys.stderr)
            sys.exit(2)
        except (MemoryError, RuntimeError) as error:
            if (problem := memory_problem(error)) is None:
                raise
            print(problem, file=sys.stderr)
            sys.exit(2)


if __name__ == "__main__":
    main()
