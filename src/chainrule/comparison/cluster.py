"""Jobs of a comparison on other machines, by any `concurrent.futures.Executor` (see `data.cluster`).

A worker runs a job as this machine would: in a process of its own, with the folder of the comparison and the data at
the same paths (a shared file system). If a worker is lost, its job is started again elsewhere and continues from its
last checkpoint; a lock in the folder keeps a job from running twice at a time.
"""

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
import time
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, Executor, Future
from pathlib import Path
from typing import Any, Self

from chainrule.comparison.runner import THREAD_VARIABLES, Ended, Process
from chainrule.deadline import NO_DEADLINE, Deadline
from chainrule.errors import ChainruleError

TRIES = 4  # of a job whose worker is lost
POLL_SECONDS = 0.1


class ClusterJob(Process):
    """A job on a worker. Signals reach it by a file in the folder of the comparison."""

    def __init__(self, stop_file: Path) -> None:
        super().__init__()
        self.stop_file = stop_file
        self.started.set()

    def send(self, number: signal.Signals) -> None:
        if not self.ended.is_set():
            self.stop_file.write_text(str(int(number)))


class ClusterServer:
    """Starts jobs on the workers of an executor, with the interface of `JobServer`."""

    def __init__(self, folder: Path, threads: int, executor: Executor) -> None:
        self.folder, self.threads, self.executor = folder.absolute(), threads, executor
        self.numbers = itertools.count()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def start(self, job: str, action: str, deadline: Deadline = NO_DEADLINE) -> Process:
        stop_file = self.folder / "jobs" / f"{job}.{next(self.numbers)}.stop"
        remaining = None if deadline.end == math.inf else deadline.remaining
        request = {"id": 0, "folder": str(self.folder), "job": job, "action": action, "remaining": remaining}
        process = ClusterJob(stop_file)
        self._submit(process, request, TRIES)
        return process

    def _submit(self, process: ClusterJob, request: dict[str, Any], tries: int) -> None:
        def ended(future: Future[tuple[int, int]]) -> None:
            error = None if future.cancelled() else future.exception()
            lost = error is not None and not isinstance(error, ChainruleError)
            if lost and tries > 1 and not process.stop_file.exists() and not isinstance(error, BrokenExecutor):
                self._submit(process, request, tries - 1)
                return
            if error is None and not future.cancelled():
                process.result = Ended(*future.result())
            process.stop_file.unlink(missing_ok=True)
            process.ended.set()

        arguments = (request, str(process.stop_file), self.threads, str(Path.cwd()))
        self.executor.submit(run_request, *arguments).add_done_callback(ended)


def run_request(request: dict[str, Any], stop_file: str, threads: int, directory: str) -> tuple[int, int]:
    """Run a job on a worker: return its exit status and its peak memory in bytes."""
    import fcntl  # POSIX

    lock = Path(request["folder"], "jobs", f"{request['job']}.lock")
    lock.parent.mkdir(parents=True, exist_ok=True)
    remaining = request["remaining"]
    end = None if remaining is None else time.monotonic() + remaining
    environment = os.environ | {variable: str(threads) for variable in THREAD_VARIABLES}
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # inherited by the job: until that of a lost worker has ended
        server = subprocess.Popen(
            [sys.executable, "-m", "chainrule.comparison.server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            cwd=directory,
            pass_fds=[held.fileno()],
        )
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps(request | {"end": end}).encode() + b"\n")
        server.stdin.flush()
        try:
            started = json.loads(server.stdout.readline())
            with _forwarded(Path(stop_file), started["pid"]):
                answer = json.loads(server.stdout.readline())
            return int(answer["status"]), int(answer["memory"])
        finally:
            server.stdin.close()
            server.wait()


@contextlib.contextmanager
def _forwarded(stop_file: Path, process: int) -> Iterator[None]:
    """Send the signals that the folder asks for to a process, while the block waits for its end."""
    done = threading.Event()

    def watch() -> None:
        sent = ""
        while not done.wait(POLL_SECONDS):
            wanted = stop_file.read_text() if stop_file.is_file() else ""
            if wanted and wanted != sent:
                sent = wanted
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, int(wanted))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
