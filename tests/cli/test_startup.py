"""Start-up: mistakes are reported, and runs described, before torch is imported."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from chainrule.training.checkpoint import RunFolder
from tests.conftest import Command, Outcome

LAUNCH = """
import sys
from chainrule.cli import main
try:
    main()
finally:
    print(bool({"torch", "numpy"} & set(sys.modules)), file=sys.stderr)
"""


def in_new_process(*words: object) -> tuple[Outcome, bool]:
    """The outcome of a command, and whether torch or NumPy was imported for it."""
    command = [sys.executable, "-c", LAUNCH, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    *lines, imported = done.stderr.splitlines()
    return Outcome(done.returncode, done.stdout, "\n".join(lines)), imported == "True"


@pytest.fixture
def run(chainrule: Command, text_file: Path, tmp_path: Path) -> Path:
    assert chainrule("train", "ngram", "--data", text_file, "--out", tmp_path / "run").code == 0
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "gpt", "--data", "nosuch.txt", "--out", "new"], "nosuch.txt"),
        (["train", "gpt", "--data", "TEXT", "--valid", "nosuch.txt", "--out", "new"], "nosuch.txt"),
        (["train", "gtp", "--data", "TEXT"], "'gpt'"),
        (["train", "gpt", "--data", "TEXT", "--set", "train.minuts=1"], "'minutes'"),
        (["train", "gpt", "--data", "TEXT", "--minutes", 1, "--steps", 1], "one budget"),
        (["train", "gpt", "--data", "TEXT", "--out", "RUN"], "already contains a run"),
        (["train", "gpt", "--data", "TEXT", "--start-from", "nosuch", "--out", "new"], "nosuch"),
        (["compare", "--data", "nosuch.txt", "--out", "new"], "nosuch.txt"),
        (["score", "nosuch", "--text", "x"], "no run at"),
        (["score", "RUN", "--data", "nosuch.txt"], "nosuch.txt"),
        (["mix", "RUN", "nosuch", "--out", "new"], "no run at"),
        (["mix", "RUN", "RUN", "--out", "RUN"], "already contains a run"),
        (["translate", "nosuch"], "no run at"),
        (["import", "nosuch.arpa", "--from", "arpa", "--out", "new"], "nosuch.arpa"),
    ],
)
def test_a_mistake_is_reported_without_importing_torch(
    run: Path, text_file: Path, tmp_path: Path, words: list[object], message: str
) -> None:
    places = {"RUN": run, "TEXT": text_file, "new": tmp_path / "new"}
    outcome, torch_imported = in_new_process(*(places.get(str(word), word) for word in words))
    assert outcome.code == 2
    assert message in outcome.err
    assert len(outcome.err.splitlines()) == 1
    assert not torch_imported
    assert not (tmp_path / "new").exists()


def test_info_describes_a_run_without_importing_torch(run: Path, chainrule: Command) -> None:
    outcome, torch_imported = in_new_process("info", run, "--json")
    assert not torch_imported
    found = json.loads(outcome.out)
    assert found["family"] == "ngram"
    assert found["parameters"] > 0
    assert chainrule("score", run, "--text", "the cat sat").code == 0  # another score is no reason to load the model
    assert not in_new_process("info", run)[1]


def test_info_is_made_anew_when_the_run_has_changed_or_moved(run: Path, chainrule: Command, tmp_path: Path) -> None:
    before = json.loads(chainrule("info", run, "--json").out)
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    (copy / "config.toml").write_text((run / "config.toml").read_text().replace("text.txt", "novel.txt"))
    RunFolder(copy).checksums.update()
    after = json.loads(chainrule("info", copy, "--json").out)
    assert after["path"] == str(copy)
    assert after["data"].endswith("novel.txt")
    changed = {"path", "data"}
    assert {name: after[name] for name in after.keys() - changed} == {
        name: before[name] for name in before.keys() - changed
    }
    (copy / "info.json").write_text("{")  # damaged
    assert json.loads(chainrule("info", copy, "--json").out) == after


def test_an_unknown_model_setting_is_refused_before_the_data_is_read(
    chainrule: Command, text_file: Path, tmp_path: Path
) -> None:
    outcome = chainrule("train", "gpt", "--data", text_file, "--out", tmp_path / "new", "--set", "model.widht=3")
    assert outcome.code == 2
    assert outcome.err.splitlines() == ["error unknown setting 'model.widht'; did you mean 'width'?"]


def test_the_threads_of_blas_are_set_before_numpy_is_imported(run: Path) -> None:
    code = "import os, sys; from pathlib import Path; from chainrule.cli.options import require_runs; "
    code += "require_runs(Path(sys.argv[1])); print('numpy' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code, str(run)], text=True).strip() == "False"


def test_scoring_a_text_does_not_import_what_sharded_training_needs(run: Path) -> None:
    code = "import sys; from chainrule.cli import main\ntry:\n    main()\n"
    code += "finally:\n    print('torch' in sys.modules, 'torch.distributed.tensor' in sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", code, "score", str(run), "--text", "the cat"], capture_output=True, text=True, check=True
    )
    assert done.stderr.splitlines()[-1] == "True False"
