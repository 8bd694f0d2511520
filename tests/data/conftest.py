from pathlib import Path

import pytest

from chainrule.config import DataConfig
from chainrule.data.source import TextSource
from chainrule.data.text import open_source


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    """Give every test an empty cache."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("CHAINRULE_CACHE", str(folder))
    return folder


@pytest.fixture
def source():
    """A source from a path and settings."""

    def make(spec: object, **settings: object) -> TextSource:
        return open_source(str(spec), DataConfig(train=str(spec), **settings))

    return make
