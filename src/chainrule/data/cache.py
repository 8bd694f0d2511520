"""What has been computed once and need not be computed again, each thing in a folder named by its fingerprint.

An entry is written to a folder of another name, flushed to the disk and then renamed, so that an entry is either
whole or absent, whatever happens to the process and however many build the same one at a time.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from chainrule.errors import DataError, TokenizerError

FORMAT = 1  # of everything in the cache; a higher number makes older entries unreachable
UNFINISHED = ".unfinished-"
ABANDONED_AFTER = 24 * 3600  # seconds without a write, after which an unfinished entry is nobody's


Found = TypeVar("Found")


def cache_root() -> Path:
    """$CHAINRULE_CACHE, or ~/.cache/chainrule."""
    chosen = os.environ.get("CHAINRULE_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "chainrule"


def fingerprint(kind: str, *parts: object) -> str:
    """A name for what follows from these plain values and nothing else."""
    text = json.dumps([FORMAT, kind, *parts], sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def find(entry: Path, read: Callable[[Path], Found]) -> Found | None:
    """What `read` makes of an entry; None if it is not there, or is damaged, in which case it is removed."""
    if not entry.is_dir():
        return None
    try:
        return read(entry)
    except (OSError, ValueError, KeyError, TypeError, IndexError, TokenizerError):
        shutil.rmtree(entry, ignore_errors=True)
        return None


@contextmanager
def building(entry: Path) -> Iterator[Path]:
    """A folder to write into; it becomes `entry` when the block ends well and vanishes when it does not."""
    with _explained(entry.parent):
        entry.parent.mkdir(parents=True, exist_ok=True)
        _sweep(entry.parent)
        folder = Path(tempfile.mkdtemp(dir=entry.parent, prefix=UNFINISHED))
        try:
            yield folder
            for path in (*folder.iterdir(), folder):
                _flush(path)
            _publish(folder, entry)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _explained(root: Path) -> Iterator[None]:
    elsewhere = "set CHAINRULE_CACHE to a folder"
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DataError(
                f"no space left in the cache folder {str(root)!r}; free some, or {elsewhere} on another disk"
            ) from None
        raise DataError(
            f"the cache folder {str(root)!r} cannot be written: {error.strerror or error}; {elsewhere} that can"
        ) from None


def _publish(folder: Path, entry: Path) -> None:
    try:
        folder.rename(entry)
    except OSError:
        if not entry.is_dir():  # else another process was faster, and its entry is as good as this one
            raise
    _flush(entry.parent)


def _flush(path: Path) -> None:
    if path.is_dir() and os.name == "nt":  # where folders cannot be opened
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sweep(root: Path) -> None:
    """Remove what killed processes have left behind."""
    for folder in root.glob(UNFINISHED + "*"):
        try:
            last_write = max(path.stat().st_mtime for path in (folder, *folder.iterdir()))
        except OSError:
            continue  # its owner has just finished
        if time.time() - last_write > ABANDONED_AFTER:
            shutil.rmtree(folder, ignore_errors=True)
