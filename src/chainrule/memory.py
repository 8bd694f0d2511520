"""The memory that is there, for work that can estimate what it needs before it allocates."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from chainrule.errors import RunError, in_units

if TYPE_CHECKING:
    import torch

SMALL = 1 << 27  # bytes; smaller files are read without asking
UNLIMITED = 1 << 60  # bytes; cgroup v1 writes a number near 2^63 for "no limit"


SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)
SMALLEST_SIZE = 1 << 20  # bytes


def parse_size(text: str) -> int:
    """A number of bytes from "2GB", "512MB", "1.5GiB" or "2000000"."""
    found = SIZE.fullmatch(text.strip())
    power = "kmgt".find(found[2].lower()) + 1 if found is not None and found[2] else 0
    size = 0 if found is None else int(float(found[1]) * (1024 if found[3] else 1000) ** power)
    if size < SMALLEST_SIZE:
        raise ValueError(f"{text!r} is not a size of at least 1MiB; give one like 512MB or 2GB")
    return size


def available_memory(device: torch.device | None = None) -> int:
    """Bytes that can still be allocated on a device: on a GPU its free memory, else that of the system and its limits.

    The limits are those of the control groups of this process (containers, batch systems) and of `ulimit -v`. Where
    nothing is known, as on systems without /proc, memory is taken to be unlimited.
    """
    if device is not None and device.type == "cuda":
        import torch

        return int(torch.cuda.mem_get_info(device)[0])
    return max(0, min([UNLIMITED, *_system(), *_control_groups(), *_address_space()]))


def require_room_for(file: Path) -> None:
    """Raise RunError if the weights in a file do not fit into memory: once as they are read, once in the model."""
    size = file.stat().st_size if file.is_file() else 0
    if size > SMALL and 2 * size > (memory := available_memory()):
        raise RunError(
            f"loading {str(file)!r} takes about {in_units(2 * size)} of memory, and {in_units(memory)} is available; "
            "close other programs, or use a machine with more memory"
        )


def _system() -> Iterator[int]:
    with contextlib.suppress(OSError, ValueError, KeyError):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        kilobytes = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
        yield 1024 * (kilobytes["MemAvailable"] + kilobytes.get("SwapFree", 0))


def _control_groups() -> Iterator[int]:
    """What the memory limit of each control group above this process leaves, for versions 2 and 1."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, name = line.split(":", 2)
            if controllers not in ("", "memory"):
                continue
            root, limit, usage = (
                ("/sys/fs/cgroup", "memory.max", "memory.current")
                if controllers == ""
                else ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes")
            )
            group = Path(root, name.lstrip("/"))
            for folder in (group, *group.parents):
                with contextlib.suppress(OSError, ValueError):  # "max": no limit; in a container the path may not exist
                    yield int((folder / limit).read_text()) - _used(folder, usage)
                if folder == Path(root):
                    break


def _used(folder: Path, usage: str) -> int:
    """The memory of a control group without the file cache, which the system gives back."""
    used = int((folder / usage).read_text())
    with contextlib.suppress(OSError, ValueError):
        for line in (folder / "memory.stat").read_text(encoding="ascii").splitlines():
            if line.startswith(("inactive_file ", "total_inactive_file ")):
                return used - int(line.split()[1])
    return used


def _address_space() -> Iterator[int]:
    if sys.platform == "win32":
        return
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        with contextlib.suppress(OSError, ValueError):
            pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
            yield limit - pages * resource.getpagesize()
