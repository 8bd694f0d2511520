"""What the tests share: a small text, a cache of their own, and the command line in this process."""

from __future__ import annotations

import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from chainrule.cli import main
from tests.browser import BROWSERS, Open


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


Command = Callable[..., Outcome]
RealData = Callable[[str], Path]
Measure = Callable[..., None]


@pytest.fixture(scope="session", autouse=True)
def _compiled_kernels() -> None:
    """Compile the decoding kernels before the first test, so that none has the message about it in its output."""
    if find_spec("torch") is None or find_spec("numba") is None:
        return
    import torch

    from chainrule.compose.gate import measures_of
    from chainrule.decoding import GREEDY, Sampling, generate_tokens
    from chainrule.interface.capabilities import TargetScorer
    from chainrule.testing.tiny import tiny_model
    from chainrule.types import Sequences

    for dtype in (torch.float32, torch.float64):
        model, counted = tiny_model("gpt", "modern").to(dtype), tiny_model("ngram").to(dtype)
        assert isinstance(counted, TargetScorer)
        with torch.inference_mode():
            model.step(torch.tensor([1]), model.start().state)
            counted.step(torch.tensor([1]), counted.start().state)
            counted.score_tokens(Sequences.pack([[1]]), hits=True)
            measures_of([torch.zeros(1, 1, 2, dtype=dtype)])
            for sampling in (GREEDY, Sampling()):
                generate_tokens(counted, [[1]], length=2, sampling=sampling, seeds=[0])


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
def real_data() -> RealData:
    """The folder of a public data set inside CHAINRULE_DATA (CONTRIBUTING.md lists them); skips if it is missing."""

    def folder(name: str) -> Path:
        if "CHAINRULE_DATA" not in os.environ:
            pytest.skip("needs real data: set CHAINRULE_DATA to the folder that CONTRIBUTING.md describes")
        found = Path(os.environ["CHAINRULE_DATA"]) / name
        if not found.is_dir():
            pytest.skip(f"needs real data: CHAINRULE_DATA has no folder {name!r}")
        return found

    return folder


@pytest.fixture
def measure(record_property: Callable[[str, object], None]) -> Measure:
    """Hold a measured figure to a stated one, and to a goal if that is stricter; list it in pytest's summary."""

    def hold(
        figure: str,
        found: float,
        *,
        stated: float,
        tolerance: float = 0.03,
        higher_is_better: bool = False,
        goal: float = 0.0,
    ) -> None:
        bound = max(goal, stated * (1 - tolerance)) if higher_is_better else stated * (1 + tolerance)
        line = f"{figure}: {found:.4f}, stated {stated}, {'at least' if higher_is_better else 'at most'} {bound:.4f}"
        record_property("measured", line)
        assert found >= bound if higher_is_better else found <= bound, line

    return hold


def pytest_configure() -> None:
    folder = os.environ.get("CHAINRULE_DATA")
    if folder is not None and not Path(folder).is_dir():
        raise pytest.UsageError(f"CHAINRULE_DATA must name a folder (got {folder!r}); create it or unset the variable")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the measured figures, and how many tests were skipped for each reason."""
    for report in [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]:
        for name, line in report.user_properties:
            if name == "measured":
                test = report.nodeid.partition("::")[2]
                terminalreporter.write_line(f"{test} ({report.duration / 60:.1f} minutes): {line}")
    reasons = Counter(str(report.longrepr[2]) for report in terminalreporter.getreports("skipped"))
    if reasons:
        terminalreporter.section("skipped tests")
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count:5d}  {reason.removeprefix('Skipped: ')}")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    reason = "playwright is not installed: pip install playwright"
    playwright = pytest.importorskip("playwright.sync_api", reason=reason)
    with playwright.sync_playwright() as started:
        path = next(filter(None, map(shutil.which, BROWSERS)), started.chromium.executable_path)
        if not Path(path).exists():
            pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is on the path, and playwright has none of its own")
        launched = started.chromium.launch(executable_path=path)
        yield launched
        launched.close()


@pytest.fixture
def open_file(browser: Any) -> Iterator[Open]:
    """Open a page; at the end nothing may have been asked of the network, and no error logged."""
    contexts: list[Any] = []
    requests: list[str] = []
    complaints: list[str] = []

    def open_page(path: Path, *, scheme: str = "light", width: int = 1280, scripts: bool = True) -> Any:
        context = browser.new_context(
            offline=True, color_scheme=scheme, viewport={"width": width, "height": 900}, java_script_enabled=scripts
        )
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(path.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
    assert complaints == []
