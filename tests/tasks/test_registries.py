"""One entry per family and per task: everything else follows from the registries and the declared options."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest
from tests.conftest import Command

import chainrule as package
from chainrule.cli.train import train as train_command
from chainrule.errors import ConfigError
from chainrule.families import FAMILIES, composites, single_families
from chainrule.options import TrainOptions, train_settings
from chainrule.tasks import CLAIMING, TASKS
from chainrule.tasks.base import Run, Task


@pytest.mark.parametrize("name", list(FAMILIES))
def test_every_family_names_a_registered_task_and_its_run_holds_such_a_model(name: str) -> None:
    task = TASKS[FAMILIES[name].task]
    assert issubclass(FAMILIES[name], task.run.model_type)


@pytest.mark.parametrize("name", list(TASKS))
def test_every_task_states_its_run_its_use_and_what_data_it_needs(name: str) -> None:
    task = TASKS[name]
    assert issubclass(task, Task)
    assert issubclass(task.run, Run)
    assert task.run.use.format(run="RUN").startswith("chainrule ")
    assert "--data" in task.missing_data
    assert name in {kind.task for kind in single_families().values()}


@pytest.mark.parametrize(
    "name", [name for name, kind in single_families().items() if TASKS[kind.task].default_data is None]
)
def test_training_without_data_is_refused_with_the_message_of_the_task(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        package.train(name, out=tmp_path / "run")
    assert str(error.value) == TASKS[FAMILIES[name].task].missing_data
    assert not (tmp_path / "run").exists()


def test_families_and_composites_partition_the_registry() -> None:
    assert {**single_families(), **composites()} == dict(FAMILIES)
    assert not single_families().keys() & composites().keys()


def test_the_names_of_families_are_known_without_importing_them() -> None:
    code = (
        "import sys; from chainrule.families import FAMILIES; assert 'gpt' in FAMILIES; "
        "print([name for name in sys.modules if name.startswith('chainrule.models.')])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_command_line_and_python_have_the_same_training_options(chainrule: Command) -> None:
    options = set(get_type_hints(TrainOptions))
    # a cluster is named by --on on the command line, and is executor= in Python
    assert options | {"family", "set_", "json", "on"} == set(inspect.signature(train_command).parameters)
    shown = chainrule("train", "--help").out
    assert all(f"--{name.replace('_', '-')}" in shown for name in options)


def test_every_training_option_reaches_the_settings_or_the_run() -> None:
    used_by_train = {"out", "config", "resume"}
    pairs = {"source", "target", "valid_source", "valid_target", "test_source", "test_target"}
    for name in set(get_type_hints(TrainOptions)) - used_by_train - pairs:
        assert train_settings("gpt", {name: 3}) != train_settings("gpt", {}), name


def test_the_tasks_that_claim_data_are_those_that_define_what_they_claim() -> None:
    own = {method.__func__ for method in (Task.recognises, Task.stored)}
    defining = [name for name, task in TASKS.items() if {task.recognises.__func__, task.stored.__func__} - own]
    assert sorted(defining) == sorted(CLAIMING)
