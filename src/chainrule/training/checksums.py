"""Checksums of the files that a model consists of, so that a run whose files do not belong together is refused.

    checksums.json    SHA-256 of config.toml, the tokenizers and model.safetensors; `sha256sum` computes the same
    recovery/         copies of the settings and the tokenizers, which `chainrule verify RUN --repair` restores

A file and its checksum cannot be replaced in one step. So the checksum of the new version is recorded first, beside
that of the version before; then the file is replaced. Whenever a process is killed, the file there matches one of the
two. A file without a checksum is accepted.

Reading a large table to check it would take longer than to open it, since it is mapped into memory and not read. Such a
file has a second checksum, of its size and of samples of it, which finds a truncated file and one of another run;
`chainrule verify` reads all of it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chainrule.config import read_toml
from chainrule.errors import ConfigError, RunError
from chainrule.files import whole_file, write_whole

FILE = "checksums.json"
SAMPLED = "sha256 of samples"
RECOVERY = "recovery"
WEIGHTS = "model.safetensors"
SETTINGS = ("config.toml", "tokenizer.json", "source_tokenizer.json")  # files with a copy in RECOVERY
LARGE = 1 << 28  # bytes of a file that has a checksum of samples
SAMPLES, SAMPLE = 64, 1 << 16  # number, and bytes of each
VERSIONS = 2  # recorded per file: the present one and the one before


def sha256(path: Path) -> str:
    """Return the checksum of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sampled_sha256(path: Path) -> str:
    """Return the checksum of the size of a file and of evenly spaced pieces of it, first and last included."""
    size = path.stat().st_size
    found = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        for number in range(SAMPLES):
            file.seek(max(0, size - SAMPLE) * number // (SAMPLES - 1))
            found.update(file.read(SAMPLE))
    return found.hexdigest()


@dataclass(frozen=True)
class Checksums:
    """The recorded checksums of a folder."""

    folder: Path

    def recorded(self, kind: str = "sha256") -> dict[str, list[str]]:
        """Return the checksums by file name, the newest first; empty if none were recorded."""
        file = self.folder / FILE
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
            found: dict[str, list[str]] = values["sha256"] if kind == "sha256" else values.get(kind, {})
            return {str(name): list(versions) for name, versions in found.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise RunError(
                f"{str(file)!r} is damaged ({error}); if the other files of the run are as they should be, record "
                f"their checksums anew with: chainrule verify {self.folder} --update-checksums"
            ) from None

    def record(self, new: Mapping[str, str], *, sampled: Mapping[str, str] | None = None, keep: bool = True) -> None:
        """Record the checksums of files that are about to be replaced; forget earlier versions unless `keep`."""
        values = {}
        for kind, checksums in (("sha256", new), (SAMPLED, sampled or {})):
            found = self.recorded(kind) if keep else {}
            for name, checksum in checksums.items():
                older = [one for one in found.get(name, []) if one != checksum]
                found[name] = [checksum, *older][:VERSIONS]
            if found or kind == "sha256":
                values[kind] = found
        write_whole(self.folder / FILE, json.dumps(values, indent=1) + "\n")

    def record_large(self, name: str, file: Path) -> None:
        """Record the checksums of a file that is about to get this name; that of samples, too, if it is large."""
        sampled = {name: sampled_sha256(file)} if file.stat().st_size >= LARGE else {}
        self.record({name: sha256(file)}, sampled=sampled)

    def matches(self, name: str) -> bool:
        """Return whether a file is as it was written; a file that has no checksum is."""
        known = self.recorded().get(name)
        return known is None or ((self.folder / name).is_file() and sha256(self.folder / name) in known)

    def require(self, name: str, *, sampled: bool = False) -> None:
        """Raise RunError if a file is not as it was written. A missing file is the business of its reader.

        `sampled` if samples of a large file are enough.
        """
        file = self.folder / name
        if not file.is_file():
            return
        known = self.recorded(SAMPLED).get(name) if sampled and file.stat().st_size >= LARGE else None
        if not (self.matches(name) if known is None else sampled_sha256(file) in known):
            raise RunError(self.mismatch(name))

    def mismatch(self, name: str) -> str:
        """What is wrong with a file that does not match its checksum, and the remedy."""
        file, verify = self.folder / name, f"chainrule verify {self.folder}"
        if not file.is_file():
            return f"{str(file)!r} is missing; restore it with: {verify} --repair"
        if name == WEIGHTS:
            return (
                f"{str(file)!r} is truncated or damaged, or belongs to another run: its checksum differs; copy it "
                f"from a backup, or restore the weights of the last checkpoint with: {verify} --repair"
            )
        if name not in SETTINGS:
            return f"{str(file)!r} is damaged: its checksum differs; resuming needs it, the best weights do not"
        changed = self._changed_settings() if name == "config.toml" else ""
        what = changed or "it is damaged, or belongs to another run"
        return (
            f"{str(file)!r} has changed since the run was trained: {what}; undo it with: {verify} --repair; if the "
            f"change is meant: {verify} --update-checksums"
        )

    def _changed_settings(self) -> str:
        """The first settings that differ from the copy in RECOVERY, for a message; empty if that is not known."""
        try:
            before, after = (
                dict(_flat(read_toml(path)))
                for path in (self.folder / RECOVERY / "config.toml", self.folder / "config.toml")
            )
        except (ConfigError, OSError):
            return ""
        changes = [
            f"{key} is {after.get(key, 'missing')!r} and was {before.get(key, 'missing')!r}"
            for key in {**before, **after}
            if before.get(key) != after.get(key)
        ]
        more = f", and {len(changes) - 2} more" if len(changes) > 2 else ""
        return ", ".join(changes[:2]) + more

    def write_settings(self, texts: Mapping[str, str]) -> None:
        """Write settings and tokenizers with their checksums and copies, in this order; unchanged files are left."""
        new = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}
        known = self.recorded()
        if all(known.get(name, [""])[0] == checksum and self.matches(name) for name, checksum in new.items()):
            return
        self.record(new)
        for name, text in texts.items():
            write_whole(self.folder / RECOVERY / name, text)
            write_whole(self.folder / name, text)

    def update(self) -> list[str]:
        """Take the files as they are: record their checksums, renew the copies, and return the names."""
        names = [name for name in (*SETTINGS, WEIGHTS) if (self.folder / name).is_file()]
        large = [name for name in names if (self.folder / name).stat().st_size >= LARGE]
        self.record(
            {name: sha256(self.folder / name) for name in names},
            sampled={name: sampled_sha256(self.folder / name) for name in large},
            keep=False,
        )
        for name in names:
            if name != WEIGHTS:
                self.copy(self.folder / name, self.folder / RECOVERY / name)
        return names

    def restore(self, name: str) -> bool:
        """Restore settings or a tokenizer from the copy; return whether there is an intact one."""
        copy = self.folder / RECOVERY / name
        if not copy.is_file() or sha256(copy) not in self.recorded().get(name, []):
            return False
        self.copy(copy, self.folder / name)
        return True

    @staticmethod
    def copy(source: Path, target: Path) -> None:
        """Copy a file atomically."""
        with whole_file(target) as temporary:
            temporary.write_bytes(source.read_bytes())


def _flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Nested settings as ("model.width", 16), …."""
    found: list[tuple[str, Any]] = []
    for name, value in values.items():
        found += _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else [(f"{prefix}{name}", value)]
    return found
