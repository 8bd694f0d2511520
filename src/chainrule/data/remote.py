"""Data by URL, on any file system that fsspec knows, such as s3://, gs:// or https://; copied to the cache once."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any

from chainrule.data.cache import building, cache_root, find, fingerprint
from chainrule.errors import DataError, MissingExtra


def is_remote(spec: str) -> bool:
    return "://" in spec


def fetched(spec: str) -> tuple[Path, ...]:
    """Return local copies of the files of a URL, which may be a folder or have wildcards, in order of their names."""
    try:
        import fsspec
    except ImportError:
        raise MissingExtra(f"reading {spec!r}", "cluster") from None
    try:
        system, path = fsspec.core.url_to_fs(spec)
        names = _names(system, path)
    except (ImportError, ValueError) as error:  # a package is missing, or the protocol is not known
        raise DataError(
            f"{spec!r} cannot be opened: {error}; install the package of the protocol, or correct it"
        ) from None
    except OSError as error:
        raise DataError(f"{spec!r} cannot be read: {error}; check the address and your permissions") from None
    if not names:
        raise DataError(f"there is no file at {spec!r}; check the address, and quote it in the shell")
    return tuple(_copy(system, name, spec) for name in names)


def _names(system: Any, path: str) -> list[str]:
    if any(character in path for character in "*?["):
        return sorted(name for name in system.glob(path) if system.isfile(name))
    if system.isdir(path):
        return sorted(system.find(path))
    return [path] if system.exists(path) else []


def _copy(system: Any, name: str, spec: str) -> Path:
    """A file in the cache; its entry depends on what the file system says of the file, such as its time and size."""
    local = PurePosixPath(name).name
    try:
        entry = cache_root() / fingerprint("remote", str(system.protocol), name, system.ukey(name))
        if find(entry, lambda folder: (folder / local).stat()) is None:
            with building(entry) as folder:
                system.get_file(name, str(folder / local))
    except OSError as error:
        raise DataError(f"{name!r} of {spec!r} cannot be read: {error}; try again, or check your permissions") from None
    return entry / local
