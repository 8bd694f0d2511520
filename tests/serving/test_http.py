"""The HTTP interface, by OpenAI's own client where it has the endpoint."""

from __future__ import annotations

import json
import socket
import threading
import time
from pathlib import Path
from urllib.parse import urlparse

import httpx
import openai
import pytest

from chainrule.serving.engine import EngineLimits
from chainrule.serving.service import ServerLimits
from chainrule.tasks import load
from chainrule.tasks.text import TextRun
from tests.serving.conftest import Server, Start


@pytest.fixture
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def idle(server: Server) -> None:
    end = time.monotonic() + 10
    while server.engine.running or server.engine.waiting:
        assert time.monotonic() < end, "rows are leaked"
        time.sleep(0.01)


@pytest.mark.parametrize("model", ["ngram", "gpt", "bytes"])
def test_a_completion_is_what_generate_gives(client: openai.OpenAI, served_runs: Path, model: str) -> None:
    answer = client.completions.create(model=model, prompt="the cat", max_tokens=30, seed=7, temperature=0.8)
    [expected] = load(served_runs / model, TextRun).generate("the cat", length=30, seed=7, temperature=0.8)
    assert answer.choices[0].text == expected.text
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 30


@pytest.mark.parametrize("model", ["ngram", "gpt", "bytes"])
def test_the_pieces_of_a_stream_are_the_whole_text(client: openai.OpenAI, model: str) -> None:
    request = {"model": model, "prompt": "the cat", "max_tokens": 80, "seed": 3, "temperature": 1.5}
    whole = client.completions.create(**request)  # type: ignore[call-overload]
    chunks = list(client.completions.create(**request, stream=True, stream_options={"include_usage": True}))  # type: ignore[call-overload]
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == whole.choices[0].text
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].usage == whole.usage


def test_several_texts_of_several_prompts(client: openai.OpenAI) -> None:
    request = {"model": "gpt", "prompt": ["the", "a"], "n": 3, "max_tokens": 12}
    answer = client.completions.create(**request, seed=1)  # type: ignore[call-overload]
    assert [choice.index for choice in answer.choices] == list(range(6))
    single = client.completions.create(model="gpt", prompt="a", max_tokens=12, seed=1 + 4)
    assert answer.choices[4].text == single.choices[0].text


def test_a_stop_string_ends_a_text_and_is_not_part_of_it(client: openai.OpenAI) -> None:
    free = client.completions.create(model="ngram", prompt="the", max_tokens=60, temperature=0).choices[0].text
    mark = free[20:23]
    for stream in (False, True):
        answer = client.completions.create(
            model="ngram", prompt="the", max_tokens=60, temperature=0, stop=[mark], stream=stream
        )
        choices = [chunk.choices[0] for chunk in answer] if stream else answer.choices  # type: ignore[union-attr]
        assert "".join(choice.text for choice in choices) == free[: free.index(mark)]
        assert choices[-1].finish_reason == "stop"


def test_log_probabilities_and_alternatives(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="gpt", prompt="the", max_tokens=5, temperature=0, logprobs=3)
    found = answer.choices[0].logprobs
    assert found is not None
    assert found.tokens is not None
    assert found.token_logprobs is not None
    assert found.top_logprobs is not None
    assert "".join(found.tokens) == answer.choices[0].text
    for token, log_prob, top in zip(found.tokens, found.token_logprobs, found.top_logprobs, strict=True):
        assert len(top) == 3
        assert top[token] == pytest.approx(log_prob, abs=1e-4)
        assert log_prob == pytest.approx(max(top.values()), abs=1e-4)


def test_echo_begins_with_the_prompt(client: openai.OpenAI) -> None:
    plain = client.completions.create(model="gpt", prompt="the cat", max_tokens=4, seed=1).choices[0].text
    echoed = client.completions.create(model="gpt", prompt="the cat", max_tokens=4, seed=1, echo=True).choices[0].text
    assert echoed == "the cat" + plain


def test_echo_with_log_probabilities_scores_the_prompt(client: openai.OpenAI, served_runs: Path) -> None:
    request = {"model": "gpt", "prompt": ["the cat", "a"], "echo": True, "logprobs": 2}
    prompts = client.completions.create(**request, max_tokens=0)  # type: ignore[call-overload]
    assert [choice.text for choice in prompts.choices] == ["the cat", "a"]
    assert prompts.usage.completion_tokens == 0
    found = prompts.choices[0].logprobs
    expected = load(served_runs / "gpt", TextRun).token_scores("the cat")
    assert found.token_logprobs == pytest.approx([-token.surprisal for token in expected])
    assert [len(top) for top in found.top_logprobs] == [2] * 7
    longer = client.completions.create(**request, max_tokens=3, seed=1).choices[0]  # type: ignore[call-overload]
    assert "".join(longer.logprobs.tokens) == longer.text
    assert longer.logprobs.token_logprobs[:7] == found.token_logprobs
    assert longer.logprobs.text_offset == list(range(10))


def test_beam_search_and_drafts(client: openai.OpenAI, served_runs: Path) -> None:
    request = {"model": "gpt", "prompt": "the", "max_tokens": 8}
    found = client.completions.create(**request, n=2, extra_body={"beam": 4})  # type: ignore[call-overload]
    expected = load(served_runs / "gpt", TextRun).generate("the", length=8, beam=4, num=2)
    assert [choice.text for choice in found.choices] == [one.text for one in expected]
    plain = client.completions.create(**request, seed=2)  # type: ignore[call-overload]
    for draft in ("self", "gpt"):
        drafted = client.completions.create(**request, seed=2, extra_body={"draft_model": draft})  # type: ignore[call-overload]
        assert drafted.choices[0].text == plain.choices[0].text


def test_a_chat_continues_its_template(client: openai.OpenAI, server: Server) -> None:
    messages = [{"role": "user", "content": "where is the cat"}]
    request = {"model": "bytes", "messages": messages, "max_tokens": 20, "seed": 1}
    answer = client.chat.completions.create(**request)  # type: ignore[call-overload]
    prompt = "user: where is the cat\nassistant:"
    plain = client.completions.create(model="bytes", prompt=prompt, max_tokens=20, seed=1, stop=["\nuser:"])
    assert answer.choices[0].message.content == plain.choices[0].text
    chunks = client.chat.completions.create(**request, stream=True)  # type: ignore[call-overload]
    pieces = [chunk.choices[0].delta for chunk in chunks]
    assert pieces[0].role == "assistant"
    assert "".join(piece.content for piece in pieces) == plain.choices[0].text
    with pytest.raises(openai.BadRequestError, match="no chat template"):
        client.chat.completions.create(model="gpt", messages=messages)  # type: ignore[arg-type]


def test_scores_are_those_of_the_run(server: Server, served_runs: Path) -> None:
    before = (served_runs / "gpt" / "scores.jsonl").exists()
    answer = httpx.post(f"{server.url}/v1/score", json={"model": "gpt", "text": "the cat sat", "alternatives": 2})
    found = answer.json()
    expected = load(served_runs / "gpt", TextRun).token_scores("the cat sat")
    assert found["log_prob"] == pytest.approx(-sum(token.surprisal for token in expected))
    assert len(found["tokens"][0]["alternatives"]) == 2
    assert (served_runs / "gpt" / "scores.jsonl").exists() == before  # a request writes nothing


BAD = [
    ("/v1/completions", {"prompt": "a"}, 400, "model"),
    ("/v1/completions", {"model": "gpt", "prompt": "the", "max_tokens": -1}, 400, "max_tokens"),
    ("/v1/completions", {"model": "gpt", "prompt": "the", "max_tokens": 0}, 400, None),
    ("/v1/completions", {"model": "gpt", "prompt": "the", "temperature": -1}, 400, "temperature"),
    ("/v1/completions", {"model": "gpt", "prompt": "the", "nonsense": 1}, 400, "nonsense"),
    ("/v1/completions", {"model": "gpt", "prompt": [99999]}, 400, None),
    ("/v1/completions", {"model": "gpt", "prompt": []}, 400, "prompt"),
    ("/v1/completions", {"model": "gpt", "prompt": 5}, 400, "prompt"),
    ("/v1/completions", {"model": "gpt", "prompt": "the", "stop": 5}, 400, "stop"),
    ("/v1/completions", {"model": "gpt", "prompt": "the", "logit_bias": {"1": 5}}, 400, "logit_bias"),
    ("/v1/completions", {"model": "gpt", "prompt": "数"}, 400, None),
    ("/v1/completions", {"model": "gpt", "prompt": "the", "suffix": "end"}, 400, None),
    ("/v1/completions", {"model": "../runs/gpt", "prompt": "the"}, 404, "model"),
    ("/v1/completions", {"model": "gpt", "prompt": "the", "max_tokens": 10**6}, 400, "max_tokens"),
    ("/v1/completions", {"model": "bytes", "prompt": "a" * 9000}, 400, "prompt"),
    ("/v1/embeddings", {"model": "gpt", "input": "the"}, 400, "model"),
    ("/v1/translate", {"model": "gpt", "text": "the"}, 400, "model"),
    ("/v1/classify", {"model": "gpt", "text": "the"}, 400, "model"),
    ("/v1/images", {"model": "gpt"}, 400, "model"),
]


@pytest.mark.parametrize(("path", "body", "status", "param"), BAD)
def test_a_wrong_request_is_an_error_in_openai_form(
    server: Server, served_runs: Path, path: str, body: object, status: int, param: str | None
) -> None:
    answer = httpx.post(server.url + path, json=body)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param
    assert "\n" not in error["message"]
    assert str(served_runs) not in error["message"]  # where runs are stored is nobody's business


def test_what_is_no_json_is_refused(server: Server) -> None:
    answer = httpx.post(f"{server.url}/v1/completions", content=b"{", headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert "JSON" in answer.json()["error"]["message"]


def test_too_large_a_body_is_refused(start: Start) -> None:
    server = start(limits=ServerLimits(body_bytes=1000))
    body = {"model": "gpt", "prompt": "a" * 2000}
    answer = httpx.post(f"{server.url}/v1/completions", json=body)
    assert answer.status_code == 413

    def parts() -> object:
        yield json.dumps(body).encode()

    assert httpx.post(f"{server.url}/v1/completions", content=parts()).status_code == 413  # type: ignore[arg-type]


def test_a_full_queue_is_status_429(start: Start) -> None:
    server = start(limits=ServerLimits(engine=EngineLimits(rows=1, queue=0)))
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    with pytest.raises(openai.RateLimitError, match="waiting already"):
        client.completions.create(model="gpt", prompt="the", max_tokens=5)


def test_a_late_text_is_status_408(start: Start) -> None:
    server = start(limits=ServerLimits(timeout=0.05, max_tokens=10**7))
    answer = httpx.post(f"{server.url}/v1/completions", json={"model": "gpt", "prompt": "the", "max_tokens": 10**6})
    assert answer.status_code == 408
    idle(server)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_hangs_up_frees_its_row(start: Start, stream: bool) -> None:
    server = start(limits=ServerLimits(max_tokens=10**7))
    body = json.dumps({"model": "gpt", "prompt": "the", "max_tokens": 10**6, "stream": stream}).encode()
    where = urlparse(server.url)
    with socket.create_connection((str(where.hostname), int(where.port or 0))) as connection:
        head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        connection.sendall(head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        if stream:
            connection.recv(1000)
        end = time.monotonic() + 10
        while not server.engine.running:
            assert time.monotonic() < end
            time.sleep(0.01)
    idle(server)
    assert server.engine.stats.cancelled == 1


def test_what_a_client_that_hangs_up_waits_for_is_not_computed(start: Start, served_runs: Path) -> None:
    server = start()
    service, computed = server.app.state.service, threading.Event()
    hold = threading.Event()
    service._worker.submit(hold.wait)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{server.url}/v1/score", json={"model": "ngram", "text": "the"}, timeout=0.5)
    end = time.monotonic() + 10
    while service._computing:
        assert time.monotonic() < end
        time.sleep(0.01)
    run = service.registry.get("ngram")
    object.__setattr__(run, "token_scores", lambda *a, **k: computed.set())
    hold.set()
    service._worker.submit(lambda: None).result(10)
    assert not computed.is_set()


def test_a_long_computation_does_not_keep_the_server_from_stopping(start: Start) -> None:
    server = start(shutdown_seconds=0.1)
    forever = threading.Event()
    server.app.state.service._worker.submit(forever.wait)
    began = time.monotonic()
    server.stop()
    assert time.monotonic() - began < 10
    forever.set()


def test_shutting_down_finishes_what_runs(start: Start) -> None:
    server = start()
    found: list[httpx.Response] = []
    body = {"model": "gpt", "prompt": "the", "max_tokens": 600, "seed": 1}
    asking = threading.Thread(
        target=lambda: found.append(httpx.post(f"{server.url}/v1/completions", json=body, timeout=60))
    )
    asking.start()
    while not server.engine.running:
        time.sleep(0.002)
    server.stop()
    asking.join()
    assert found[0].json()["usage"]["completion_tokens"] == 600
    assert not server.engine.is_open


def test_an_api_key_protects_everything_but_the_page_and_the_status(start: Start) -> None:
    server = start(api_key="secret")
    wrong = openai.OpenAI(base_url=f"{server.url}/v1", api_key="Secret", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        wrong.models.list()
    right = openai.OpenAI(base_url=f"{server.url}/v1", api_key="secret")
    assert {model.id for model in right.models.list()} == {"ngram", "gpt", "bytes"}
    for path, status in {"/health": 200, "/ready": 200, "/": 200, "/metrics": 401, "/api/inspect/models": 401}.items():
        assert httpx.get(server.url + path).status_code == status


def test_other_origins_are_not_allowed_unless_named(start: Start) -> None:
    origin = {"Origin": "https://example.com"}
    assert "access-control-allow-origin" not in httpx.get(f"{start().url}/v1/models", headers=origin).headers
    allowed = start(cors=["https://example.com"])
    assert (
        httpx.get(f"{allowed.url}/v1/models", headers=origin).headers["access-control-allow-origin"] == origin["Origin"]
    )


def test_metrics_count_tokens_and_requests(server: Server, client: openai.OpenAI) -> None:
    client.completions.create(model="gpt", prompt="the", max_tokens=5)
    text = httpx.get(f"{server.url}/metrics").text
    assert "chainrule_generated_tokens_total" in text
    assert 'chainrule_http_requests_total{path="/v1/completions",status="200"}' in text
    assert "chainrule_first_token_seconds_bucket" in text


def test_the_reference_needs_no_network(server: Server) -> None:
    page = httpx.get(f"{server.url}/docs").text
    assert "/v1/completions" in page
    assert "<script" not in page
    assert "http://" not in page
    assert "https://" not in page


def test_answers_of_many_clients_are_those_of_each_alone(server: Server, client: openai.OpenAI) -> None:
    prompts = ["the cat", "a bird", "where", "the early bird catches the worm but", ""] * 3

    def ask(index: int) -> str:
        answer = client.completions.create(
            model="gpt", prompt=prompts[index], max_tokens=5 + 3 * index, seed=index, temperature=0.5 + index / 10
        )
        return answer.choices[0].text

    alone = [ask(index) for index in range(len(prompts))]
    together: dict[int, str] = {}
    threads = [
        threading.Thread(target=lambda index=index: together.update({index: ask(index)}))  # type: ignore[misc]
        for index in range(len(prompts))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [together[index] for index in range(len(prompts))] == alone
    idle(server)
