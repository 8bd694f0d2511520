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
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from chainrule.errors import DataError, TokenizerError
from chainrule.files import whole_folder

FORMAT = 1  # of everything in the cache; a higher number makes older entries unreachable
UNFINISHED = ".*"  # how `files.whole_folder` names what it has not finished
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
        with whole_folder(entry) as folder:
            yield folder


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


def _sweep(root: Path) -> None:
    """Remove what killed processes have left behind."""
    for folder in root.glob(UNFINISHED):
        try:
            last_write = max(path.stat().st_mtime for path in (folder, *folder.iterdir()))
        except OSError:
            continue  # its owner has just finished
        if time.time() - last_write > ABANDONED_AFTER:
            shutil.rmtree(folder, ignore_errors=True)
