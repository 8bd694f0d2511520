"""Training jobs: one family each, in a process of its own, a few in parallel, all within the time of the comparison."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

from chainrule.comparison.folder import ComparisonFolder, last_record
from chainrule.comparison.job import STOPPED
from chainrule.comparison.plan import ComparisonPlan, counted_first, is_neural
from chainrule.comparison.results import FailedFamily
from chainrule.comparison.schedule import Trial, scoring_share
from chainrule.deadline import NO_DEADLINE, Deadline
from chainrule.files import write_whole

JobProgress = Callable[[str, float, dict[str, Any]], None]
"""Called with a family, the fraction of its budget used so far, and its latest training record."""

POLL_SECONDS = 0.25
LATE_FRACTION = 0.25  # of the time kept for what follows, by which jobs may be late before they are ended
MIN_LATE = 3.0  # seconds, at least
FIRST_RESULT = 10.0  # seconds that the first families get at least, so that there is a result
MIN_JOB = 1.0  # a family that has less time left is not started
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
NO_TIME = "the budget leaves no time for more; give more --minutes, or list some --families"
NOT_FINISHED = "it was not finished when its time was up; give more --minutes"


class Ended(NamedTuple):
    """How a process ended."""

    status: int
    memory: int  # peak resident bytes


class Process:
    """A process that the server has started."""

    def __init__(self) -> None:
        self.started, self.ended = threading.Event(), threading.Event()
        self.pid: int | None = None
        self.result = Ended(-signal.SIGKILL, 0)

    def send(self, number: signal.Signals) -> None:
        if self.pid is not None and not self.ended.is_set():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


class StartsJobs(Protocol):
    """Starts the jobs of a comparison."""

    def start(self, job: str, action: str, deadline: Deadline = NO_DEADLINE) -> Process:
        """Start a process that trains a family, tries how fast it scores, or scores the test data."""


class JobServer:
    """The process that starts jobs (see `server`); it is ready a few seconds after its creation."""

    def __init__(self, folder: Path, threads: int) -> None:
        self.folder = folder
        environment = os.environ | {variable: str(threads) for variable in THREAD_VARIABLES}
        environment["OBJC_DISABLE_INITIALIZE_FORK_SAFETY"] = "YES"  # macOS refuses some forks otherwise
        self.server = subprocess.Popen(
            [sys.executable, "-m", "chainrule.comparison.server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # the terminal's Ctrl-C goes to this process only, which forwards it
        )
        self.processes: list[Process] = []
        self.lock = threading.Lock()
        self.listener = threading.Thread(target=self._listen, daemon=True)
        self.listener.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        assert self.server.stdin is not None
        with contextlib.suppress(OSError):
            self.server.stdin.close()
        if error[0] is not None:
            self.server.terminate()  # it may still be importing
        self.server.wait()
        self.listener.join()

    def start(self, job: str, action: str, deadline: Deadline = NO_DEADLINE) -> Process:
        """Start a process that trains a family, tries how fast it scores, or scores the test data."""
        process = Process()
        with self.lock:
            self.processes.append(process)
            end = None if deadline.end == math.inf else deadline.end
            request = {
                "id": len(self.processes) - 1,
                "folder": str(self.folder),
                "job": job,
                "action": action,
                "end": end,
            }
            assert self.server.stdin is not None
            try:
                self.server.stdin.write(json.dumps(request).encode() + b"\n")
                self.server.stdin.flush()
            except OSError:  # the server has ended
                process.ended.set()
        return process

    def _listen(self) -> None:
        assert self.server.stdout is not None
        for line in self.server.stdout:
            answer = json.loads(line)
            process = self.processes[answer["id"]]
            if "pid" in answer:
                process.pid = answer["pid"]
                process.started.set()
            else:
                process.result = Ended(answer["status"], answer["memory"])
                process.ended.set()
        for process in self.processes:
            process.ended.set()


class JobRunner:
    """Runs all unfinished jobs of a plan. The first Ctrl-C lets them save and stop; the second kills them."""

    def __init__(
        self,
        folder: ComparisonFolder,
        plan: ComparisonPlan,
        server: StartsJobs,
        progress: JobProgress,
        deadline: Deadline = NO_DEADLINE,
    ) -> None:
        self.folder = folder
        self.plan = plan
        self.server = server
        self.progress = progress
        self.deadline = deadline
        self.stopping = self.urgent = False
        self.lock = threading.Lock()
        self.waiting: list[str] = []
        self.left_out: list[str] = []  # families for which no time was left
        self.later = 0.0  # seconds kept for jobs that follow these
        self.together = 0  # neural families that are trained in the same phase

    def _is_neural(self, name: str) -> bool:
        return any(is_neural(job.family) for job in self.plan.jobs if job.name == name)

    def run_trials(self) -> dict[str, Trial]:
        """A trial of each neural family at its planned size; families that fail are missing."""
        names = [job.name for job in self.plan.jobs if is_neural(job.family)]

        def measure(name: str) -> None:
            process = self.server.start(name, "trial")
            while not process.ended.wait(POLL_SECONDS):
                if self.stopping:
                    process.send(signal.SIGKILL)

        with ThreadPoolExecutor(self.plan.workers) as pool, self._stoppable():
            list(pool.map(measure, names))
        if self.stopping:
            raise KeyboardInterrupt
        files = {name: self.folder.trial_file(name) for name in names}
        return {name: Trial.model_validate_json(file.read_text()) for name, file in files.items() if file.is_file()}

    def distil(self, name: str, limit: Deadline) -> bool:
        """Let the teacher of a model translate the training data until a limit; whether that is done."""
        process = self.server.start(name, "distil")
        with self._stoppable():
            while not process.ended.wait(POLL_SECONDS):
                if self.stopping or limit.passed:
                    process.send(signal.SIGKILL)
        if self.stopping:
            raise KeyboardInterrupt
        return self.folder.distilled_file(name).is_file()

    def score(self, speeds: Mapping[str, float], deadline: Deadline, progress: Callable[[float], None]) -> None:
        """Score trained models on the test data until a deadline, each on a little of it at least.

        `speeds` are tokens per second, as expected; the slowest models come first. Each is given a share of the time
        by which all get equally far, and what one leaves of it goes to the others. Models that fail, or take far too
        long, have no scores.
        """
        limit = max(deadline.earlier(-MIN_LATE), deadline.after(FIRST_RESULT), key=lambda one: one.end)
        done = itertools.count(1)
        waiting = sorted(speeds, key=lambda name: speeds[name])
        ends: dict[str, Deadline] = {}  # of those that are being scored

        def score(name: str) -> None:
            if self.stopping:
                return
            with self.lock:
                times = [1 / speeds[one] for one in waiting[waiting.index(name) :]]
                busy = [max(0.0, end.remaining) for end in ends.values()]
                share = deadline
                if deadline.end < math.inf:
                    left = max(0.0, deadline.remaining)
                    share = deadline.within(scoring_share(times, busy, left, workers=self.plan.workers))
                ends[name] = share
            self._wait(name, self.server.start(name, "score", share), limit)
            with self.lock:
                del ends[name]
            progress(next(done) / len(speeds))

        with ThreadPoolExecutor(self.plan.workers) as pool, self._stoppable():
            list(pool.map(score, waiting))
        if self.stopping:
            raise KeyboardInterrupt

    def run(self, *, taught: bool = False, later: float = 0.0) -> list[FailedFamily]:
        """Run the jobs without a teacher, or those with one, and return those that failed; `later` seconds are kept.

        Raises KeyboardInterrupt if they were stopped.
        """
        self.later = later
        jobs = [job for job in self.plan.jobs if job.taught == taught]
        self.together = sum(is_neural(job.family) for job in jobs)
        names = counted_first(job for job in jobs if not self.folder.job_result(job.name))
        self.waiting = list(names)
        with ThreadPoolExecutor(self.plan.workers) as pool, self._stoppable():
            outcomes = [pool.submit(self._run_job, name) for name in names]
            found = [outcome.result() for outcome in outcomes]
        if self.stopping:
            raise KeyboardInterrupt
        return [failure for failure in found if failure is not None]

    def job_deadline(self, name: str) -> Deadline | None:
        """When a job that starts now has to end; None if too little time is left to start it.

        The time is that of the schedule, or an equal share of what is left if others took longer. A count model has
        no budget of its own, so it may take all of the time.
        """
        with self.lock:
            self.waiting.remove(name)
            rest = sum(map(self._is_neural, self.waiting)) + 1
        schedule = self.plan.schedule
        if schedule is None:
            return NO_DEADLINE
        end = self.deadline.earlier(schedule.after + self.later)
        if not self._is_neural(name):
            return end
        wanted = schedule.training + schedule.scoring.get(name, 0.0)
        share = min(wanted, end.remaining / math.ceil(rest / self.plan.workers))
        first = rest == self.together
        return end.within(share) if share >= MIN_JOB else self.deadline.within(MIN_JOB) if first else None

    def _limit(self) -> Deadline:
        """When a job that starts now is ended: a little after its deadline, and later if there is no result yet."""
        after = 0.0 if self.plan.schedule is None else self.plan.schedule.after
        limit = self.deadline.earlier(after + self.later - max(MIN_LATE, LATE_FRACTION * after))
        if any(self.folder.job_result(job.name) for job in self.plan.jobs):
            return limit
        return max(limit.after(FIRST_RESULT), self.deadline.earlier(-MIN_LATE), key=lambda one: one.end)

    def _run_job(self, name: str) -> FailedFamily | None:
        if self.stopping:
            return None
        deadline = self.job_deadline(name)
        if deadline is None:
            self.left_out.append(name)
            return None
        process = self.server.start(name, "train", deadline)
        ended = self._wait(name, process, self._limit())
        result = self.folder.job_result(name)
        if ended.status == 0 and result is not None:
            write_whole(
                self.folder.job_file(name),
                result.model_copy(update={"memory_bytes": ended.memory}).model_dump_json(indent=2),
            )
            self.progress(name, 1.0, {})
            return None
        if self.stopping or ended.status == STOPPED:
            return None
        if ended.status == -signal.SIGKILL and deadline.passed:
            return FailedFamily(name=name, reason=NOT_FINISHED)
        return FailedFamily(name=name, reason=failure_reason(ended.status, self.folder.log_file(name)))

    def _wait(self, name: str, process: Process, limit: Deadline) -> Ended:
        """Wait for a process; end it if it is still running at the limit."""
        asked = False
        while not process.ended.wait(POLL_SECONDS):
            if self.stopping and not asked:
                process.send(signal.SIGTERM)
                asked = True
            if limit.passed or self.urgent:
                process.send(signal.SIGKILL)
            self._report_progress(name)
        return process.result

    def _report_progress(self, name: str) -> None:
        record = last_record(self.folder.run(name) / "metrics.jsonl")
        if record is None:
            return
        if self.plan.schedule is None:
            fraction = record["tokens"] / (self.plan.tokens or 1)
        else:
            fraction = record["seconds"] / self.plan.schedule.training
        self.progress(name, min(0.999, fraction), record)

    @contextlib.contextmanager
    def _stoppable(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():  # only the main thread receives signals
            yield
            return

        def stop(number: int, frame: object) -> None:
            self.urgent, self.stopping = self.stopping, True

        kept = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in kept.items():
                signal.signal(number, handler)


def failure_reason(status: int, log: Path) -> str:
    """Why a process failed, in one line: the signal, or the last line of its log."""
    if status < 0:
        name = signal.Signals(-status).name
        return f"its process was ended by {name}" + ("; there may be too little memory" if name == "SIGKILL" else "")
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else f"its process ended with status {status}"
