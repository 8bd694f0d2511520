"""Training the families of a comparison, a few at a time, each in its own process."""

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

from chainrule.comparison.folder import ComparisonFolder
from chainrule.comparison.leg import STOPPED
from chainrule.comparison.plan import Plan, counted_first
from chainrule.comparison.results import Failure
from chainrule.files import write_whole

Watch = Callable[[str, float, dict[str, Any]], None]
"""Called with a family, the share of its budget that is used up, and its latest figures."""

GLANCE = 0.5  # seconds between two looks at a leg


class Race:
    """All legs that are not finished yet. A second Ctrl-C ends the processes at once; the first lets them save."""

    def __init__(self, folder: ComparisonFolder, plan: Plan, watch: Watch) -> None:
        self.folder = folder
        self.plan = plan
        self.watch = watch
        self.stopping = False
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def run(self) -> list[Failure]:
        """Every leg that can be run is finished when this returns; those that failed are named."""
        names = counted_first([leg.family for leg in self.plan.legs if not self.folder.finish(leg.family)])
        with ThreadPoolExecutor(self.plan.jobs) as pool, self._stoppable():
            outcomes = [pool.submit(self._leg, name) for name in names]
            found = [outcome.result() for outcome in outcomes]
        if self.stopping:
            raise KeyboardInterrupt
        return [failure for failure in found if failure is not None]

    def _leg(self, name: str) -> Failure | None:
        if self.stopping:
            return None
        log = self.folder.log_file(name)
        log.parent.mkdir(parents=True, exist_ok=True)
        environment = os.environ | {variable: str(self.plan.threads) for variable in THREADS}
        with log.open("wb") as output:
            process = self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "chainrule.comparison.leg", str(self.folder.path), name],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,  # Ctrl-C reaches the legs through us
            )
        status, memory = self._wait(name, process)
        finish = self.folder.finish(name)
        if status == 0 and finish is not None:
            write_whole(
                self.folder.finish_file(name),
                finish.model_copy(update={"memory_bytes": memory}).model_dump_json(indent=2),
            )
            self.watch(name, 1.0, {})
            return None
        if self.stopping or status == STOPPED:
            return None
        return Failure(name=name, reason=reason_of(status, log))

    def _wait(self, name: str, process: subprocess.Popen[bytes]) -> tuple[int, int]:
        """The exit status of a process and its peak memory in bytes."""
        while True:
            done, status, usage = os.wait4(process.pid, os.WNOHANG)
            if done:
                process.returncode = os.waitstatus_to_exitcode(status)
                scale = 1 if sys.platform == "darwin" else 1024  # ru_maxrss is in bytes there, else in KiB
                return process.returncode, usage.ru_maxrss * scale
            self._glance(name)
            time.sleep(GLANCE)

    def _glance(self, name: str) -> None:
        record = last_record(self.folder.run(name) / "metrics.jsonl")
        if record is None:
            return
        if self.plan.tokens is not None:
            share = record["tokens"] / self.plan.tokens
        else:
            share = record["seconds"] / 60 / (self.plan.leg_minutes or 1.0)
        self.watch(name, min(0.999, share), record)

    @contextlib.contextmanager
    def _stoppable(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():  # where Python delivers no signals
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


THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def last_record(file: Path) -> dict[str, Any] | None:
    """The newest whole line of a metrics file."""
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


def reason_of(status: int, log: Path) -> str:
    """Why a process failed, in one line."""
    if status < 0:
        name = signal.Signals(-status).name
        return f"its process was ended by {name}" + ("; there may be too little memory" if name == "SIGKILL" else "")
    said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return said[-1] if said else f"its process ended with status {status}"
