"""Independent work on data, by several processes of this machine or by any `concurrent.futures.Executor`.

Local workers are processes of their own (`python -m chainrule.data.workers`), which import neither torch nor the script
of the user. What is sent and received goes through pipes. If a worker is lost, its work is done again by another.
Workers of an executor may have several threads; each thread that is not alone has such a process for its work.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, as_completed
from contextvars import ContextVar
from typing import Any, TypeVar

from chainrule.errors import ChainruleError, DataError

Result = TypeVar("Result")

TRIES = 4  # of work whose worker is lost

_executor: ContextVar[Executor | None] = ContextVar("executor", default=None)
_local: ContextVar[_LocalBlock | None] = ContextVar("local", default=None)


class _LocalBlock:
    """The processes of a block of `local_workers`, started when there is work for several of them."""

    def __init__(self, count: int | None, stack: contextlib.ExitStack) -> None:
        self.count, self._stack = count, stack
        self._processes: LocalWorkers | None = None

    def processes(self) -> LocalWorkers:
        if self._processes is None:
            self._processes = self._stack.enter_context(LocalWorkers(self.count or _cores()))
        return self._processes


@contextlib.contextmanager
def working_on(executor: Executor | None) -> Iterator[None]:
    """Do the work of this block on an executor, if there is one; its workers see data and cache at the same paths."""
    token = _executor.set(executor)
    try:
        yield
    finally:
        _executor.reset(token)


@contextlib.contextmanager
def local_workers(count: int | None) -> Iterator[None]:
    """Do the work of this block by so many processes of this machine, by default one per core.

    They are kept until the block ends: starting one, and loading compiled code, takes a second of its core.
    """
    with contextlib.ExitStack() as stack:
        token = _local.set(_LocalBlock(count, stack))
        try:
            yield
        finally:
            _local.reset(token)


def on_executor() -> bool:
    """Whether work is done on an executor."""
    return _executor.get() is not None


def worker_count() -> int:
    """How many workers there are."""
    given, local = _executor.get(), _local.get()
    if given is not None:
        return parallel_jobs(given)
    return (None if local is None else local.count) or _cores()


def parallel_jobs(executor: Executor) -> int:
    """How many jobs an executor runs at a time."""
    client = getattr(executor, "_client", None)  # of Dask
    if client is not None:
        workers = client.scheduler_info(n_workers=-1)["workers"].values()
        return max(1, sum(int(worker["nthreads"]) for worker in workers))
    return int(getattr(executor, "_max_workers", 1))


def _cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def results(function: Callable[..., Result], arguments: Sequence[tuple[Any, ...]]) -> Iterator[tuple[int, Result]]:
    """Call a function with each of several arguments; yield the results as they are ready, with their index."""
    given, local = _executor.get(), _local.get()
    count = min(worker_count(), len(arguments))
    if given is not None:
        yield from _completed(given, isolated, [(function, *one) for one in arguments])
    elif count <= 1:
        yield from ((index, function(*one)) for index, one in enumerate(arguments))
    elif local is not None:
        yield from _completed(local.processes(), function, arguments)
    else:
        with LocalWorkers(count) as executor:
            yield from _completed(executor, function, arguments)


def _completed(
    executor: Executor, function: Callable[..., Result], arguments: Sequence[tuple[Any, ...]]
) -> Iterator[tuple[int, Result]]:
    waiting: dict[Future[Result], int] = {}
    lost = [0] * len(arguments)
    try:
        waiting = {executor.submit(function, *one): index for index, one in enumerate(arguments)}
        while waiting:
            future = next(as_completed(waiting))
            index = waiting.pop(future)
            error = future.exception()
            if error is None:
                yield index, future.result()
                continue
            lost[index] += 1
            if isinstance(error, ChainruleError):
                raise error
            if lost[index] == TRIES:
                raise DataError(
                    f"a part of the work cannot be done: {TRIES} workers were lost ({type(error).__name__}: {error}); "
                    "check their memory, or lower data.workers"
                ) from error
            waiting[executor.submit(function, *arguments[index])] = index
    finally:
        for future in waiting:
            future.cancel()


class WorkerLost(Exception):
    """A process has ended without a result."""


class WorkerProcess:
    """A process that does one piece of work after the other for a thread of this one."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "chainrule.data.workers"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def call(self, function: Callable[..., Result], arguments: tuple[Any, ...]) -> Result:
        request = pickle.dumps((function, arguments))  # before anything is sent, since it may fail
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(request)
            self.process.stdin.flush()
            result, error = pickle.load(self.process.stdout)
        except (OSError, EOFError, pickle.UnpicklingError) as problem:
            raise WorkerLost(f"process {self.process.pid}") from problem
        if error is not None:
            raise error
        found: Result = result
        return found


_own = threading.local()  # the process of each thread of an executor


def isolated(function: Callable[..., Result], *arguments: Any) -> Result:
    """Call a function where no other thread works: here, or in a process that this thread keeps for it.

    The threads of a process share models and their caches, random numbers, and settings of libraries.
    """
    if _is_alone():
        return function(*arguments)
    if getattr(_own, "process", None) is None:
        _own.process = WorkerProcess()
    try:
        return _own.process.call(function, arguments)  # type: ignore[no-any-return]
    except WorkerLost:
        _own.process = None
        raise


def _is_alone() -> bool:
    """Whether this is the only thread of a worker: its main thread, or that of a worker of Dask with one."""
    if threading.current_thread() is threading.main_thread():
        return True
    if "distributed" not in sys.modules:
        return False
    from distributed import get_worker

    try:
        worker: Any = get_worker()
    except ValueError:  # not in a worker
        return False
    return int(worker.state.nthreads) == 1


class LocalWorkers(ThreadPoolExecutor):
    """Processes on this machine, each fed by a thread."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self._thread = threading.local()
        self._processes: list[subprocess.Popen[bytes]] = []

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        return super().submit(self._in_process, function, arguments)

    def __exit__(self, *error: Any) -> None:
        for process in self._processes:
            process.kill()
        super().__exit__(*error)
        for process in self._processes:
            process.communicate()

    def _in_process(self, function: Callable[..., Result], arguments: tuple[Any, ...]) -> Result:
        worker: WorkerProcess | None = getattr(self._thread, "worker", None)
        if worker is None:
            worker = self._thread.worker = WorkerProcess()
            self._processes.append(worker.process)
        try:
            return worker.call(function, arguments)
        except WorkerLost:
            self._thread.worker = None
            raise


def serve() -> None:
    """Work for the process that has started this one, until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the other process decides
    requests = sys.stdin.buffer
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)  # what is printed here is no answer
        while True:
            try:
                function, arguments = pickle.load(requests)
            except EOFError:
                return
            try:
                answer: tuple[Any, Exception | None] = function(*arguments), None
            except Exception as error:
                answer = None, error
            pickle.dump(answer, answers)
            answers.flush()


if __name__ == "__main__":
    serve()
