"""The results of the benchmarks in one file, each with its machine, versions and threads."""

from __future__ import annotations

import json
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("chainrule", "torch", "numpy", "numba", "transformers", "ctranslate2", "gensim", "kenlm")


def write_results(file: Path, benchmark: str, threads: int, rows: list[dict[str, Any]]) -> None:
    """Put the rows of one benchmark into the file, and keep those of the others."""
    known = json.loads(file.read_text()) if file.exists() else {}
    known[benchmark] = {"machine": machine(), "versions": versions(), "threads": threads, "rows": rows}
    file.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


def machine() -> dict[str, Any]:
    return {"processor": processor(), "cores": os.cpu_count(), "system": platform.system(), "load": os.getloadavg()[0]}


def processor() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
