"""A cache of computed results, each in a folder named by its fingerprint.

An entry is written to a temporary folder, synced and renamed, so that it is complete or absent, even if the process is
killed or several processes build it at once.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from chainrule.errors import DataError, TokenizerError, WriteError
from chainrule.files import whole_folder, writing

FORMAT = 3  # of all entries; a higher number invalidates older ones
UNFINISHED = ".*"  # temporary names of `files.whole_folder`
ABANDONED_AFTER = 24 * 3600  # seconds without a write, after which an unfinished entry is deleted


Found = TypeVar("Found")


def cache_root() -> Path:
    """$CHAINRULE_CACHE, or ~/.cache/chainrule."""
    chosen = os.environ.get("CHAINRULE_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "chainrule"


def fingerprint(kind: str, *parts: object) -> str:
    """Return a name that depends only on these plain values."""
    text = json.dumps([FORMAT, kind, *parts], sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def find(entry: Path, read: Callable[[Path], Found]) -> Found | None:
    """Read an entry; return None if it does not exist, or if it is damaged, in which case it is deleted."""
    if not entry.is_dir():
        return None
    try:
        return read(entry)
    except (OSError, ValueError, KeyError, TypeError, IndexError, TokenizerError):
        shutil.rmtree(entry, ignore_errors=True)
        return None


@contextmanager
def building(entry: Path) -> Iterator[Path]:
    """Yield a folder to write to; it becomes `entry` if the block succeeds and is deleted otherwise."""
    with _explained(entry.parent):
        entry.parent.mkdir(parents=True, exist_ok=True)
        _sweep(entry.parent)
        with whole_folder(entry) as folder:
            yield folder


@contextmanager
def _explained(root: Path) -> Iterator[None]:
    elsewhere = "CHAINRULE_CACHE names the folder"
    try:
        with writing(root):
            yield
    except WriteError as error:
        raise DataError(
            f"cannot write to the cache folder {str(root)!r}: {error.problem}; {error.remedy}: {elsewhere}"
        ) from None


def _sweep(root: Path) -> None:
    """Delete unfinished entries of killed processes."""
    for folder in root.glob(UNFINISHED):
        try:
            last_write = max(path.stat().st_mtime for path in (folder, *folder.iterdir()))
        except OSError:
            continue  # its process has just finished
        if time.time() - last_write > ABANDONED_AFTER:
            shutil.rmtree(folder, ignore_errors=True)
