"""The processes that train one model together. One process is the trivial case, so that the loop has no other.

    torchrun --nproc-per-node 4 -m chainrule train gpt --data my.txt --out runs/gpt

torchrun starts the processes and names them in the environment; `joined` connects them by torch.distributed. Small
values travel over gloo, gradients over NCCL if the model is on a GPU. Every process executes the same code on its own
rows of every batch. What only one of them may decide or do is a method here: the clock and the choice of the best
weights are those of process 0, which also writes the run folder and prints.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from chainrule.errors import ConfigError, TrainingError
from chainrule.training.checkpoint import FollowerFolder, RunFolder
from chainrule.training.process import Launch, launched

Item = TypeVar("Item")

PATIENCE = timedelta(hours=12)  # for one process that reads the data first; torchrun ends all if one of them fails


class Processes:
    """A single process."""

    rank = 0
    world = 1
    local_rank = 0

    @property
    def first(self) -> bool:
        """Whether this process writes and prints."""
        return self.rank == 0

    def gather(self, *values: float) -> list[list[float]]:
        """The values of every process, by rank."""
        return [list(values)]

    def sum(self, *values: float) -> list[float]:
        return [sum(column) for column in zip(*self.gather(*values), strict=True)]

    def any(self, condition: bool) -> bool:
        """Whether it holds in any process."""
        return condition

    def of_first(self, *values: float) -> list[float]:
        """The values of process 0."""
        return self.gather(*values)[0]

    def agreed_text(self, text: str) -> str:
        """The text of process 0."""
        return text

    def wait(self) -> None:
        """Until all processes are here."""

    @contextlib.contextmanager
    def in_turn(self) -> Iterator[None]:
        """Process 0 executes the block first, then one per machine, then the others: they find what it has cached."""
        yield

    def share(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items of this process: one of `world` in turn."""
        return itertools.islice(items, self.rank, None, self.world)

    def sum_arrays(self, *arrays: npt.NDArray[Any]) -> None:
        """Replace arrays by their sums over all processes; for flags, which are set in one of them, by their union."""

    def all_rows(self, tensor: Tensor) -> Tensor:
        """Rows 0, world, … of process 0, rows 1, world + 1, … of process 1, …, put together again."""
        return tensor

    def folder(self, folder: RunFolder) -> RunFolder:
        """The run folder as this process may use it."""
        return folder

    @contextlib.contextmanager
    def own_randomness(self, seed: int, device: torch.device) -> Iterator[None]:
        """Random numbers in the block, such as dropout, differ between processes; afterwards all are as before."""
        yield


class Group(Processes):
    """One of several processes, connected by torch.distributed."""

    def __init__(self, local_rank: int) -> None:
        self.rank, self.world, self.local_rank = dist.get_rank(), dist.get_world_size(), local_rank

    def gather(self, *values: float) -> list[list[float]]:
        own = torch.tensor(values, dtype=torch.float64)
        found = [torch.empty_like(own) for _ in range(self.world)]
        dist.all_gather(found, own)
        return [one.tolist() for one in found]

    def any(self, condition: bool) -> bool:
        return any(value for [value] in self.gather(float(condition)))

    def agreed_text(self, text: str) -> str:
        content = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
        [size] = self.of_first(len(content))
        if not self.first:
            content = torch.empty(int(size), dtype=torch.uint8)
        dist.broadcast(content, src=0)
        return bytes(content.tolist()).decode()

    def wait(self) -> None:
        self.gather(0.0)

    @contextlib.contextmanager
    def in_turn(self) -> Iterator[None]:
        turn = 0 if self.first else 1 if self.local_rank == 0 else 2
        for _ in range(turn):
            self.wait()
        yield
        for _ in range(turn, 2):
            self.wait()

    def sum_arrays(self, *arrays: npt.NDArray[Any]) -> None:
        for array in arrays:
            if array.dtype == np.bool_:
                dist.all_reduce(torch.from_numpy(array.view(np.uint8)), dist.ReduceOp.MAX)
            else:
                dist.all_reduce(torch.from_numpy(array))

    def all_rows(self, tensor: Tensor) -> Tensor:
        rows = [int(count) for [count] in self.gather(len(tensor))]
        padded = tensor.new_zeros((max(rows), *tensor.shape[1:]), device="cpu")
        padded[: len(tensor)] = tensor.cpu()
        found = [torch.empty_like(padded) for _ in rows]
        dist.all_gather(found, padded)
        whole = padded.new_empty((sum(rows), *tensor.shape[1:]))
        for rank, (part, count) in enumerate(zip(found, rows, strict=True)):
            whole[rank :: self.world] = part[:count]
        return whole

    def folder(self, folder: RunFolder) -> RunFolder:
        return folder if self.first else FollowerFolder(folder.path)

    @contextlib.contextmanager
    def own_randomness(self, seed: int, device: torch.device) -> Iterator[None]:
        devices = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed((seed + self.rank) % 2**63)
            yield


class PartDone(Exception):
    """One of several independent jobs has computed its part of some arrays."""

    def __init__(self, arrays: Sequence[npt.NDArray[Any]]) -> None:
        super().__init__("a part of the work is done")
        self.arrays = arrays


class Job(Processes):
    """One of several jobs that are not connected: it ends with its part of what they compute together."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world

    def sum_arrays(self, *arrays: npt.NDArray[Any]) -> None:
        raise PartDone(arrays)


class Collected(Processes):
    """Jobs that are done: the same work has nothing left to compute, and gets the sum of their parts."""

    def __init__(self, add_parts: Callable[[Sequence[npt.NDArray[Any]]], None]) -> None:
        self._add_parts = add_parts

    def share(self, items: Iterable[Item]) -> Iterator[Item]:
        return iter(())

    def sum_arrays(self, *arrays: npt.NDArray[Any]) -> None:
        self._add_parts(arrays)


ONE = Processes()
_joined: list[Processes] = [ONE]  # the processes that this one works with, innermost last


def current() -> Processes:
    """The processes that work together now: those of `joined`, or this one alone."""
    return _joined[-1]


@contextlib.contextmanager
def acting_as(processes: Processes) -> Iterator[None]:
    """Work as one of these processes within the block."""
    _joined.append(processes)
    try:
        yield
    finally:
        _joined.remove(processes)


@contextlib.contextmanager
def joined(device: torch.device) -> Iterator[Processes]:
    """Connect the processes that torchrun has started for the block; without torchrun, this process alone."""
    launch = launched()
    if launch.world == 1:
        yield ONE
        return
    with explained():
        if device.type == "cuda":
            torch.cuda.set_device(device)
        store, rank, world = next(rendezvous("env://", timeout=PATIENCE))
        # torchrun keeps its store when it restarts the processes; addresses of those before must not be found.
        store = PrefixStore(f"restart {launch.restarts}", store)
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=PATIENCE)
    group = Group(launch.local_rank)
    try:
        with acting_as(group), explained():
            yield group
    finally:
        dist.destroy_process_group()


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Convert errors of the connection, which other processes see when one of them fails, into one line."""
    try:
        yield
    except dist.DistError as error:
        raise _lost(error) from None
    except RuntimeError as error:
        if "gloo" not in str(error) and "NCCL" not in str(error) and "closed by peer" not in str(error):
            raise
        raise _lost(error) from None


def _lost(error: Exception) -> TrainingError:
    reason = str(error).strip().split("\n")[0]
    return TrainingError(
        f"the connection to another process of this run was lost ({reason}); see the message of that process; "
        "the same command with --resume continues from the last checkpoint"
    )


def process_device(device: torch.device, launch: Launch) -> torch.device:
    """The device of a process: each has a GPU of its own."""
    if device.type != "cuda" or launch.world == 1:
        return device
    if launch.local_rank >= torch.cuda.device_count():
        raise ConfigError(
            f"process {launch.local_rank} of this machine has no GPU of its own: there are "
            f"{torch.cuda.device_count()}; start torchrun with --nproc-per-node {torch.cuda.device_count()}"
        )
    return torch.device("cuda", launch.local_rank)


def require_several_possible(family: str, data: Sequence[str | None], *, by_gradients: bool) -> None:
    """Raise ConfigError if torchrun has started several processes for what only one can do."""
    world = launched().world
    if world == 1:
        return
    if not by_gradients:
        raise ConfigError(
            f"{family} is not trained by gradients, so {world} processes cannot share the work; start it without "
            "torchrun: chainrule train …"
        )
    if "-" in data:
        raise ConfigError(f"standard input cannot be read by {world} processes; write it to a file")
