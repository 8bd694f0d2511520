"""Files as byte streams, decompressed by suffix; errors become one line that names the file."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from chainrule.errors import DataError, MissingExtra

COMPRESSED = (".gz", ".xz", ".bz2", ".zst")


@contextmanager
def open_bytes(path: Path) -> Iterator[IO[bytes]]:
    """Open a file, decompressed according to its suffix; also converts errors raised while it is read."""
    damaged = f"{str(path)!r} is damaged, or its suffix {path.suffix!r} is wrong"
    try:
        with path.open("rb") as raw, _decompressed(raw, path.suffix) as file:
            yield file
    except EOFError:
        raise DataError(f"{str(path)!r} is truncated: the compressed data ends too early; copy it again") from None
    except (gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"{damaged}: {error}; copy or compress it again") from None
    except FileNotFoundError:
        raise DataError(f"there is no file {str(path)!r}; check the path") from None
    except PermissionError:
        raise DataError(f"{str(path)!r} cannot be read: permission denied; change its permissions") from None
    except OSError as error:
        if error.errno is None:  # how bz2 reports invalid data
            raise DataError(f"{damaged}: {error}; copy or compress it again") from None
        raise DataError(f"{str(path)!r} cannot be read: {error.strerror}; check the file") from None


def _decompressed(file: IO[bytes], suffix: str) -> IO[bytes]:
    match suffix:
        case ".gz":
            return cast(IO[bytes], gzip.open(file, "rb"))
        case ".xz":
            return lzma.open(file, "rb")
        case ".bz2":
            return bz2.open(file, "rb")
        case ".zst":
            return io.BufferedReader(_ZstdFile(file), 1 << 17)
        case _:
            return file


class _ZstdFile(io.RawIOBase):
    """Decompression that detects truncated files; the reader of zstandard does not."""

    def __init__(self, file: IO[bytes]) -> None:
        try:
            import zstandard
        except ImportError:
            raise MissingExtra("reading .zst files", "zstd") from None
        self._module: Any = zstandard
        self._file = file
        self._frame: Any = None  # the current frame
        self._input = b""
        self._output = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._output:
            self._input = self._input or self._file.read(1 << 17)
            if not self._input:
                if self._frame is not None:
                    raise EOFError
                return 0
            self._frame = self._frame or self._module.ZstdDecompressor().decompressobj()
            try:
                self._output = self._frame.decompress(self._input)
            except self._module.ZstdError as error:
                raise zlib.error(str(error)) from None
            self._input = self._frame.unused_data
            if self._frame.eof:
                self._frame = None
        count = min(len(buffer), len(self._output))
        buffer[:count] = self._output[:count]
        self._output = self._output[count:]
        return count
