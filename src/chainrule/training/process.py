"""The training process itself: how it was started, signals that stop it, and how its allocator keeps memory."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from types import FrameType
from typing import NamedTuple

LAUNCHED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")  # set by torchrun


class Launch(NamedTuple):
    """What torchrun has put into the environment of a process that trains together with others."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0  # on its machine
    restarts: int = 0  # of all processes, after one of them failed


def launched(environment: Mapping[str, str] = os.environ) -> Launch:
    """How this process was started: by torchrun, or as the only one."""
    if not all(name in environment for name in LAUNCHED):
        return Launch()
    rank, world, local_rank = (int(environment[name]) for name in LAUNCHED[:3])
    return Launch(rank, world, local_rank, int(environment.get("TORCHELASTIC_RESTART_COUNT", 0)))


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # from malloc.h
LARGEST_BLOCK = 1 << 30  # bytes; larger blocks are returned to the system


def keep_freed_memory() -> bool:
    """Make glibc keep the memory that a step frees for the next step; return whether this is possible.

    By default glibc returns freed blocks of more than a few hundred kilobytes to the system, which clears every page
    before it hands it out again. A training step frees and allocates hundreds of megabytes of such blocks: keeping
    them makes training on a CPU 1.02 to 1.3 times as fast (`benchmarks/memory.py`).
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        change = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another libc
        return False
    return bool(change(M_MMAP_THRESHOLD, LARGEST_BLOCK)) and bool(change(M_TRIM_THRESHOLD, 2 * LARGEST_BLOCK - 1))


KERNEL_CACHE = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
CACHED_KERNELS = 64  # more than the shapes of the products of one step


def limit_cached_kernels(environment: MutableMapping[str, str] = os.environ) -> None:
    """Limit the kernels that oneDNN keeps, unless the user has; without effect after its first product.

    It compiles one for each shape of a product in half precision and keeps 1,024 of them, each with its own memory.
    Batches of sentences have other shapes in every step, so that the memory of the process grows for a long time, and
    nothing is gained (`benchmarks/memory.py`).
    """
    environment.setdefault(KERNEL_CACHE, str(CACHED_KERNELS))


SMALLEST_RETURNED = 1 << 18  # bytes; with 1 << 20 a gpt of width 640 takes 1.17 times the memory and 0.9 times the time


def return_freed_memory() -> bool:
    """Make glibc return large freed blocks to the system at once; return whether this is possible.

    For sharded models: the weights of a block are gathered and freed again and again, and memory is what matters.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        change = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another libc
        return False
    return bool(change(M_MMAP_THRESHOLD, SMALLEST_RETURNED)) and bool(change(M_TRIM_THRESHOLD, SMALLEST_RETURNED))


INTERRUPTED = 128 + signal.SIGINT  # exit status


class Received:
    """The signal that has stopped the command."""

    status = INTERRUPTED


@contextlib.contextmanager
def stop_signals() -> Iterator[Received]:
    """Let SIGTERM stop a command as Ctrl-C does, so that temporary files are deleted on the way out."""
    received = Received()
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def stop(number: int, frame: FrameType | None) -> None:
        received.status = 128 + number
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield received
    finally:
        signal.signal(signal.SIGTERM, before)


@dataclass
class StopRequests:
    """Whether a signal has asked the run to stop."""

    stop: bool = False


@contextlib.contextmanager
def stop_requests() -> Iterator[StopRequests]:
    """Let Ctrl-C and SIGTERM request a stop after the current step; a second signal interrupts at once."""
    requests = StopRequests()
    if threading.current_thread() is not threading.main_thread():
        yield requests
        return

    def request_stop(number: int, frame: FrameType | None) -> None:
        if requests.stop:
            raise KeyboardInterrupt
        requests.stop = True

    previous = {number: signal.signal(number, request_stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield requests
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
