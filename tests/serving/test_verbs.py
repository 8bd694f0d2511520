"""The endpoints of all tasks give what the verbs of their runs give."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from chainrule.decoding.translation import Search
from chainrule.serving.app import create_app
from chainrule.serving.registry import Registry
from chainrule.tasks import load
from chainrule.tasks.answers import AnswerRun
from chainrule.tasks.labels import LabelRun
from chainrule.tasks.tags import TagRun
from chainrule.tasks.translation import TranslationRun
from tests.serving.conftest import running


@pytest.fixture(scope="module")
def url(served: Path) -> Iterator[str]:
    with running(create_app(Registry([served]))) as opened:
        yield opened.url


def ask(url: str, verb: str, **body: Any) -> Any:
    answer = httpx.post(f"{url}/v1/{verb}", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_translations(url: str, served: Path) -> None:
    found = ask(url, "translate", model="shout", text=["one two", "two"], n=2, beam=3)
    expected = load(served / "shout", TranslationRun).translate(["one two", "two"], Search(beam=3, n_best=2))
    texts = [[one["text"] for one in row] for row in found["data"]]
    assert texts == [[one.text for one in row] for row in expected]


def test_labels(url: str, served: Path) -> None:
    [expected] = load(served / "classifier", LabelRun).predict(["a b"])
    assert expected is not None
    [found] = ask(url, "classify", model="classifier", text="a b")["data"]
    assert found["label"] == expected.label
    assert found["probabilities"] == pytest.approx(expected.probabilities)


def test_tags(url: str, served: Path) -> None:
    [expected] = load(served / "tagger", TagRun).tag([["ab", "c"]])
    assert expected is not None
    [found] = ask(url, "tag", model="tagger", text="ab c")["data"]
    assert found["tags"] == list(expected.tags)


def test_answers(url: str, served: Path) -> None:
    expected = load(served / "reader", AnswerRun).answer("a", "a b c d")
    [found] = ask(url, "answer", model="reader", question="a", context="a b c d")["data"]
    assert found["text"] == expected.text


def test_images(url: str) -> None:
    body = {"model": "bars", "n": 2, "seed": 3}
    found = ask(url, "images", **body)["data"]
    assert [base64.b64decode(one["b64_json"])[1:4] for one in found] == [b"PNG", b"PNG"]
    assert ask(url, "images", **body)["data"] == found


def test_images_of_openai_clients(url: str) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
    found = client.images.generate(model="bars", prompt="", extra_body={"seed": 3}).data
    assert found is not None
    assert found[0].b64_json == ask(url, "images", model="bars", seed=3)["data"][0]["b64_json"]


def test_scores_of_a_translation_given_its_source(url: str) -> None:
    found = ask(url, "score", model="shout", text="ONE", source="one")
    assert found["log_prob"] < 0


def test_a_tokenizer_of_subwords_streams_whole_texts(url: str) -> None:
    body = {"model": "pieces", "prompt": "the cat", "max_tokens": 40, "seed": 2}
    whole = ask(url, "completions", **body)["choices"][0]["text"]
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
    pieces = client.completions.create(**body, stream=True)  # type: ignore[call-overload]
    assert "".join(piece.choices[0].text for piece in pieces) == whole
