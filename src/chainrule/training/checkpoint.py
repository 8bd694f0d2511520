"""The run folder: the result of training, and everything needed to resume it.

    config.toml          all settings: enough to repeat the run
    tokenizer.json       the vocabulary; image runs have none, their levels are in the config
    source_tokenizer.json, cleaning.json    translation: the source vocabulary; which pairs were dropped, and why
    model.safetensors    the best weights so far by validation (or their average, if one is kept)
    metrics.jsonl        one line per logged step and per validation
    state/step-N/        the last checkpoint: weights, optimizer, random state, position in the data; the tensors in one
                         file, or in parts if several processes have trained the model
    scores.jsonl         every score of this run, with its protocol
    card.md              a summary of the run
    info.json            what `chainrule info` shows, so that it need not load the weights
    checksums.json, recovery/    see `training.checksums`

Every file is written under a temporary name and then renamed, so a crash leaves the previous version. Nothing is
pickled.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from chainrule.config import FORMAT, RunConfig, read_toml, write_toml
from chainrule.errors import ConfigError, RunError, WriteError
from chainrule.files import finish_folder, save_tensors, whole_file, whole_folder, write_whole, writing
from chainrule.memory import require_room_for
from chainrule.training.checksums import FILE as CHECKSUMS
from chainrule.training.checksums import WEIGHTS, Checksums, sha256

if TYPE_CHECKING:  # imported when they are needed: settings and records are read without torch and NumPy
    import torch
    from torch import Tensor, nn

    from chainrule.tokenizers import Tokenizer
    from chainrule.training.state_writers import Template

RENAMED = {"valid_at": "valid_from"}  # settings of the data in runs of earlier versions


@dataclass(frozen=True)
class Snapshot:
    """A checkpoint: the complete state of a run between two steps."""

    tensors: dict[str, Tensor]
    values: dict[str, Any]


@dataclass(frozen=True)
class RunFolder:
    """A run on disk."""

    path: Path

    @property
    def checksums(self) -> Checksums:
        return Checksums(self.path)

    @property
    def exists(self) -> bool:
        return (self.path / "config.toml").is_file()

    @property
    def writable(self) -> bool:
        return os.access(self.path, os.W_OK)

    def require_free(self) -> None:
        """Raise RunError unless the folder is new or empty."""
        if self.exists:
            raise RunError(
                f"{str(self.path)!r} already contains a run; choose another folder, or continue its training with "
                "train --resume"
            )
        if self.path.is_file() or (self.path.is_dir() and any(self.path.iterdir())):
            raise RunError(f"{str(self.path)!r} exists and is not a run; choose a new or empty folder")

    def create(
        self, config: RunConfig, tokenizer: Tokenizer | None = None, source_tokenizer: Tokenizer | None = None
    ) -> None:
        """Create the run folder. The config is written last: with it the folder is a run."""
        with self.explained():
            self.path.mkdir(parents=True, exist_ok=True)
            texts = {}
            if tokenizer is not None:
                texts["tokenizer.json"] = tokenizer.to_text()
            if source_tokenizer is not None:
                texts["source_tokenizer.json"] = source_tokenizer.to_text()
            self.checksums.write_settings({**texts, "config.toml": write_toml(config)})

    @contextlib.contextmanager
    def kept_if_trained(self) -> Iterator[None]:
        """Delete a new run if the block is left by an error or Ctrl-C before any weights are saved."""
        new = not self.exists
        try:
            yield
        except BaseException:
            if new and self.exists and not self._states() and not (self.path / "model.safetensors").exists():
                shutil.rmtree(self.path, ignore_errors=True)
            raise

    def config(self) -> RunConfig:
        if not self.path.is_dir():
            raise RunError(f"there is no run at {str(self.path)!r}; check the path")
        if not self.exists:
            raise RunError(f"{str(self.path)!r} is not a run folder: it has no config.toml")
        try:
            values = read_toml(self.path / "config.toml")
        except ConfigError as error:
            raise RunError(f"the config of run {str(self.path)!r} is invalid: {error}") from None
        version = values.get("format", 0)
        if isinstance(version, int) and version > FORMAT:
            raise RunError(
                f"run {str(self.path)!r} has format {version}, and this version of chainrule reads formats up to "
                f"{FORMAT}; upgrade chainrule"
            )
        self.checksums.require("config.toml")
        try:
            return RunConfig.parse(_current_names(values))
        except ConfigError as error:
            raise RunError(f"the config of run {str(self.path)!r} is invalid: {error}") from None

    def tokenizer(self) -> Tokenizer:
        self.checksums.require("tokenizer.json")
        return _load_tokenizer(self.path / "tokenizer.json")

    def source_tokenizer(self) -> Tokenizer:
        """Return the source tokenizer of a translation run."""
        self.checksums.require("source_tokenizer.json")
        return _load_tokenizer(self.path / "source_tokenizer.json")

    def input_tokenizer(self) -> Tokenizer:
        """Return the tokenizer of what the model reads: the source, if it has one."""
        return self.source_tokenizer() if (self.path / "source_tokenizer.json").exists() else self.tokenizer()

    # Weights

    def write_weights(self, model: nn.Module) -> None:
        self.write_tensors(distinct_tensors(model))

    def write_tensors(self, weights: Mapping[str, Tensor]) -> None:
        """Write the weights of a model, by name."""
        with self.explained(), whole_file(self.path / WEIGHTS) as temporary:
            save_tensors(weights, temporary)
            self.checksums.record_large(WEIGHTS, temporary)

    def read_weights(self, model: nn.Module, checkpoint: str = "best") -> None:
        """Load the best weights, or those of the last checkpoint, into a model."""
        mapped = getattr(model, "maps_weights", False)
        load_distinct(model, self.weights(checkpoint, mapped=mapped), origin=str(self.path))

    def weights(self, checkpoint: str = "best", *, mapped: bool = False) -> dict[str, Tensor]:
        """Return the best weights, or those of the last checkpoint, by name.

        `mapped` if they stay in the file and need no room in memory: the system reads a part when it is used.
        """
        if checkpoint == "last":
            snapshot = self.last_state()
            if snapshot is None:
                raise RunError(f"run {str(self.path)!r} has no saved checkpoint; use the best weights instead")
            prefix = "model/"
            return {name[len(prefix) :]: x for name, x in snapshot.tensors.items() if name.startswith(prefix)}
        file = self.path / "model.safetensors"
        if not file.is_file():
            raise RunError(
                f"run {str(self.path)!r} has no model.safetensors: training has not reached its first validation; "
                "continue it with `chainrule train … --resume`"
            )
        if not mapped:
            require_room_for(file)
        self.checksums.require(WEIGHTS, sampled=mapped)
        return self._read_tensors(file)

    # State

    def write_state(self, step: int, snapshot: Snapshot, *, end: bool = False) -> None:
        """Write a checkpoint, then delete older ones. The final checkpoint of a run has a name of its own."""
        folder = self._state_folder(step, end)
        with self.explained():
            if not folder.is_dir():
                with whole_folder(folder) as temporary:
                    save_tensors(snapshot.tensors, temporary / "tensors.safetensors")
                    _describe_state(temporary, snapshot.values)
            self._drop_states_but(folder)

    def adopt_state(self, parts: Path, step: int, values: Mapping[str, Any], *, end: bool = False) -> None:
        """Complete a checkpoint whose tensors several processes have written into a folder; delete older ones."""
        folder = self._state_folder(step, end)
        with self.explained():
            _describe_state(parts, values)
            if folder.is_dir():
                shutil.rmtree(parts)
            else:
                finish_folder(parts, folder)
            self._drop_states_but(folder)

    def _state_folder(self, step: int, end: bool) -> Path:
        return self.path / "state" / (f"step-{step:09d}-end" if end else f"step-{step:09d}")

    def _drop_states_but(self, folder: Path) -> None:
        for old in (*self._states(), *(self.path / "state").glob(".step-*")):  # left by a killed process
            if old != folder:
                shutil.rmtree(old, ignore_errors=True)

    def last_state(self, template: Template | None = None) -> Snapshot | None:
        """Return the last checkpoint; of sharded tensors, for which there is a template, the part of this process."""
        folders = self._states()
        if not folders:
            return None
        newest = folders[-1]
        for name in Checksums(newest).recorded():
            Checksums(newest).require(name)
        try:
            values = json.loads((newest / "values.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RunError(f"checkpoint {str(newest)!r} is damaged ({error}); delete it and train again") from None
        return Snapshot(self._state_tensors(newest, template), values)

    def _state_tensors(self, folder: Path, template: Template | None) -> dict[str, Tensor]:
        whole = folder / "tensors.safetensors"
        if template is None and whole.is_file():
            return self._read_tensors(whole)
        from chainrule.training.state_writers import read_parts

        try:
            return read_parts(folder, template or (lambda name, size: None))
        except Exception as error:
            reason = str(error).strip().split("\n")[-1]
            raise RunError(f"checkpoint {str(folder)!r} is damaged ({reason}); delete it and train again") from None

    def last_step(self) -> int | None:
        """Return the step of the last checkpoint."""
        folders = self._states()
        return int(folders[-1].name.split("-")[1]) if folders else None

    def _states(self) -> list[Path]:
        return sorted((self.path / "state").glob("step-*"))

    def _read_tensors(self, file: Path) -> dict[str, Tensor]:
        from safetensors.torch import load_file

        try:
            return load_file(file)
        except (OSError, SafetensorError) as error:
            raise RunError(f"{str(file)!r} is truncated or damaged ({error}); restore it or train again") from None

    # Repair

    def file_problems(self) -> dict[str, str]:
        """Return what is wrong with each file that has a checksum, including the last checkpoint; "" if nothing is."""
        own = self.checksums
        found = {name: "" if own.matches(name) else own.mismatch(name) for name in own.recorded()}
        for newest in self._states()[-1:]:
            state = Checksums(newest)
            for name in state.recorded():
                found[f"state/{newest.name}/{name}"] = "" if state.matches(name) else state.mismatch(name)
        return found

    def repair(self) -> dict[str, str]:
        """Restore what does not match its checksum, where that is possible; return what was done, by file."""
        done = {}
        damaged = [name for name in self.checksums.recorded() if not self.checksums.matches(name)]
        with self.explained():
            for name in sorted(damaged, key=lambda name: name == WEIGHTS):
                if name != WEIGHTS and self.checksums.restore(name):
                    done[name] = "restored from its copy"
                elif name == WEIGHTS and self._states():
                    self.write_tensors(self.weights("last"))
                    done[name] = f"replaced by the weights of the last checkpoint, at step {self.last_step()}"
                else:
                    raise RunError(
                        f"{str(self.path / name)!r} cannot be restored: the run has no intact copy of it; take it from "
                        "a backup, or train again"
                    )
        return done

    # Records

    def append(self, name: str, record: Mapping[str, Any]) -> None:
        """Append a record to metrics.jsonl or scores.jsonl."""
        with self.explained(), (self.path / name).open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def records(self, name: str) -> list[dict[str, Any]]:
        """Return the records of such a file; lines truncated by a crash are skipped."""
        file = self.path / name
        if not file.is_file():
            return []
        found = []
        for line in file.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
        return found

    def write_cleaning(self, reports: Mapping[str, Mapping[str, Any]]) -> None:
        """Write which pairs of each split were dropped, and why."""
        with self.explained():
            write_whole(self.path / "cleaning.json", json.dumps(reports, indent=2) + "\n")

    def cleaning(self) -> dict[str, Any]:
        """Return the cleaning reports by split; empty if nothing was cleaned."""
        file = self.path / "cleaning.json"
        try:
            found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        except ValueError as error:
            raise RunError(f"{str(file)!r} is damaged ({error}); delete it") from None
        return found

    def drop_metrics_after(self, step: int) -> None:
        """Drop the metrics of steps that a resumed run will repeat."""
        kept = [record for record in self.records("metrics.jsonl") if record["step"] <= step]
        write_whole(self.path / "metrics.jsonl", "".join(json.dumps(record) + "\n" for record in kept))

    def write_card(self, text: str) -> None:
        with self.explained():
            write_whole(self.path / "card.md", text)

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Convert errors of the file system into RunError."""
        try:
            with writing(self.path):
                yield
        except WriteError as error:
            kept = "; earlier checkpoints are intact, and the same command with --resume continues"
            raise RunError(f"{error}{kept if any(self.path.glob('*.safetensors')) else ''}") from None


class FollowerFolder(RunFolder):
    """A run folder for a process that trains together with others: it reads what process 0 writes."""

    @property
    def writable(self) -> bool:
        return False

    def create(
        self, config: RunConfig, tokenizer: Tokenizer | None = None, source_tokenizer: Tokenizer | None = None
    ) -> None:
        pass

    @contextlib.contextmanager
    def kept_if_trained(self) -> Iterator[None]:
        yield

    def write_tensors(self, weights: Mapping[str, Tensor]) -> None:
        pass

    def write_state(self, step: int, snapshot: Snapshot, *, end: bool = False) -> None:
        pass

    def append(self, name: str, record: Mapping[str, Any]) -> None:
        pass

    def write_cleaning(self, reports: Mapping[str, Mapping[str, Any]]) -> None:
        pass

    def drop_metrics_after(self, step: int) -> None:
        pass

    def write_card(self, text: str) -> None:
        pass


def _describe_state(folder: Path, values: Mapping[str, Any]) -> None:
    """Write what a checkpoint has besides its tensors."""
    (folder / "values.json").write_text(json.dumps(values), encoding="utf-8")
    Checksums(folder).record({file.name: sha256(file) for file in sorted(folder.iterdir()) if file.name != CHECKSUMS})


def _load_tokenizer(path: Path) -> Tokenizer:
    from chainrule.tokenizers import load_tokenizer

    return load_tokenizer(path)


def distinct_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the state dict of a model with tied tensors listed once, as safetensors requires."""
    seen: set[tuple[int, torch.Size]] = set()
    found = {}
    for name, tensor in model.state_dict().items():
        own = getattr(tensor, "to_local", lambda tensor=tensor: tensor)()  # the part in this process, if it is sharded
        key = (own.data_ptr(), tensor.shape)
        if own.numel() and key in seen:
            continue
        seen.add(key)
        found[name] = tensor.detach().contiguous()
    return found


def load_distinct(model: nn.Module, weights: Mapping[str, Tensor], origin: str) -> None:
    """Load what `distinct_tensors` has returned; every tensor must be present under its own name or a tied one."""
    try:
        outcome = model.load_state_dict(dict(weights), strict=False)
    except RuntimeError as error:
        reason = str(error).strip().split("\n")[-1].strip()
        raise RunError(f"the weights in {origin!r} do not match its config: {reason}") from None
    named = distinct_tensors(model)
    missing = [name for name in outcome.missing_keys if name in named]
    if missing or outcome.unexpected_keys:
        odd = (missing + outcome.unexpected_keys)[0]
        raise RunError(f"the weights in {origin!r} do not match its config: {odd!r} is missing or unexpected")


def _current_names(values: dict[str, Any]) -> dict[str, Any]:
    """Settings of a stored run under the names of this version."""
    data = values.get("data")
    if not isinstance(data, dict):
        return values
    return {**values, "data": {RENAMED.get(name, name): value for name, value in data.items()}}
