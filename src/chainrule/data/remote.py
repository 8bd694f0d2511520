"""Data by URL, on any file system that fsspec knows, such as s3://, gs:// or https://.

Files are copied to the cache once; or read where they are, each time that they are needed (`data.remote=stream`), which
takes no space, and lets workers read their own parts only.
"""

from __future__ import annotations

import hashlib
from pathlib import Path, PosixPath, PurePosixPath
from types import SimpleNamespace
from typing import IO, Any, Self, cast

from chainrule.data.cache import building, cache_root, find, fingerprint
from chainrule.errors import DataError, MissingExtra


def is_remote(spec: str) -> bool:
    return "://" in spec


class RemotePath(PosixPath):
    """A file of another file system, for what only opens it, seeks in it and asks for its size.

    Its parts are the protocol with a colon, then those of the name there; other processes can read it, too.
    """

    def _located(self) -> tuple[Any, str]:
        import fsspec

        protocol, *parts = self.parts
        system = fsspec.filesystem(protocol.removesuffix(":"))
        if "http" in protocol:
            return system, f"{protocol}//{'/'.join(parts)}"
        return system, system._strip_protocol("/" + "/".join(parts) if system.root_marker else "/".join(parts))

    def open(self, *_: Any, **__: Any) -> IO[bytes]:  # type: ignore[override]
        system, name = self._located()
        return cast(IO[bytes], system.open(name, "rb"))

    def stat(self, **_: Any) -> Any:
        """Size, and instead of the time something that changes with the file."""
        system, name = self._located()
        digest = hashlib.blake2b(str(system.ukey(name)).encode(), digest_size=7).digest()
        return SimpleNamespace(st_size=int(system.size(name)), st_mtime_ns=int.from_bytes(digest))

    def resolve(self, strict: bool = False) -> Self:
        return self


def fetched(spec: str, *, stream: bool = False) -> tuple[Path, ...]:
    """Return the files of a URL, which may be a folder or have wildcards, in order of their names.

    They are local copies, unless they are to be read where they are.
    """
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
    if stream:
        protocol = spec.partition("://")[0]
        return tuple(RemotePath(f"{protocol}:", name.removeprefix(f"{protocol}:").lstrip("/")) for name in names)
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
