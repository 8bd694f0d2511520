"""Jobs of a comparison on other machines, by any `concurrent.futures.Executor`; Dask's is the one that is supported.

    chainrule compare … --on local:4              a cluster of four workers on this machine
    chainrule compare … --on tcp://scheduler:8786 a running Dask scheduler
    chainrule compare … --on slurm.yaml           a cluster that is started for the comparison, as the file describes

A worker runs a job as this machine would: in a process of its own, with the folder of the comparison and the data at
the same paths (a shared file system). If a worker is lost, its job is started again elsewhere and continues from its
last checkpoint; a lock in the folder keeps a job from running twice at a time.
"""

from __future__ import annotations

import contextlib
import importlib
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

from pydantic import Field

from chainrule.comparison.runner import THREAD_VARIABLES, Ended, Process
from chainrule.config import Settings
from chainrule.deadline import NO_DEADLINE, Deadline
from chainrule.errors import ChainruleError, ConfigError, MissingExtra

TRIES = 4  # of a job whose worker is lost
POLL_SECONDS = 0.1
CONNECT_SECONDS = 30


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


def parallel_jobs(executor: Executor) -> int:
    """How many jobs an executor runs at a time."""
    client = getattr(executor, "_client", None)  # of Dask
    if client is not None:
        workers = client.scheduler_info(n_workers=-1)["workers"].values()
        return max(1, sum(int(worker["nthreads"]) for worker in workers))
    return int(getattr(executor, "_max_workers", 1))


class ClusterDescription(Settings):
    """A YAML file that describes a cluster to start."""

    cluster: str  # the class, such as dask_jobqueue.SLURMCluster or dask_kubernetes.operator.KubeCluster
    workers: int
    settings: dict[str, Any] = Field(default_factory=dict)


@contextlib.contextmanager
def connected(where: str) -> Iterator[Executor]:
    """The executor of `--on`: local:N, the address of a scheduler, or a YAML file that describes a cluster."""
    try:
        from distributed import Client, LocalCluster
    except ImportError:
        raise MissingExtra("--on", "cluster") from None
    with contextlib.ExitStack() as stack:
        if where.startswith("local:"):
            count = where.removeprefix("local:")
            if not count.isdigit() or int(count) < 1:
                raise ConfigError(f"--on {where!r} needs a number of workers; for example --on local:4")
            start: Any = LocalCluster
            address = stack.enter_context(start(n_workers=int(count), threads_per_worker=1, dashboard_address=None))
        elif where.endswith((".yaml", ".yml")):
            address = stack.enter_context(_described_cluster(Path(where)))
        elif "://" in where:
            address = where
        else:
            raise ConfigError(
                f"--on {where!r} is neither local:N, nor the address of a scheduler such as tcp://host:8786, nor a "
                ".yaml file; correct it"
            )
        try:
            connect: Any = Client
            client = stack.enter_context(connect(address, timeout=CONNECT_SECONDS))
        except (OSError, TimeoutError) as error:
            raise ConfigError(
                f"no Dask scheduler answers at {where!r} ({error}); start one with: dask scheduler"
            ) from None
        yield stack.enter_context(client.get_executor(pure=False))


def _described_cluster(file: Path) -> Any:
    import yaml  # type: ignore[import-untyped]  # a dependency of Dask

    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"{str(file)!r} cannot be read: {str(error).splitlines()[0]}") from None
    described = ClusterDescription.parse(values, where=file.name)
    module, _, name = described.cluster.rpartition(".")
    try:
        kind = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError):
        raise ConfigError(
            f"{file.name}: there is no {described.cluster!r}; install the package of the cluster, for example: "
            "pip install dask-jobqueue"
        ) from None
    cluster = kind(**described.settings)
    cluster.scale(described.workers)
    return cluster
