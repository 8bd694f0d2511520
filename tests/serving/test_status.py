from __future__ import annotations

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from chainrule.api import train
from chainrule.serving.app import create_app
from chainrule.serving.registry import Registry


@pytest.fixture
def client(tmp_path: Path, text_file: Path) -> TestClient:
    train("ngram", data=str(text_file), out=str(tmp_path / "first"), progress=False, scored=False)
    return TestClient(create_app(Registry([tmp_path / "first"])))


def test_models_are_listed_as_openai_lists_them(client: TestClient) -> None:
    [model] = client.get("/v1/models").json()["data"]
    assert model["id"] == "first"
    assert model["object"] == "model"
    assert client.get("/v1/models/first").json() == model


def test_health_and_readiness(client: TestClient, tmp_path: Path) -> None:
    assert client.get("/health").status_code == 200
    assert client.get("/ready").status_code == 200
    (tmp_path / "none").mkdir()
    empty = TestClient(create_app(Registry([tmp_path / "none"])))
    assert empty.get("/health").status_code == 200
    assert empty.get("/ready").status_code == 503


@pytest.mark.parametrize("path", ["/v1/models/other", "/v1/nothing", "/nothing.js"])
def test_what_is_not_there_is_an_error_in_openai_form(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 404
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_the_page_is_served(client: TestClient) -> None:
    answer = client.get("/")
    assert answer.status_code == 200
    assert "text/html" in answer.headers["content-type"]
