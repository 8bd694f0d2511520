"""The engine without HTTP: an answer is what it would be alone, whatever else the engine is doing."""

from __future__ import annotations

import math
import queue
import random
import threading
import time
import zlib
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chainrule.decoding.sampling import GREEDY, Sampling
from chainrule.families import build
from chainrule.interface.base import AutoregressiveModel, NeuralModel
from chainrule.interface.conditional import Conditional
from chainrule.serving.engine import Engine, EngineLimits
from chainrule.serving.requests import DeadlineExceeded, EngineClosed, QueueFull, Request, Token
from chainrule.testing.tiny import SOURCE_VOCABULARY, VOCABULARY, composed_variants, tiny_model, variants
from chainrule.types import Sequences, Step


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine(EngineLimits(rows=6, queue=64)) as opened:
        yield opened


def random_request(model: AutoregressiveModel, rng: random.Random) -> Request:
    sampling = rng.choice([
        GREEDY,
        Sampling(),
        Sampling(temperature=0.7, top_k=3),
        Sampling(top_p=0.8),
        Sampling(min_p=0.1),
        Sampling(repetition_penalty=1.3),
    ])  # fmt: skip
    source = None
    if isinstance(model, Conditional):
        length = rng.randint(1, min(6, model.source_context or 6))
        source = Sequences.full(torch.tensor([[rng.randrange(SOURCE_VOCABULARY) for _ in range(length)]]))
    shape = getattr(model.config, "shape", None)
    context = math.prod(shape) if shape is not None else model.context or 12
    may_outgrow = source is None and shape is None  # texts may outgrow their window, targets and images may not
    most = 2 * context if may_outgrow else context
    prompt = [rng.randrange(VOCABULARY) for _ in range(rng.randint(0, 40 if may_outgrow else min(3, context - 1)))]
    if not may_outgrow:
        most = max(1, context - len(prompt) - 1)
    elif rng.random() < 0.5:
        prompt = prompt[: context // 2]
    return Request(
        model=model,
        prompt=prompt,
        max_tokens=rng.randint(1, most),
        sampling=sampling,
        seed=rng.randrange(1000),
        eos=rng.choice([None, 0]),
        suppress=rng.choice([(), (1,)]),
        alternatives=rng.choice([0, 0, 2]),
        source=source,
    )


def alone(request: Request) -> list[Token]:
    with Engine() as engine:
        return list(engine.stream(request))


@pytest.mark.parametrize(("family", "variant"), variants() + composed_variants())
def test_an_answer_equals_the_same_request_alone(family: str, variant: str, engine: Engine) -> None:
    """Under random joins and cancels, to the last bit of every log-probability, for every family."""
    check_together(engine, tiny_model(family, variant), seed=zlib.crc32(f"{family} {variant}".encode()), count=6)


def check_together(engine: Engine, model: AutoregressiveModel, *, seed: int, count: int) -> None:
    rng = random.Random(seed)
    requests = [random_request(model, rng) for _ in range(count)]
    answers: list[list[Token] | None] = [None] * count
    failures: list[Exception] = []

    def ask(index: int, cancel_after: int | None, wait: float) -> None:
        time.sleep(wait)
        try:
            listen(index, cancel_after)
        except Exception as error:  # would be lost with the thread
            failures.append(error)

    def listen(index: int, cancel_after: int | None) -> None:
        stream = engine.stream(requests[index])
        tokens = []
        for token in stream:
            tokens.append(token)
            if cancel_after is not None and len(tokens) >= cancel_after:
                stream.close()
                return
        answers[index] = tokens

    threads = [
        threading.Thread(target=ask, args=(index, rng.choice([None, None, None, 1, 3]), rng.random() * 0.01))
        for index in range(count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    for request, answer in zip(requests, answers, strict=True):
        if answer is not None:
            assert answer == alone(request)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10_000))
def test_no_schedule_of_joins_leaves_and_cancels_changes_an_answer(engine: Engine, seed: int) -> None:
    torch.manual_seed(0)
    check_together(engine, WIDE, seed=seed, count=12)


def wide_model() -> AutoregressiveModel:
    """Widths that are not multiples of the lanes, so that every rest of a loop is executed."""
    torch.manual_seed(1)
    model = build("gpt", {"vocabulary": VOCABULARY, "layers": 2, "width": 44, "heads": 2, "context": 100})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    assert isinstance(model, AutoregressiveModel)
    return model.eval()


WIDE = wide_model()


def long_request(**changes: object) -> Request:
    return replace(Request(model=WIDE, prompt=[1, 2, 3], max_tokens=100_000, seed=5), **changes)  # type: ignore[arg-type]


def test_a_cached_beginning_is_not_read_again_and_changes_nothing(engine: Engine) -> None:
    prompt = [n * 7 % VOCABULARY for n in range(80)]
    first = Request(model=WIDE, prompt=prompt, max_tokens=10, seed=3)
    expected = list(engine.stream(first))
    read = engine.stats.prompt_tokens
    assert read == 80
    assert list(engine.stream(first)) == expected
    assert engine.stats.prompt_tokens - read == 16  # two whole chunks of 32 were cached
    other = replace(first, prompt=[*prompt[:64], 2, 2])
    assert list(engine.stream(other)) == alone(other)
    assert engine.stats.cached_tokens == 2 * 64


def test_the_start_of_a_model_is_computed_once(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[int] = []
    original = NeuralModel.start

    def start(model: NeuralModel, source: Sequences | None = None, *, batch_size: int = 1) -> Step:
        starts.append(batch_size)
        return original(model, source, batch_size=batch_size)

    monkeypatch.setattr(NeuralModel, "start", start)
    request = Request(model=wide_model(), prompt=[1, 2, 3], max_tokens=5)
    first = list(engine.stream(request))
    assert list(engine.stream(request)) == first
    assert list(engine.stream(replace(request, prompt=[4]))) == alone(replace(request, prompt=[4]))
    assert len(starts) == 2  # one of the other engine


def test_the_prefix_cache_is_bounded_and_drops_what_was_used_least_recently() -> None:
    with Engine(EngineLimits(prefix_cache_bytes=160_000)) as engine:
        for start in range(20):
            engine.generate(Request(model=WIDE, prompt=[start % 5, start // 5, *[3] * 62], max_tokens=1))
        assert 0 < engine.prefix_cache.bytes <= 160_000
        engine.generate(Request(model=WIDE, prompt=[19 % 5, 19 // 5, *[3] * 62], max_tokens=1))
        assert engine.stats.cached_tokens == 64


def test_a_draft_changes_the_speed_and_not_the_text(engine: Engine) -> None:
    from chainrule.decoding.drafts import ModelDrafter

    request = Request(model=WIDE, prompt=[1, 2], max_tokens=30, seed=2)
    drafted = replace(request, draft=ModelDrafter(WIDE))
    assert [token.id for token in engine.stream(drafted)] == [token.id for token in engine.stream(request)]


def test_requests_past_the_queue_are_refused() -> None:
    with Engine(EngineLimits(rows=1, queue=2)) as engine:
        tickets = [engine.submit(long_request(), lambda what: None)]
        wait_until(lambda: engine.running == 1)
        tickets += [engine.submit(long_request(), lambda what: None) for _ in range(2)]
        with pytest.raises(QueueFull, match="2 requests are waiting"):
            engine.submit(long_request(), lambda what: None)
        for ticket in tickets:
            engine.cancel(ticket)


def test_a_cancelled_request_frees_its_row_at_once(engine: Engine) -> None:
    inbox: queue.SimpleQueue[object] = queue.SimpleQueue()
    ticket = engine.submit(long_request(), inbox.put)
    inbox.get()
    engine.cancel(ticket)
    assert ticket.over.wait(5)
    wait_until(lambda: engine.running == 0)
    assert engine.stats.cancelled == 1


def test_a_request_ends_at_its_deadline(engine: Engine) -> None:
    with pytest.raises(DeadlineExceeded, match="not finished within"):
        list(engine.stream(long_request(timeout=0.1)))
    wait_until(lambda: engine.running == 0)


def test_closing_finishes_what_runs_and_refuses_the_rest() -> None:
    engine = Engine()
    inbox: queue.SimpleQueue[list[Token]] = queue.SimpleQueue()
    request = Request(model=WIDE, prompt=[1], max_tokens=60)
    engine.submit(request, inbox.put)  # type: ignore[arg-type]
    engine.close()
    tokens = []
    while not inbox.empty():
        tokens += inbox.get()
    assert len(tokens) == 60
    with pytest.raises(EngineClosed):
        engine.submit(request, lambda what: None)


def test_closing_with_a_limit_of_time_ends_what_still_runs() -> None:
    engine = Engine()
    heard: list[object] = []
    engine.submit(long_request(), heard.append)
    wait_until(lambda: bool(heard))
    engine.close(seconds=0.01)
    assert isinstance(heard[-1], EngineClosed)


def test_a_bad_request_fails_by_itself(engine: Engine) -> None:
    good = Request(model=WIDE, prompt=[1], max_tokens=5)
    with pytest.raises(Exception, match="outside the vocabulary"):
        engine.generate(replace(good, prompt=[VOCABULARY]))
    assert len(engine.generate(good).ids) == 5
    assert engine.running == 0


def test_clients_take_turns() -> None:
    with Engine(EngineLimits(rows=1)) as engine:
        order: list[str] = []
        held = engine.submit(long_request(), lambda what: None)
        wait_until(lambda: engine.running == 1)
        tickets = []
        for client in ["greedy"] * 5 + ["modest"]:
            request = replace(long_request(max_tokens=1), client=client)
            tickets.append(engine.submit(request, lambda what, client=client: order.append(client)))  # type: ignore[misc]
        engine.cancel(held)
        for ticket in tickets:
            assert ticket.over.wait(10)
    assert order.index("modest") == 1


def test_a_long_prompt_does_not_stall_others(engine: Engine) -> None:
    """Between two of its chunks the others generate: they finish while it is still being read."""
    model = build("recurrent", {"vocabulary": VOCABULARY, "width": 6, "layers": 1})
    assert isinstance(model, AutoregressiveModel)
    model.eval()
    ended: list[str] = []

    def note(name: str) -> object:
        return lambda what: ended.append(name) if isinstance(what, Exception) or what[-1].finished else None

    long = engine.submit(Request(model=model, prompt=[1] * 8_000, max_tokens=1), note("long"))  # type: ignore[arg-type]
    short = engine.submit(Request(model=model, prompt=[1], max_tokens=20), note("short"))  # type: ignore[arg-type]
    assert long.over.wait(60)
    assert short.over.wait(60)
    assert ended == ["short", "long"]


def wait_until(condition: object, seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.002)
