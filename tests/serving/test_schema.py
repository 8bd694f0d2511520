"""Whatever fits the schema, and much that does not, is answered: never with an internal error."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings

from chainrule.serving.app import create_app
from chainrule.serving.engine import EngineLimits
from chainrule.serving.registry import Registry
from chainrule.serving.service import ServerLimits
from tests.serving.conftest import Server, running


@pytest.fixture(scope="session")
def small(served_runs: Path) -> Iterator[Server]:
    """Small limits, so that no example takes long."""
    limits = ServerLimits(prompt_tokens=100, max_tokens=20, timeout=5.0, engine=EngineLimits(rows=4))
    with running(create_app(Registry([served_runs]), limits=limits)) as opened:
        yield opened


ENDPOINTS = [
    "/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/v1/score", "/v1/translate", "/v1/classify",
    "/v1/tag", "/v1/answer", "/v1/fill", "/v1/images", "/v1/images/generations",
]  # fmt: skip


@pytest.mark.parametrize("path", ENDPOINTS)
def test_every_endpoint_answers_whatever_it_is_sent(small: Server, path: str) -> None:
    operation = schemathesis.openapi.from_dict(small.app.openapi())[path]["POST"]

    @settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy())
    def ask(case: schemathesis.Case) -> None:
        if isinstance(case.body, dict) and "model" in case.body:
            case.body["model"] = "gpt"  # else hardly a request would reach a model
        answer = case.call(base_url=small.url)
        assert answer.status_code < 500
        if answer.status_code >= 400:
            assert set(json.loads(answer.content)["error"]) == {"message", "type", "param", "code"}

    ask()


def test_all_endpoints_are_tried(small: Server) -> None:
    assert {path for path, verbs in small.app.openapi()["paths"].items() if "post" in verbs and "/v1/" in path} == set(
        ENDPOINTS
    )
