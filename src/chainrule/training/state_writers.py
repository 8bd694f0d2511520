"""Writers of checkpoints: one process writes a file; several write a part each, while training continues.

The parts are those of torch.distributed.checkpoint with its safetensors storage: any number of processes reads them,
each the parts it needs, and nothing is pickled.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple, cast, final

import torch
import torch.distributed as dist
from torch import Tensor

from chainrule.errors import RunError
from chainrule.training.checkpoint import RunFolder, Snapshot
from chainrule.training.distributed import Processes

Template = Callable[[str, torch.Size], Tensor | None]
"""The tensor to fill for a name and shape, if it is sharded; None: all of it is read."""


class StateWriter:
    """Writes the checkpoints of one process."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder

    def save(self, step: int, snapshot: Snapshot, *, end: bool) -> None:
        """Write a checkpoint; the last one is complete when this returns."""
        self.folder.write_state(step, snapshot, end=end)

    def poll(self) -> None:
        """Between steps: complete a checkpoint whose parts have been written."""


class _Pending(NamedTuple):
    written: Future[Any]
    folder: Path
    step: int
    values: dict[str, Any]
    end: bool


@final
class SharedStateWriter(StateWriter):
    """Writes the parts of several processes in the background. Process 0 completes a checkpoint: it gives the folder
    its name when all parts are there.
    """

    def __init__(self, folder: RunFolder, processes: Processes) -> None:
        super().__init__(folder)
        self.processes = processes
        self.group = dist.new_group(backend="gloo")  # the background thread must not disturb training
        self.pending: _Pending | None = None

    def save(self, step: int, snapshot: Snapshot, *, end: bool) -> None:
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
        from torch.distributed.checkpoint.state_dict_saver import async_save

        self._finish()
        folder = self.folder.path / "state" / f".step-{step:09d}{'-end' if end else ''}.parts"
        if self.processes.first:
            with self.folder.explained():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True)
        self.processes.wait()
        writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
        with warnings.catch_warnings(action="ignore"):
            written = async_save(dict(snapshot.tensors), storage_writer=writer, process_group=self.group)
        self.pending = _Pending(cast("Future[Any]", written), folder, step, snapshot.values, end)
        if end:
            self._finish()

    def poll(self) -> None:
        if self.pending is not None and self.processes.first and self.pending.written.done():
            self._complete(self.pending)

    def _finish(self) -> None:
        """Wait until the last checkpoint is complete."""
        if self.pending is None:
            return
        try:
            self.pending.written.result()
        except Exception as error:
            reason = str(error).strip().split("\n")[-1]
            raise RunError(
                f"the checkpoint of step {self.pending.step} cannot be written to {str(self.folder.path)!r} "
                f"({reason}); earlier checkpoints are intact, and the same command with --resume continues"
            ) from None
        if self.processes.first and self.pending.folder.is_dir():
            self._complete(self.pending)
        self.pending = None
        self.processes.wait()

    def _complete(self, pending: _Pending) -> None:
        if pending.folder.is_dir():
            self.folder.adopt_state(pending.folder, pending.step, pending.values, end=pending.end)


def state_writer(folder: RunFolder, processes: Processes) -> StateWriter:
    return StateWriter(folder) if processes.world == 1 else SharedStateWriter(folder, processes)


def read_parts(folder: Path, template: Template) -> dict[str, Tensor]:
    """Read the tensors of a checkpoint that was written in parts, or as one file."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    found: dict[str, Tensor] = {}
    for name, about in HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata.items():
        assert isinstance(about, TensorStorageMetadata)
        like = template(name, about.size)
        found[name] = torch.empty(about.size, dtype=about.properties.dtype) if like is None else torch.empty_like(like)
    with warnings.catch_warnings(action="ignore"):  # that this process reads for itself
        load(found, storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=True)
    return found
