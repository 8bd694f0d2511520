"""Training from Python, with the options of `chainrule train`."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import torch

from chainrule.config import BUDGETS, RunConfig, apply_overrides, read_toml
from chainrule.errors import ConfigError, TrainingError
from chainrule.families import family as family_named
from chainrule.interface.base import CountModel, Trainable
from chainrule.options import TrainOptions, train_settings
from chainrule.tasks import Run, load, open_data, task_of_family
from chainrule.tasks.base import choose_device
from chainrule.training.checkpoint import RunFolder
from chainrule.training.process import keep_freed_memory
from chainrule.training.progress import Reporter, console_reporter
from chainrule.training.warm_start import WarmStart

__all__ = ["Run", "load", "train"]


def train(
    family: str,
    *,
    settings: Mapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
    scored: bool = True,
    progress: bool = True,
    reporter: Reporter | None = None,
    **options: Unpack[TrainOptions],
) -> Run:
    """Train a model of a family on your data. The options are those of `chainrule train`; see `TrainOptions`.

    All other settings are given in `settings`, nested as in a config file: {"model": {"width": 256}, "train":
    {"batch_tokens": 8192}}, or in `overrides`: ["model.width=256"]. In order of increasing precedence: the family's
    recipe, the config file, `settings`, the options, `overrides`. After training, the validation and test data are
    scored unless `scored` is false. Progress is shown on standard error unless `progress` is false.
    """
    reporter = reporter or (console_reporter() if progress else Reporter())
    if not issubclass(family_named(family), CountModel | Trainable):
        raise TrainingError(f"a {family} is composed of trained runs; create it with: chainrule mix RUN1 RUN2 …")
    file = options.get("config")
    values = _over(read_toml(Path(file)) if file is not None else {}, settings or {})
    values = apply_overrides(_over(values, train_settings(family, options)), overrides)
    out = options.get("out")
    folder = RunFolder(Path(out) if out is not None else _new_folder(family))
    resumed = bool(options.get("resume")) and folder.exists
    start = _start(values, folder, family, resumed)
    config = continued(folder.config(), values) if resumed else _new_config(family, values, start)
    if not resumed:
        folder.require_free()
    keep_freed_memory()
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    device = choose_device(config.device)  # before the data is read, which may take long
    stored = folder if resumed else start.folder if start is not None else None
    data = open_data(config, reporter, stored=stored)
    for warning in data.warnings:
        reporter.note(warning)
    run: Run = data.train(
        config,
        folder,
        device=device,
        reporter=reporter,
        start=start,
        resume=resumed,
        scored=scored,
    )
    return run


def recipe(name: str) -> dict[str, Any]:
    """The defaults of a family where they differ from those of all."""
    kind = family_named(name)
    return {"tokenizer": kind.tokenizer, "train": dict(kind.recipe)} if issubclass(kind, Trainable) else {}


def _new_config(family: str, values: Mapping[str, Any], start: WarmStart | None) -> RunConfig:
    if "train" not in values.get("data", {}):
        raise ConfigError(task_of_family(family).missing_data)
    given = _over(start.settings(family), values) if start is not None else values
    config = RunConfig.parse(_over(recipe(family), given))
    if start is not None:
        start.require_vocabularies(config)
    return config


def _over(low: Mapping[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
    """Both trees merged; `high` has precedence. A new budget replaces the old one, whatever its kind."""
    result = dict(low)
    if any(name in high for name in BUDGETS):
        result = {name: value for name, value in result.items() if name not in BUDGETS}
    for name, value in high.items():
        both = isinstance(value, Mapping) and isinstance(result.get(name), Mapping)
        result[name] = _over(result[name], value) if both else value
    return result


def continued(stored: RunConfig, values: Mapping[str, Any]) -> RunConfig:
    """The stored settings of a resumed run; only the budget, the device and the threads may change."""
    merged = RunConfig.parse(_over(stored.model_dump(exclude_none=True), values))
    free: dict[str, Any] = {"train": {*BUDGETS, "save_every", "log_every", "patience"}, "device": True, "threads": True}
    before, after = (config.model_dump(exclude=free) for config in (stored, merged))
    if before != after:
        path, old, new = _first_difference(before, after)
        raise ConfigError(
            f"a resumed run keeps its settings, but {path!r} was {old!r} and is now {new!r}; "
            "remove it, or train a new run in another folder"
        )
    return merged


def _first_difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, Any, Any]:
    for name in {**before, **after}:
        old, new = before.get(name), after.get(name)
        if old == new:
            continue
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            path, old, new = _first_difference(old, new)
            name = f"{name}.{path}"
        return name, old, new
    raise AssertionError("the two are equal")


def _new_folder(name: str) -> Path:
    return next(path for number in itertools.count(1) if not (path := Path("runs") / f"{name}-{number}").exists())


def _start(values: Mapping[str, Any], folder: RunFolder, family: str, resumed: bool) -> WarmStart | None:
    """The run to start from, until this one has its first checkpoint."""
    path = folder.config().start_from if resumed else values.get("start_from")
    if path is None or (resumed and folder.last_step() is not None):
        return None
    return WarmStart.open(path, family)
