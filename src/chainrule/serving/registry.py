"""The runs that a server offers, by name.

A name is that of the run's folder. Names come from the folders that the server was started with, never from a request:
a request can only choose among the names that are known, so nothing that a client sends reaches the file system.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import torch

from chainrule.decoding import Sampling, generate_tokens
from chainrule.errors import ChainruleError, ConfigError, RunError, nearest
from chainrule.kernels.quantization import is_quantizable
from chainrule.tasks import Run, load
from chainrule.tasks.mixable import MixableRun
from chainrule.tasks.text import TextRun
from chainrule.tasks.weights import Weights, describe_loss, int8_loss
from chainrule.training.checkpoint import RunFolder
from chainrule.training.checksums import WEIGHTS

log = logging.getLogger(__name__)

SECONDS_BETWEEN_SCANS = 1.0
MOST_LOADED = 16


class UnknownRun(RunError):
    """A request names a run that is not served."""


class Stamp(NamedTuple):
    """What changes when the weights of a run are replaced."""

    modified: int  # nanoseconds
    size: int


class LoadedRun(NamedTuple):
    """A run in memory, its weights file when it was loaded, and when that was last compared with the folder."""

    run: Run
    stamp: Stamp
    checked: float


class Registry:
    """Runs and folders of runs. Folders are watched: runs appear and disappear without a restart.

    A run is loaded when it is first asked for, and again when its weights have changed; of the loaded runs the
    `most_loaded` used last are kept. With `weights` of int8, those with a compiled decoding step are stored so. All
    methods may be called from several threads; while a run is loaded, the others can be used.
    """

    def __init__(
        self,
        paths: Sequence[str | Path],
        *,
        device: str = "auto",
        most_loaded: int = MOST_LOADED,
        weights: Weights = "float32",
    ) -> None:
        self.paths = tuple(Path(path) for path in paths)
        self.device, self.most_loaded, self.weights = device, most_loaded, weights
        self._loading: dict[str, threading.Lock] = {}
        self._folders: dict[str, RunFolder] = {}
        self._loaded: OrderedDict[str, LoadedRun] = OrderedDict()
        self._lock = threading.RLock()
        self._scanned = 0.0
        for path in self.paths:
            if not path.is_dir():
                raise RunError(f"no run and no folder of runs at {str(path)!r}; check the path")
        self._scan(strict=True)
        for path in self.paths:
            if RunFolder(path).exists and path.resolve().name not in self.names():
                raise RunError(
                    f"run {str(path)!r} has no weights yet: training has not reached its first validation; wait, or "
                    "serve the folder that contains it, which is watched"
                )

    def names(self) -> list[str]:
        """The runs that can be used, in alphabetical order."""
        return sorted(name for name, folder in self.folders().items() if _stamp(folder) is not None)

    def folders(self) -> dict[str, RunFolder]:
        """All run folders by name, including those of trainings that have not saved weights yet."""
        with self._lock:
            if time.monotonic() - self._scanned > SECONDS_BETWEEN_SCANS:
                self._scan()
            return dict(self._folders)

    def preload(self) -> None:
        """Load the runs that were given themselves; those in folders are loaded when they are first asked for."""
        given = [path.resolve().name for path in self.paths if RunFolder(path).exists]
        for name in given[: self.most_loaded]:
            try:
                self.get(name)
            except ChainruleError as error:
                log.warning("not loaded: %s", error)

    def recent(self, name: str) -> Run | None:
        """The run of this name if it is loaded and the folder was looked at a moment ago; never waits."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            known = self._loaded.get(name)
            if known is None or time.monotonic() - known.checked >= SECONDS_BETWEEN_SCANS:
                return None
            self._loaded.move_to_end(name)
            return known.run
        finally:
            self._lock.release()

    def get(self, name: str) -> Run:
        """The run of this name, loaded if need be."""
        with self._lock:
            folder, stamp = self._stamped(name)
            known = self._loaded.get(name)
            if known is not None and known.stamp == stamp:
                return self._keep(name, known)
            loading = self._loading.setdefault(name, threading.Lock())
        with loading:
            with self._lock:
                folder, stamp = self._stamped(name)
                known = self._loaded.get(name)
            if known is None or known.stamp != stamp:
                try:
                    known = LoadedRun(self._load(folder), stamp, 0.0)
                except ChainruleError as error:
                    raise RunError(f"run {name!r} cannot be loaded: {error}") from None
            with self._lock:
                return self._keep(name, known)

    def _keep(self, name: str, known: LoadedRun) -> Run:
        """Remember a run that has just been compared with its folder."""
        self._loaded[name] = known._replace(checked=time.monotonic())
        self._loaded.move_to_end(name)
        while len(self._loaded) > self.most_loaded:
            self._loaded.popitem(last=False)
        return known.run

    def _stamped(self, name: str) -> tuple[RunFolder, Stamp]:
        """The folder of a run with weights, and their stamp."""
        folder = self.folders().get(name)
        stamp = None if folder is None else _stamp(folder)
        if folder is None or stamp is None:
            self._loaded.pop(name, None)
            raise UnknownRun(f"no run {name!r} is served; {self._known(name)}")
        return folder, stamp

    def _load(self, folder: RunFolder) -> Run:
        run = load(folder.path, device=self.device)
        if self.weights == "float32" or not (isinstance(run, MixableRun) and is_quantizable(run.model)):
            _prepare(run)
            return run
        small = run.with_weights(self.weights)
        _prepare(small)
        loss = int8_loss(run, small)
        log.info(
            describe_loss(loss) if loss is not None else "int8 weights", extra={"values": {"run": folder.path.name}}
        )
        return small

    def _known(self, name: str) -> str:
        names = self.names()
        return nearest(name, names) if names else "there are none yet"

    def _scan(self, *, strict: bool = False) -> None:
        """Find the runs; two of the same name are an error at the start, later the first one stays."""
        found: dict[str, RunFolder] = {}
        for path in self.paths:
            inside = [path] if RunFolder(path).exists else _subfolders(path)
            for one in inside:
                folder, name = RunFolder(one), one.resolve().name
                if not folder.exists:
                    continue
                if name not in found:
                    found[name] = folder
                elif strict and found[name].path.resolve() != one.resolve():
                    raise ConfigError(
                        f"two runs are named {name!r}: {str(found[name].path)!r} and {str(one)!r}; rename one of them"
                    )
        self._folders = found
        for name in [name for name in self._loaded if name not in found]:
            del self._loaded[name]
        self._scanned = time.monotonic()


def _prepare(run: Run) -> None:
    """Generate a little, so that compiled functions are loaded, or compiled, before a request waits for them."""
    if not isinstance(run, TextRun):
        return
    model = run.autoregressive
    with torch.inference_mode(), suppress(ChainruleError):  # a run that cannot generate may still be scored
        model.step(torch.zeros(1, dtype=torch.int64, device=model.device), model.start().state)
        generate_tokens(model, [[]], length=2, sampling=Sampling(), seeds=[0], suppress=tuple(run.suppressed))


def _subfolders(path: Path) -> list[Path]:
    try:
        return sorted(one for one in path.iterdir() if one.is_dir() and not one.name.startswith("."))
    except OSError:  # removed, or no longer readable
        return []


def _stamp(folder: RunFolder) -> Stamp | None:
    """None before the first weights are saved."""
    try:
        status = (folder.path / WEIGHTS).stat()
    except OSError:
        return None
    return Stamp(status.st_mtime_ns, status.st_size)
