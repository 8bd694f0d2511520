"""Hugging Face datasets: by name from the hub, saved with `save_to_disk`, or a folder of data files."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from chainrule.data.records import as_text, outer_field, value_at
from chainrule.data.source import Normalisation, Split, TextSource, Unit
from chainrule.errors import DataError, MissingExtra, nearest

CONNECTION_SECONDS = 4.0  # in which the hub must answer


@dataclass(frozen=True, kw_only=True)
class HubSource(TextSource):
    """One split of a dataset, in memory-mapped files of any size."""

    name: str  # on the hub, or a folder
    config: str | None
    split: str
    field: str

    def identity(self) -> tuple[object, ...]:
        split = self._split()
        files = [Path(file["filename"]) for file in split.cache_files]
        stamps = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
        return ("hub", self.name, self.config, self.split, self.field, stamps or split._fingerprint)

    def origins(self) -> frozenset[str]:
        return frozenset({f"{self.name}:{self.config or ''}:{self.split}"})

    def stream(self) -> Iterator[str]:
        """Append a newline to records without one."""
        for text in self.documents():
            yield text if text.endswith("\n") else text + "\n"

    def documents(self) -> Iterator[str]:
        where = f"{self.spec!r}, split {self.split!r},"
        split = self._split()
        column = outer_field(self.field, split.column_names, where)
        for batch in split.select_columns([column]).iter(batch_size=1024):
            for value in batch[column]:
                yield as_text(value_at({column: value}, self.field, where), where, self.field)

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield every record with all fields."""
        for batch in self._split().iter(batch_size=1024):
            for values in zip(*batch.values(), strict=True):
                yield dict(zip(batch, values, strict=True))

    def held_out(self, split: Split) -> HubSource | None:
        """Return another split of the dataset, if this is its training split and the other exists."""
        if self.split != "train" or split not in _load(self.name, self.config):
            return None
        return replace(self, split=split, spec=f"hub:{self.name}:{self.config or ''}:{split}")

    def _split(self) -> Any:
        splits = _load(self.name, self.config)
        if self.split not in splits:
            raise DataError(f"{self.spec!r} has no split {self.split!r}; {nearest(self.split, splits)}")
        return splits[self.split]


def open_hub(spec: str, field: str, unit: Unit | None, normalisation: Normalisation) -> HubSource:
    """Open `hub:NAME[:CONFIG[:SPLIT]]`; by default, records are documents."""
    name, config, split = _parts(spec.removeprefix("hub:"))
    if not name:
        raise DataError(f"{spec!r} has no dataset name; write hub:NAME[:CONFIG[:SPLIT]]")
    return HubSource(
        spec=spec,
        unit=unit or "documents",
        normalisation=normalisation,
        name=name,
        config=config or None,
        split=split or "train",
        field=field,
    )


def _parts(spec: str) -> tuple[str, str, str]:
    """Return the name, config and split of `NAME[:CONFIG[:SPLIT]]`; the name of a folder may contain colons."""
    for colons in range(3):
        folder, *rest = spec.rsplit(":", colons)
        if Path(folder).is_dir():
            config, split = [*rest, "", ""][:2]
            return folder, config, split
    name, _, rest_of_it = spec.partition(":")
    config, _, split = rest_of_it.partition(":")
    return name, config, split


def open_saved(folder: Path, field: str, unit: Unit | None, normalisation: Normalisation) -> HubSource:
    """Open the training split of a dataset written by `save_to_disk`."""
    return HubSource(
        spec=str(folder),
        unit=unit or "documents",
        normalisation=normalisation,
        name=str(folder),
        config=None,
        split="train",
        field=field,
    )


def is_saved_dataset(folder: Path) -> bool:
    """Whether the folder was written by `save_to_disk`."""
    return (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file()


@functools.lru_cache(maxsize=4)
def _load(name: str, config: str | None) -> dict[str, Any]:
    """Load all splits of a dataset, by name."""
    try:
        import datasets
    except ImportError:
        raise MissingExtra("reading Hugging Face datasets", "hub") from None
    what = f"dataset {name!r}" + (f" with config {config!r}" if config else "")
    try:
        if is_saved_dataset(Path(name)):
            loaded = datasets.load_from_disk(name)
            return dict(loaded) if isinstance(loaded, datasets.DatasetDict) else {"train": loaded}
        if Path(name).exists() or datasets.config.HF_HUB_OFFLINE or is_reachable(hub_address()):
            return dict(datasets.load_dataset(name, config))
        with _offline():
            return dict(datasets.load_dataset(name, config))
    except ConnectionError:
        raise DataError(
            f"{what} cannot be fetched: no connection to {hub_address()[0]}, and no copy in the cache; check the "
            "network, or give a local folder"
        ) from None
    except Exception as error:  # the library raises many types, all with readable messages
        raise DataError(f"{what} cannot be loaded: {_first_line(error)}; check its name and config") from None


def hub_address() -> tuple[str, int]:
    """Host and port of the hub."""
    address = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
    return address.hostname or "huggingface.co", address.port or (80 if address.scheme == "http" else 443)


def is_reachable(address: tuple[str, int], *, seconds: float = CONNECTION_SECONDS) -> bool:
    """Whether a host answers in time; the library itself would try for half a minute. A proxy is taken to answer."""
    if getproxies():
        return True
    found: list[socket.socket] = []

    def connect() -> None:
        with contextlib.suppress(OSError):
            found.append(socket.create_connection(address, timeout=seconds))

    thread = threading.Thread(target=connect, daemon=True)  # resolving a name has no time limit of its own
    thread.start()
    thread.join(seconds)
    for connection in found:
        connection.close()
    return bool(found)


@contextlib.contextmanager
def _offline() -> Iterator[None]:
    """Let the library use its cache, and not the network."""
    import datasets
    import huggingface_hub

    modules: tuple[Any, ...] = (datasets.config, huggingface_hub.constants)
    for module in modules:
        module.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        for module in modules:
            module.HF_HUB_OFFLINE = False


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).split("\n")[0].rstrip(".")
