"""The description of a run, stored as info.json beside it, so that `chainrule info` needs neither torch nor weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from chainrule.files import write_whole
from chainrule.training.checkpoint import RunFolder

FILE = "info.json"
DESCRIBED = (
    "config.toml", "tokenizer.json", "source_tokenizer.json", "cleaning.json", "metrics.jsonl", "model.safetensors"
)  # fmt: skip
"""The files that a description is made of. Scores are not: they are read anew."""


class Description(NamedTuple):
    """What `chainrule info` shows."""

    info: dict[str, Any]
    rows: dict[str, Any]  # further rows of its table


def write_description(folder: RunFolder, description: Description) -> None:
    """Store a description with the state of the files it was made of; skipped in a read-only folder."""
    if folder.writable:
        content = {"files": _files(folder), "info": description.info, "rows": description.rows}
        with folder.explained():
            write_whole(folder.path / FILE, json.dumps(content, ensure_ascii=False, indent=1) + "\n")


def read_description(folder: RunFolder) -> Description | None:
    """Return the stored description with the present path and scores; None if a file has changed since."""
    try:
        stored = json.loads((folder.path / FILE).read_text(encoding="utf-8"))
        files, info, rows = stored["files"], stored["info"], stored["rows"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    if files != _files(folder) or "model.safetensors" not in files:
        return None
    return Description({**info, "path": str(folder.path), **last_scores(folder)}, rows)


def last_scores(folder: RunFolder) -> dict[str, Mapping[str, Any] | None]:
    """Return the last score of each held-out split; None if there is none."""
    scores = folder.records("scores.jsonl")
    return {
        split: next((one for one in reversed(scores) if one.get("split") == split), None)
        for split in ("validation", "test")
    }


def _files(folder: RunFolder) -> dict[str, list[int]]:
    """Size and time of each file that there is."""
    found = {}
    for name in DESCRIBED:
        if (file := folder.path / name).is_file():
            status = file.stat()
            found[name] = [status.st_size, status.st_mtime_ns]
    return found
