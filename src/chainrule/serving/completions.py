"""`/v1/completions` and `/v1/chat/completions`, as OpenAI's clients use them."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson
from fastapi import APIRouter
from fastapi import Request as HttpRequest
from fastapi.responses import Response, StreamingResponse

from chainrule.decoding.sampling import Sampling
from chainrule.errors import ConfigError
from chainrule.serving.chat import template_of
from chainrule.serving.failures import ApiError, as_api_error, error_body
from chainrule.serving.requests import Request, Token
from chainrule.serving.schema import ChatBody, CompletionBody, GenerationBody
from chainrule.serving.service import Service, random_seed, unless_disconnected
from chainrule.serving.texts import GrowingText, prompt_tokens, text_request
from chainrule.tasks.filling import FillingRun
from chainrule.tasks.text import GeneratedText, TextRun

router = APIRouter(prefix="/v1", tags=["generation"])

GAP = "<>"
FINISH = {"eos": "stop", "stop": "stop", "length": "length"}
CHAT_TOKENS = 256  # of an answer, unless the client says otherwise


@dataclass
class Answer:
    """One of the texts of a request, while it grows."""

    index: int
    prompt: str
    echo: bool
    text: GrowingText
    logprobs: bool
    prompt_tokens: Sequence[Token] = ()  # whose log-probabilities are asked for, too
    started: bool = False
    offset: int = 0  # of the next token in the text, for log-probabilities

    def add(self, tokens: Sequence[Token]) -> tuple[str, dict[str, Any] | None]:
        """The next piece of the text, and the log-probabilities of its tokens."""
        piece = self.text.add(tokens)
        if self.echo and not self.started:
            piece = self.prompt + piece
            tokens = [*self.prompt_tokens, *tokens]
        self.started = True
        return piece, self._logprobs(tokens) if self.logprobs else None

    def _logprobs(self, tokens: Sequence[Token]) -> dict[str, Any]:
        pieces = self.text.run.tokenizer.pieces([token.id for token in tokens])
        offsets = []
        for piece in pieces:
            offsets.append(self.offset)
            self.offset += len(piece)
        return {
            "tokens": pieces,
            "token_logprobs": [token.log_prob for token in tokens],
            "top_logprobs": [self._alternatives(token) for token in tokens],
            "text_offset": offsets,
        }

    def _alternatives(self, token: Token) -> dict[str, float]:
        pieces = self.text.run.tokenizer.pieces([other.id for other in token.alternatives])
        found: dict[str, float] = {}
        for piece, other in zip(pieces, token.alternatives, strict=True):
            found.setdefault(piece, other.log_prob)
        return found

    @property
    def finish_reason(self) -> str | None:
        """Why the text has ended; None while it grows."""
        return None if self.text.result is None else FINISH[self.text.result.finished]


class Form:
    """How a text completion is written as JSON."""

    kind, chunk_kind, prefix = "text_completion", "text_completion", "cmpl-"

    def choice(self, index: int, text: str, logprobs: Any, reason: str | None) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}

    def piece(self, answer: Answer, text: str, logprobs: Any, *, first: bool) -> dict[str, Any]:
        return self.choice(answer.index, text, logprobs, answer.finish_reason)


class ChatForm(Form):
    """How an answer in a chat is written as JSON."""

    kind, chunk_kind, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl-"

    def choice(self, index: int, text: str, logprobs: Any, reason: str | None) -> dict[str, Any]:
        message = {"role": "assistant", "content": text}
        return {"index": index, "message": message, "logprobs": _chat_logprobs(logprobs), "finish_reason": reason}

    def piece(self, answer: Answer, text: str, logprobs: Any, *, first: bool) -> dict[str, Any]:
        delta = {"role": "assistant", "content": text} if first else {"content": text}
        return {
            "index": answer.index,
            "delta": delta,
            "logprobs": _chat_logprobs(logprobs),
            "finish_reason": answer.finish_reason,
        }


def _chat_logprobs(logprobs: dict[str, Any] | None) -> dict[str, Any] | None:
    if logprobs is None:
        return None
    rows = zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True)
    return {
        "content": [
            {
                "token": token,
                "logprob": value,
                "bytes": list(token.encode()),
                "top_logprobs": [
                    {"token": one, "logprob": other, "bytes": list(one.encode())} for one, other in top.items()
                ],
            }
            for token, value, top in rows
        ]
    }


class Completion:
    """A request for texts, from its body to the JSON of its answer."""

    def __init__(self, service: Service, body: GenerationBody, form: Form, client: str) -> None:
        self.service, self.body, self.form, self.client = service, body, form, client
        self.requests: list[Request] = []
        self.answers: list[Answer] = []
        self.max_tokens = 0
        self.head = {"id": form.prefix + uuid.uuid4().hex, "created": int(time.time()), "model": body.model}

    async def prepare(
        self,
        run: TextRun,
        prompts: Sequence[str | Sequence[int]],
        *,
        max_tokens: int,
        stop: Sequence[str],
        alternatives: int | None,
        echo: bool = False,
    ) -> None:
        """Encode the prompts and check them."""
        body, self.max_tokens = self.body, max_tokens
        sampling = sampling_of(body)
        seed = random_seed() if body.seed is None else body.seed
        draft: TextRun | str | None = body.draft_model
        if draft is not None and draft != "self":
            draft = await self.service.run(str(draft), TextRun)
        for prompt in prompts:
            for _ in range(body.n):
                request = text_request(
                    run,
                    prompt,
                    max_tokens=max_tokens,
                    sampling=sampling,
                    seed=seed + len(self.requests),
                    stop=stop,
                    alternatives=alternatives or 0,
                    draft=draft,
                    client=self.client,
                    timeout=self.service.limits.timeout,
                )
                shown = prompt if isinstance(prompt, str) else run.tokenizer.decode(prompt)
                text = GrowingText(run, stop)
                self.answers.append(Answer(len(self.requests), shown, echo, text, alternatives is not None))
                self.requests.append(request)
        self.service.check_sizes([request.prompt for request in self.requests], max_tokens)
        if echo and alternatives is not None:
            await self._score_prompts(run, alternatives)

    async def _score_prompts(self, run: TextRun, alternatives: int) -> None:
        for first in range(0, len(self.requests), self.body.n):
            ids = self.requests[first].prompt
            found = await self.service.compute(partial(prompt_tokens, run, ids, alternatives))
            for answer in self.answers[first : first + self.body.n]:
                answer.prompt_tokens = found

    def usage(self) -> dict[str, int]:
        prompt = sum(len(request.prompt) for request in self.requests[:: self.body.n])
        generated = sum(len(answer.text.ids) for answer in self.answers)
        return usage_of(prompt, generated)

    async def whole(self) -> dict[str, Any]:
        """The answer as one JSON object."""
        pieces: list[list[str]] = [[] for _ in self.answers]
        logprobs: list[dict[str, Any] | None] = [None] * len(self.answers)
        if not self.max_tokens:
            return self._prompts_alone()
        async for batch in self.service.tokens(self.requests):
            for index, tokens in batch:
                piece, found = self.answers[index].add(tokens)
                pieces[index].append(piece)
                logprobs[index] = _joined(logprobs[index], found)
        choices = [
            self.form.choice(answer.index, "".join(pieces[answer.index]), logprobs[answer.index], answer.finish_reason)
            for answer in self.answers
        ]
        return {**self.head, "object": self.form.kind, "choices": choices, "usage": self.usage()}

    def _prompts_alone(self) -> dict[str, Any]:
        """The answer to a request for no tokens."""
        found = [answer.add([]) for answer in self.answers]
        choices = [self.form.choice(index, *parts, "length") for index, parts in enumerate(found)]
        return {**self.head, "object": self.form.kind, "choices": choices, "usage": self.usage()}

    async def events(self) -> AsyncIterator[bytes]:
        """The answer as server-sent events."""
        head = {**self.head, "object": self.form.chunk_kind}
        streams = self.service.tokens(self.requests)  # refused before the first byte is sent
        return self._events(head, streams)

    async def _events(self, head: dict[str, Any], streams: Any) -> AsyncIterator[bytes]:
        try:
            async for batch in streams:
                lines = []
                for index, tokens in batch:
                    answer = self.answers[index]
                    first = not answer.started
                    text, logprobs = answer.add(tokens)
                    if text or logprobs or first or answer.finish_reason is not None:
                        lines.append(event({**head, "choices": [self.form.piece(answer, text, logprobs, first=first)]}))
                if lines:
                    yield b"".join(lines)
            options = self.body.stream_options
            if options is not None and options.include_usage:
                yield event({**head, "choices": [], "usage": self.usage()})
            yield b"data: [DONE]\n\n"
        except Exception as error:
            failure = as_api_error(error)
            yield event(error_body(failure.status, failure.message, param=failure.param, code=failure.code))
        finally:
            streams.cancel()

    async def respond(self, request: HttpRequest) -> Response:
        if self.body.stream:
            headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
            return StreamingResponse(await self.events(), media_type="text/event-stream", headers=headers)
        return json_response(await unless_disconnected(request, self.whole()))


@router.post("/completions", summary="Continue prompts")
async def complete(body: CompletionBody, request: HttpRequest) -> Response:
    """Continue a prompt, or several. With `stream`, the answer is a series of server-sent events."""
    service: Service = request.app.state.service
    if body.suffix is not None:
        return json_response(await unless_disconnected(request, _fill(service, body)))
    run = await service.run(body.model, TextRun)
    if body.beam is not None:
        return json_response(await unless_disconnected(request, _search(service, run, body)))
    completion = Completion(service, body, Form(), client_of(request))
    await completion.prepare(
        run, body.prompts, max_tokens=body.max_tokens, stop=body.stops, alternatives=body.logprobs, echo=body.echo
    )
    return await completion.respond(request)


@router.post("/chat/completions", summary="Answer in a chat")
async def chat(body: ChatBody, request: HttpRequest) -> Response:
    """The next answer of a conversation, for runs with a chat template."""
    service: Service = request.app.state.service
    run = await service.run(body.model, TextRun)
    template = template_of(run.folder, service.chat_template)
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs: true; set it, or remove top_logprobs", param="top_logprobs")
    completion = Completion(service, body, ChatForm(), client_of(request))
    await completion.prepare(
        run,
        [template.prompt([{"role": one.role, "content": one.content} for one in body.messages])],
        max_tokens=body.max_completion_tokens or body.max_tokens or CHAT_TOKENS,
        stop=[*body.stops, *template.stop],
        alternatives=(body.top_logprobs or 0) if body.logprobs else None,
    )
    return await completion.respond(request)


async def _search(service: Service, run: TextRun, body: CompletionBody) -> dict[str, Any]:
    """Beam search."""
    prompts = [prompt if isinstance(prompt, str) else run.tokenizer.decode(prompt) for prompt in body.prompts]
    rows = run.prompt_ids(prompts)
    service.check_sizes(rows, body.max_tokens)
    options: dict[str, Any] = {"length": body.max_tokens, "num": body.n, "beam": body.beam, "stop": body.stops}
    found: list[GeneratedText] = await service.compute(
        lambda: list(run.texts(prompts, length_penalty=body.length_penalty, **options))
    )
    choices = [
        Form().choice(index, (one.prompt if body.echo else "") + one.text, None, FINISH[one.finished])
        for index, one in enumerate(found)
    ]
    usage = usage_of(sum(map(len, rows)), sum(one.tokens for one in found))
    head = {"id": Form.prefix + uuid.uuid4().hex, "object": Form.kind, "created": int(time.time()), "model": body.model}
    return {**head, "choices": choices, "usage": usage}


async def _fill(service: Service, body: CompletionBody) -> dict[str, Any]:
    """What stands between a prompt and a suffix."""
    run = await service.any_run(body.model)
    if not isinstance(run, FillingRun):
        raise ConfigError(
            f"run {body.model!r} is a {run.config.family}, which does not fill gaps; remove suffix, or use a bert or t5"
        )
    [prompt, *others] = body.prompts
    if others or not isinstance(prompt, str):
        raise ConfigError("suffix goes with one prompt as text; send each in a request of its own")
    filler = run
    found = await service.compute(
        lambda: filler.fill(prompt + GAP + (body.suffix or ""), num=body.n, longest=min(64, body.max_tokens))
    )
    choices = [Form().choice(index, one.gaps[0], None, "stop") for index, one in enumerate(found)]
    sizes = [
        len(filler.tokenizer.encode(text)) for text in (prompt + (body.suffix or ""), *(one.gaps[0] for one in found))
    ]
    head = {"id": Form.prefix + uuid.uuid4().hex, "object": Form.kind, "created": int(time.time()), "model": body.model}
    return {**head, "choices": choices, "usage": usage_of(sizes[0], sum(sizes[1:]))}


def sampling_of(body: GenerationBody) -> Sampling:
    """The sampling settings of a body; a temperature of 0 is greedy decoding."""
    if body.temperature == 0:
        return Sampling(greedy=True, repetition_penalty=body.repetition_penalty)
    return Sampling(
        temperature=body.temperature,
        top_p=None if body.top_p == 1 else body.top_p,
        top_k=body.top_k,
        min_p=body.min_p,
        repetition_penalty=body.repetition_penalty,
    )


def usage_of(prompt: int, generated: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated}


def event(value: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"


def json_response(value: dict[str, Any]) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")


def client_of(request: HttpRequest) -> str:
    """Whose turn it is in the queue: clients are told apart by their key or their address."""
    key = request.headers.get("authorization", "")
    return key or (request.client.host if request.client is not None else "")


def _joined(before: dict[str, Any] | None, more: dict[str, Any] | None) -> dict[str, Any] | None:
    if before is None or more is None:
        return more if before is None else before
    return {name: before[name] + more[name] for name in before}
