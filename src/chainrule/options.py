"""The options of training, declared once: `chainrule train --NAME` and `chainrule.train(NAME=…)` are made from them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypedDict

from typing_extensions import Doc

from chainrule.errors import ConfigError

if TYPE_CHECKING:
    from chainrule.config import RunConfig
    from chainrule.training.checkpoint import RunFolder

DATA = ("train", "valid", "test", "source", "valid_source", "test_source")  # settings that name data


class TrainOptions(TypedDict, total=False):
    """Options of `train`; those that are not given are None."""

    data: Annotated[
        str | None,
        Doc(
            "Training data. Text: a file (also .gz .xz .zst .jsonl .parquet .csv .fasta), a folder, a glob, - for "
            "standard input, builtin:prose, builtin:python, or hub:NAME[:CONFIG[:SPLIT]]. A file is one text, a list "
            "of names or words one document per line; --set data.unit=documents or stream decides. Translation: pairs "
            "in a .tsv, .csv or .jsonl file, hub:NAME:CONFIG or builtin:dates. Images: idx, .npz, a folder of PNG or "
            "JPEG, or builtin:digits. Labels, tags and answers: .tsv, .csv or .jsonl, CoNLL-U or CoNLL-2003, or "
            "SQuAD's JSON. `chainrule data FILE` shows how a file is read."
        ),
    ]
    source: Annotated[str | None, Doc("Translation: the source text, one sentence per line.")]
    target: Annotated[str | None, Doc("Translation: the target text, line by line; instead of --data.")]
    out: Annotated[Path | None, Doc("Run folder to create; default runs/FAMILY-1, -2, …")]
    valid: Annotated[str | None, Doc("Validation data, in the same forms as --data.")]
    valid_source: Annotated[str | None, Doc("Translation: validation sources, with --valid-target.")]
    valid_target: Annotated[str | None, Doc("Translation: validation targets.")]
    test_source: Annotated[str | None, Doc("Translation: test sources, scored once after training.")]
    test_target: Annotated[str | None, Doc("Translation: test targets.")]
    valid_fraction: Annotated[
        float | None,
        Doc(
            "Fraction of the data for validation if --valid is not given, from its end; --set data.valid_from=spread "
            "takes it evenly from all of the data. Default 0.1."
        ),
    ]
    tokenizer: Annotated[
        str | None,
        Doc(
            "chars, bytes, words, words:10000 (vocabulary size), words:min=5 (minimum count), words:lower (case "
            "folding), words:whitespace (punctuation stays with words), bpe:8000, unigram:8000, sentencepiece:FILE or "
            "sentencepiece:8000, jieba, huggingface:FOLDER. Default: the family's own, mostly chars."
        ),
    ]
    source_tokenizer: Annotated[
        str | None, Doc("Translation: tokenizer of the source; by default both sides share one vocabulary.")
    ]
    distil_from: Annotated[
        str | None,
        Doc("Translation: train on the translations of this RUN instead of the targets (sequence-level distillation)."),
    ]
    start_from: Annotated[
        str | None,
        Doc(
            "Start with the vocabulary, settings and weights of this RUN: to fine-tune it, or for another family that "
            "shares modules with it."
        ),
    ]
    minutes: Annotated[float | None, Doc("Budget in minutes; the learning-rate schedule follows the clock.")]
    steps: Annotated[int | None, Doc("Budget in optimizer steps.")]
    epochs: Annotated[float | None, Doc("Budget in passes over the training data.")]
    tokens: Annotated[int | None, Doc("Budget in training tokens.")]
    seed: Annotated[int | None, Doc("Random seed; default 0.")]
    threads: Annotated[int | None, Doc("Number of CPU threads; default: all cores.")]
    device: Annotated[str | None, Doc("cpu, cuda, mps or auto.")]
    memory: Annotated[
        str | None,
        Doc("ngram: memory for counting, such as 2GB, for text that is larger than memory; the rest is on disk."),
    ]
    config: Annotated[Path | None, Doc("TOML file with settings, such as the config.toml of a run.")]
    resume: Annotated[bool, Doc("Continue the run in --out from its last checkpoint.")]


def train_settings(family: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options as a tree of settings like that of config.toml, without those that are None."""

    def text(name: str) -> str | None:
        return None if options.get(name) is None else str(options[name])

    tree = {
        "family": family,
        "tokenizer": options.get("tokenizer"),
        "source_tokenizer": options.get("source_tokenizer"),
        "start_from": text("start_from"),
        "seed": options.get("seed"),
        "threads": options.get("threads"),
        "device": options.get("device"),
        "memory": options.get("memory"),
        "data": {
            **_split(options, "train", "data", "source", "target"),
            **_split(options, "valid", "valid", "valid_source", "valid_target"),
            **_split(options, "test", None, "test_source", "test_target"),
            "valid_fraction": options.get("valid_fraction"),
            "distil_from": text("distil_from"),
        },
        "train": {name: options.get(name) for name in ("minutes", "steps", "epochs", "tokens")},
    }
    return _without_none(tree)


def _split(options: Mapping[str, Any], split: str, both: str | None, source: str, target: str) -> dict[str, Any]:
    """The data of a split: one data spec, or a target with its source."""
    given = {name: options.get(name) for name in (source, target)}
    spec = None if both is None else options.get(both)
    if (given[source] is None) != (given[target] is None):
        there, missing = (source, target) if given[target] is None else (target, source)
        raise ConfigError(f"{_flag(there)} is given without {_flag(missing)}; give both, line by line")
    if spec is not None and given[target] is not None:
        assert both is not None
        raise ConfigError(f"{_flag(target)} and {_flag(both)} are both given; remove one of them")
    return {split: spec if given[target] is None else given[target], source: given[source]}


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _without_none(tree: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: _without_none(value) if isinstance(value, Mapping) else value for name, value in tree.items()}
    return {name: value for name, value in kept.items() if value is not None and value != {}}


# What is asked for, checked before torch is imported and before any data is read


class TrainRequest(NamedTuple):
    """The settings that the user gives, and the folder of the run."""

    values: dict[str, Any]  # as in config.toml
    folder: RunFolder
    resumed: bool  # the folder has a run to continue


def train_request(
    family: str,
    options: Mapping[str, Any],
    *,
    settings: Mapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
) -> TrainRequest:
    """Combine what the user gives; raises for all that is wrong without a look into the data or at the model."""
    from chainrule.config import RunConfig, apply_overrides, read_toml
    from chainrule.families import require_family
    from chainrule.training.checkpoint import RunFolder
    from chainrule.training.process import launched

    require_family(family)
    file = options.get("config")
    values = merged(read_toml(Path(file)) if file is not None else {}, settings or {})
    values = apply_overrides(merged(values, train_settings(family, options)), overrides)
    out = options.get("out")
    folder = RunFolder(Path(out) if out is not None else _new_folder(family))
    resumed = (bool(options.get("resume")) or launched().restarts > 0) and folder.exists
    config = RunConfig.parse(merged({"data": {"train": "-"}}, values))
    if resumed:
        config = continued(folder.config(), values)
    else:
        folder.require_free()
        for run in (config.start_from, config.data.distil_from):
            if run is not None:
                RunFolder(Path(run)).config()
    require_data(*(getattr(config.data, name) for name in DATA))
    return TrainRequest(values, folder, resumed)


def require_data(*specs: str | None) -> None:
    """Raise DataError for a path that does not exist; other data is checked when it is opened."""
    from chainrule.data.text import require_path

    for spec in specs:
        if spec is not None:
            require_path(spec)


def merged(low: Mapping[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
    """Both trees merged; `high` has precedence. A new budget replaces the old one, whatever its kind."""
    from chainrule.config import BUDGETS

    result = dict(low)
    if any(name in high for name in BUDGETS):
        result = {name: value for name, value in result.items() if name not in BUDGETS}
    for name, value in high.items():
        both = isinstance(value, Mapping) and isinstance(result.get(name), Mapping)
        result[name] = merged(result[name], value) if both else value
    return result


def continued(stored: RunConfig, values: Mapping[str, Any]) -> RunConfig:
    """The stored settings of a resumed run; only the budget, the device and the threads may change."""
    from chainrule.config import BUDGETS, RunConfig

    new = RunConfig.parse(merged(stored.model_dump(exclude_none=True), values))
    free: dict[str, Any] = {
        "train": {*BUDGETS, "save_every", "log_every", "patience", "parallel"},
        "device": True,
        "threads": True,
        "memory": True,
    }
    before, after = (config.model_dump(exclude=free) for config in (stored, new))
    if before != after:
        path, old, new = _first_difference(before, after)
        raise ConfigError(
            f"a resumed run keeps its settings, but {path!r} was {old!r} and is now {new!r}; "
            "remove it, or train a new run in another folder"
        )
    return new


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
