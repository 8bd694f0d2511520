"""Runs that the tests of the server share."""

from __future__ import annotations

from pathlib import Path

import pytest

from chainrule.serving.registry import Registry
from tests.serving.served import make_served


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tiny runs of every task, a report and a running training."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CHAINRULE_CACHE", str(tmp_path_factory.mktemp("cache")))
        return make_served(tmp_path_factory.mktemp("served") / "runs")


@pytest.fixture(scope="session")
def registry(served: Path) -> Registry:
    return Registry([served])
