"""Atomic writes: a file is written under a temporary name, synced to disk, then renamed."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from chainrule.errors import ConfigError


def _umask() -> int:
    mask = os.umask(0)  # the only portable way to read it is to set it
    os.umask(mask)
    return mask


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path; the file takes its real name when the block ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o666 & ~_umask())  # whatever the writer has set; temporary files are private
        _sync(temporary)
        temporary.replace(path)
        _sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """As `whole_file` for a folder. If another process has created it meanwhile, that one is kept."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        yield temporary
        temporary.chmod(0o777 & ~_umask())
        for file in temporary.iterdir():
            if file.is_file():
                file.chmod(0o666 & ~_umask())
            _sync(file)
        _sync(temporary)
        try:
            temporary.rename(path)
        except OSError:
            if not path.is_dir():
                raise
        _sync(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def require_parent(path: Path) -> None:
    """Raise ConfigError if the folder of an output file does not exist: a mistyped path creates nothing."""
    if not path.parent.is_dir():
        raise ConfigError(f"no folder {str(path.parent)!r} for {path.name!r}; create it, or choose another path")


def write_whole(path: Path, text: str) -> None:
    """Write or replace a text file atomically."""
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _sync(path: Path) -> None:
    if os.name == "nt" and path.is_dir():  # folders cannot be opened on Windows
        return
    handle = os.open(path, os.O_RDWR if path.is_file() else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
