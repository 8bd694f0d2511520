"""What the tests share: a small text, a cache of their own, and the command line in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from chainrule.cli import main


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


Command = Callable[..., Outcome]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAINRULE_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def chainrule(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run the command line as a user would, and give its status and what it printed."""

    def run(*words: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["chainrule", *map(str, words)])
        monkeypatch.setenv("COLUMNS", "200")
        code = 0
        try:
            main()
        except SystemExit as ending:
            code = int(ending.code or 0)
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run


LINES = (
    "the cat sat on the mat and the dog sat on the log\n",
    "a bird in the hand is worth two in the bush\n",
    "where there is smoke there is fire, said the cook\n",
    "the early bird catches the worm but the second mouse gets the cheese\n",
)


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    """A few kilobytes of English."""
    file = tmp_path / "text.txt"
    file.write_text("".join(LINES[(index * 7 + index // 3) % 4] for index in range(120)), encoding="utf-8")
    return file


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real data, where there is any."""
    folder = Path(__file__).parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the real data sets are not there")
    return folder
