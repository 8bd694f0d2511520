"""Training from Python, with the options of `chainrule train`."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, Unpack

import torch

from chainrule.config import RunConfig, TrainConfig
from chainrule.data.workers import working_on
from chainrule.errors import ConfigError, TrainingError, nearest
from chainrule.families import family as family_named
from chainrule.interface.base import CountModel, NeuralModel, SparseUpdates, Trainable
from chainrule.interface.capabilities import DiskCounts
from chainrule.options import DATA, TrainOptions, continued, merged, train_request
from chainrule.tasks import Run, TrainingData, load, open_data, task_of_family
from chainrule.tasks.base import choose_device
from chainrule.training.checkpoint import RunFolder
from chainrule.training.distributed import current, joined, process_device, require_several_possible
from chainrule.training.loop import CLOCKS
from chainrule.training.process import keep_freed_memory, launched, limit_cached_kernels, return_freed_memory
from chainrule.training.progress import Reporter, console_reporter
from chainrule.training.schedule import Budget
from chainrule.training.sizing import Sizes, operations_per_second, sizes_for_minutes
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
    executor: Executor | None = None,
    **options: Unpack[TrainOptions],
) -> Run:
    """Train a model of a family on your data. The options are those of `chainrule train`; see `TrainOptions`.

    All other settings are given in `settings`, nested as in a config file: {"model": {"width": 256}, "train":
    {"batch_tokens": 8192}}, or in `overrides`: ["model.width=256"]. In order of increasing precedence: the family's
    recipe, the config file, `settings`, the options, `overrides`. After training, the validation and test data are
    scored unless `scored` is false. Progress is shown on standard error unless `progress` is false. The workers of an
    `executor` encode a large text, count n-grams if `memory` limits them, and translate for `distil_from`; they see the
    data, the cache and the run folder at the same paths.
    """
    with contextlib.nullcontext() if executor is None else working_on(executor):
        return _trained(
            family, options, settings=settings, overrides=overrides, scored=scored, progress=progress, reporter=reporter
        )


def _trained(
    family: str,
    options: TrainOptions,
    *,
    settings: Mapping[str, Any] | None,
    overrides: Sequence[str],
    scored: bool,
    progress: bool,
    reporter: Reporter | None,
) -> Run:
    launch = launched()
    reporter = reporter or (console_reporter() if progress else Reporter())
    values, folder, resumed = train_request(family, options, settings=settings, overrides=overrides)
    kind = family_named(family)
    if not issubclass(kind, CountModel | Trainable):
        raise TrainingError(f"a {family} is composed of trained runs; create it with: chainrule mix RUN1 RUN2 …")
    if values.get("memory") is not None and not issubclass(kind, DiskCounts):
        raise ConfigError(
            f"memory {values['memory']} limits the counting of n-grams, and {family} counts none; leave it out"
        )
    start = _start(values, folder, family, resumed)
    config = continued(folder.config(), values) if resumed else _new_config(family, values, start)
    require_several_possible(
        family,
        [getattr(config.data, name) for name in DATA],
        by_gradients=issubclass(kind, Trainable) and not issubclass(kind, SparseUpdates),
    )
    limit_cached_kernels()
    if launch.world > 1 and config.train.parallel == "fsdp":
        return_freed_memory()
    else:
        keep_freed_memory()
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    device = process_device(choose_device(config.device), launch)  # before the data is read, which may take long
    with joined(device) as processes:
        if not processes.first:
            reporter = Reporter()
        stored = folder if resumed else start.folder if start is not None else None
        with processes.in_turn():
            data = open_data(config, reporter, stored=stored)
        for warning in data.warnings:
            reporter.note(warning)
        if not resumed and start is None:
            config = _sized(config, values, data, device, reporter)
            config = RunConfig.parse(json.loads(processes.agreed_text(config.model_dump_json())))
        folder = processes.folder(folder)
        with folder.kept_if_trained():
            run: Run = data.train(
                config,
                folder,
                device=device,
                reporter=reporter,
                start=start,
                resume=resumed,
                scored=scored,
            )
        processes.wait()
    return run


def recipe(name: str) -> dict[str, Any]:
    """The defaults of a family where they differ from those of all."""
    kind = family_named(name)
    return {"tokenizer": kind.tokenizer, "train": dict(kind.recipe)} if issubclass(kind, Trainable) else {}


def _new_config(family: str, values: Mapping[str, Any], start: WarmStart | None) -> RunConfig:
    if "train" not in values.get("data", {}):
        task = task_of_family(family)
        if task.default_data is None:
            raise ConfigError(task.missing_data)
        values = merged(values, {"data": {"train": task.default_data}})
    given = merged(start.settings(family), values) if start is not None else values
    config = RunConfig.parse(merged(recipe(family), given))
    if start is not None:
        start.require_vocabularies(config)
    known = family_named(family).Config.model_fields
    for name in config.model:  # before the data is read, which may take long
        if name not in known:
            raise ConfigError(f"unknown setting 'model.{name}'; {nearest(name, known)}")
    return config


def _sized(
    config: RunConfig, values: Mapping[str, Any], data: TrainingData[Any, Any], device: torch.device, reporter: Reporter
) -> RunConfig:
    """The settings with a size, batch, context and dropout for the minutes and the data, unless the user chooses.

    Other budgets keep the defaults, so that they give the same model on every machine; so do GPUs, where the time of a
    small model does not follow from its operations, and sampled objectives, which compute a part of the readout only.
    """
    kind, budget = family_named(config.family), Budget.of(config.train)
    given, fields = values.get("model", {}), kind.Config.model_fields
    if not issubclass(kind, NeuralModel) or not data.sized_by_budget or "width" not in fields or "width" in given:
        return config
    if budget.kind != "minutes" or device.type != "cpu" or config.train.objective != "likelihood":
        return config
    speed = current().world * operations_per_second(torch.get_num_threads(), CLOCKS[config.train.clock])
    chosen = sizes_for_minutes(
        config.family,
        data.model_settings,
        train_tokens=len(data.corpus),
        operations=60 * budget.amount * speed,
        model=given,
        train=values.get("train", {}),
    )
    reporter.note(_sizes_note(config.family, chosen, budget, speed, len(data.corpus)))
    train = config.train.model_dump(exclude_none=True) | chosen.train
    return config.model_copy(update={"model": config.model | chosen.model, "train": TrainConfig.parse(train)})


def _sizes_note(family: str, chosen: Sizes, budget: Budget, speed: float, tokens: int) -> str:
    """What was chosen and why, in one line."""
    words = {"width": "width", "layers": "layers", "context": "context", "dropout": "dropout"}
    model = [f"{words[key]} {chosen.model[key]:g}" for key in words if key in chosen.model]
    batch = [f"batches of {size:,} tokens" for size in chosen.train.values()]
    what = ", ".join(model[:-1] + batch + model[-1:]) or "its default size"
    minutes = "1 minute" if budget.amount == 1 else f"{budget.amount:g} minutes"
    return (
        f"{family} with {what}: chosen for {minutes} at about {speed / 1e9:.0f} GFLOP/s and {tokens:,} training "
        "tokens; set model.width to choose"
    )


def _start(values: Mapping[str, Any], folder: RunFolder, family: str, resumed: bool) -> WarmStart | None:
    """The run to start from, until this one has its first checkpoint."""
    path = folder.config().start_from if resumed else values.get("start_from")
    if path is None or (resumed and folder.last_step() is not None):
        return None
    return WarmStart.open(path, family)
