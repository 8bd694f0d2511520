"""Atomic writes: a file is written under a temporary name, synced to disk, then renamed.

A write that fails, or is interrupted, leaves the previous file and no temporary one. Errors of the file system become
a `WriteError` that names the file.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from chainrule.errors import ConfigError, WriteError

if TYPE_CHECKING:
    from torch import Tensor

ELSEWHERE = "choose another folder"
PROBLEMS = {  # what is wrong, and the remedy
    errno.ENOSPC: ("the disk is full", "free some space, or choose a folder on another disk"),
    errno.EDQUOT: ("the disk quota is used up", "delete files, or choose a folder on another disk"),
    errno.EFBIG: ("the file exceeds the size limit", "raise it with `ulimit -f`, or choose another file system"),
    errno.EROFS: ("the file system is read-only", ELSEWHERE),
    errno.EACCES: ("permission denied", "choose a folder that you may write to"),
    errno.EPERM: ("operation not permitted", "choose a folder that you may write to"),
}


def _umask() -> int:
    mask = os.umask(0)  # the only portable way to read it is to set it
    os.umask(mask)
    return mask


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Convert errors of the file system in this block, which writes to `path`, into a WriteError that names it.

    An error about a file elsewhere, such as one that is read in the block, is not converted.
    """
    try:
        yield
    except OSError as error:
        if error.filename is not None and not _concerns(path, Path(os.fsdecode(error.filename))):
            raise
        raise write_error(str(path), error) from None


def _concerns(path: Path, named: Path) -> bool:
    """Whether an error about `named` is about writing to `path`: a temporary file beside it, or a folder above it."""
    return path.parent in named.parents or named == path or named in path.parents


def write_error(what: str, error: OSError) -> WriteError:
    """The error for something that the file system has refused to write."""
    problem, remedy = PROBLEMS.get(error.errno or 0, ((error.strerror or str(error)).lower(), ELSEWHERE))
    return WriteError(what, problem, remedy)


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path; the file takes its real name when the block ends without an error."""
    with writing(path):
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
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
        try:
            yield temporary
            finish_folder(temporary, path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def finish_folder(temporary: Path, path: Path) -> None:
    """Give a folder that has been written under a temporary name its real one; an existing one is kept."""
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


def require_parent(path: Path) -> None:
    """Raise ConfigError if the folder of an output file does not exist: a mistyped path creates nothing."""
    if not path.parent.is_dir():
        raise ConfigError(f"no folder {str(path.parent)!r} for {path.name!r}; create it, or choose another path")


def require_suffix(path: Path, known: Sequence[str]) -> None:
    """Raise ConfigError if a file name does not end as one of the known formats does."""
    if path.suffix not in known:
        raise ConfigError(f"{str(path)!r} must end in {' or '.join(known)}; rename it")


def write_whole(path: Path, text: str) -> None:
    """Write or replace a text file atomically."""
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def save_tensors(tensors: Mapping[str, Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file, one tensor after the other: mapped ones may be larger than memory.

    Its form is an 8-byte length, a JSON header with the type, shape and place of each tensor, and their bytes.
    """
    import torch

    names = {
        torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
        torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
    }  # fmt: skip
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))  # each at a multiple of it
    header: dict[str, object] = {} if metadata is None else {"__metadata__": metadata}
    end = 0
    for name, tensor in ordered:
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, tensor in ordered:
            if tensor.numel():
                file.write(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)


def _sync(path: Path) -> None:
    if os.name == "nt" and path.is_dir():  # folders cannot be opened on Windows
        return
    handle = os.open(path, os.O_RDWR if path.is_file() else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
