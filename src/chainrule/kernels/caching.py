"""Compiled functions on disk, so that they are compiled once per machine and not once per process.

Numba caches a function by the time stamp of its own source file, and does not notice when a function that it calls has
changed; and processes that write to one cache at the same time can mix up their entries. So the entry functions of a
module have a folder named by a fingerprint of its source and of all that it imports from this package, and are loaded
or compiled under a lock. The folder is in `__pycache__`, beside Python's own compiled files, or in the user's cache
where that cannot be written.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

SOURCES = Path(__file__).parent
Function = TypeVar("Function", bound=Callable[..., Any])

OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "boundscheck": False, "fastmath": False}
IMPORTED = re.compile(r"^from chainrule\.kernels\.(\w+) import", re.MULTILINE)


_ready: set[tuple[str, Any]] = set()  # exported functions that are loaded, and the types


def compiled(function: Function) -> Function:
    """Compile a function as part of those that call it."""
    return cast(Function, numba.njit(**OPTIONS)(function))


def exported(function: Callable[..., None]) -> Callable[..., None]:
    """Compile a function of integers that is called from Python; its first call loads it from disk, if it is there."""
    dispatcher = entry(function, **OPTIONS)
    name = f"{function.__module__}.{function.__name__}"

    def call(*arguments: Any) -> None:
        if (name, arguments[-1].dtype) not in _ready:
            load_or_compile(dispatcher, arguments)
            _ready.add((name, arguments[-1].dtype))
        dispatcher(*arguments)

    return call


def sources_of(module: str) -> set[str]:
    """A module of this package and those that it imports, directly or not, by name."""
    found, new = set(), {module}
    while new:
        found |= new
        new = {name for one in new for name in IMPORTED.findall((SOURCES / f"{one}.py").read_text("utf-8"))} - found
    return found


@cache
def folder(module: str) -> Path:
    """Where the compiled functions of a module are; created if it is missing."""
    content = b"".join((SOURCES / f"{name}.py").read_bytes() for name in sorted(sources_of(module)))
    name = f"{module}-{hashlib.blake2b(content, digest_size=8).hexdigest()}"
    for parent in (SOURCES / "__pycache__", Path.home() / ".cache" / "chainrule"):
        try:
            (parent / name).mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(parent / name, os.W_OK):
            return parent / name
    return SOURCES  # read-only everywhere: Numba compiles again in every process


def entry(function: Callable[..., None], **options: Any) -> Any:
    """Compile a function whose result is kept on disk."""
    before = numba.config.CACHE_DIR  # type: ignore[attr-defined]
    numba.config.CACHE_DIR = str(folder(_module(function)))  # type: ignore[attr-defined]
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # there is no folder that can be written
        return numba.njit(**options)(function)
    finally:
        numba.config.CACHE_DIR = before  # type: ignore[attr-defined]


def load_or_compile(function: Any, arguments: tuple[Any, ...]) -> None:
    """Make a function ready for arguments of these types, with a message if that takes long."""
    signature = tuple(numba.typeof(argument) for argument in arguments)  # type: ignore[no-untyped-call]
    place = folder(_module(function))
    done = place / f"{function.__name__}-{arguments[-1].dtype}-{sys.version_info.minor}"
    with _locked(place / "lock"):
        if not done.exists():
            print(f"compiling {function.__name__} for {arguments[-1].dtype}, once on this machine …", file=sys.stderr)
        function.compile(signature)
        try:
            done.touch()
        except OSError:
            return


def _module(function: Any) -> str:
    return str(function.__module__).rpartition(".")[2]


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Hold a lock between processes; without one where the system has no such locks or the file cannot be written."""
    try:
        import fcntl

        handle = file.open("wb")
    except (ImportError, OSError):
        yield
        return
    with handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
