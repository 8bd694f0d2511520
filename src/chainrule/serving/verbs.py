"""Endpoints of the other tasks: scores, embeddings, translation, labels, tags, answers, gaps and images."""

from __future__ import annotations

import base64
import time
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import Response

from chainrule.data.pictures import png, require_pillow
from chainrule.decoding.translation import Search
from chainrule.errors import ConfigError
from chainrule.serving.completions import json_response, usage_of
from chainrule.serving.schema import (
    AnswerBody,
    ClassifyBody,
    EmbeddingsBody,
    FillBody,
    ImagesBody,
    ScoreBody,
    TagBody,
    TranslateBody,
)
from chainrule.serving.service import Service, mismatch, random_seed
from chainrule.tasks.answers import AnswerRun
from chainrule.tasks.embeddings import EmbeddingRun
from chainrule.tasks.filling import FillingRun
from chainrule.tasks.generated_answers import GeneratedAnswerRun
from chainrule.tasks.images import ImageRun
from chainrule.tasks.labels import LabelRun
from chainrule.tasks.pair_labels import PairLabelRun
from chainrule.tasks.sequences import TokenRun
from chainrule.tasks.tags import TagRun
from chainrule.tasks.translation import TranslationRun

router = APIRouter(prefix="/v1")


def listed(texts: str | list[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else texts


@router.post("/embeddings", tags=["vectors"], summary="Vectors of texts")
async def embeddings(body: EmbeddingsBody, request: Request) -> Response:
    """The mean vector of the tokens of each text."""
    service: Service = request.app.state.service
    run = await service.run(body.model, EmbeddingRun)
    texts = listed(body.input)
    vectors = await service.compute_for(request, lambda: run.embed(texts, layer=body.layer))
    tokens = sum(len(run.tokenizer.encode(text)) for text in texts)
    data = [
        {"object": "embedding", "index": index, "embedding": _vector(row, body.encoding_format)}
        for index, row in enumerate(vectors)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return json_response({"object": "list", "model": body.model, "data": data, "usage": usage})


def _vector(row: Any, form: str) -> list[float] | str:
    numbers = np.asarray(row, dtype=np.float32)
    return numbers.tolist() if form == "float" else base64.b64encode(numbers.tobytes()).decode("ascii")


@router.post("/score", tags=["scores"], summary="How probable a text is")
async def score(body: ScoreBody, request: Request) -> Response:
    """The log-probability of each token of a text, in nats."""
    service: Service = request.app.state.service
    run = await service.any_run(body.model)
    if not isinstance(run, TokenRun):
        raise mismatch(body.model, run, TokenRun.does)
    found = await service.compute_for(
        request, lambda: run.token_scores(body.text, source=body.source, alternatives=body.alternatives)
    )
    tokens = [
        {
            "token": token.piece,
            "id": token.score.token,
            "log_prob": -token.score.surprisal,
            "rank": token.score.rank,
            "alternatives": [
                {"token": piece, "id": other.token, "probability": other.probability}
                for piece, other in zip(token.alternatives, token.score.alternatives, strict=True)
            ],
        }
        for token in found.texts
    ]
    nats = sum(one.surprisal for one in found)
    size = max(1, len(body.text.encode()))
    bits = nats / np.log(2) / size
    return json_response(
        {
            "object": "score",
            "model": body.model,
            "log_prob": -nats,
            "bits_per_byte": float(bits),
            "tokens": tokens,
            "usage": usage_of(len(tokens), 0),
        }
    )


@router.post("/translate", tags=["translation"], summary="Translate texts")
async def translate(body: TranslateBody, request: Request) -> Response:
    service: Service = request.app.state.service
    run = await service.run(body.model, TranslationRun)
    search = Search.parse({"beam": body.beam, "n_best": body.n, "length_penalty": body.length_penalty})
    found = await service.compute_for(request, lambda: list(run.translate(listed(body.text), search)))
    return _answer(body.model, "translations", [[one._asdict() for one in texts] for texts in found])


@router.post("/classify", tags=["labels"], summary="Labels of texts")
async def classify(body: ClassifyBody, request: Request) -> Response:
    """The label of each text with the probabilities of all labels, or of a pair of texts."""
    service: Service = request.app.state.service
    run = await service.any_run(body.model)
    texts = listed(body.text)
    found: list[Any]
    if isinstance(run, PairLabelRun):
        if body.second is None or len(texts) != 1:
            raise ConfigError("this run classifies pairs; give one text and a second one")
        pairs, pair = run, (texts[0], body.second)
        found = await service.compute_for(request, lambda: list(pairs.predict([pair])))
    elif isinstance(run, LabelRun):
        if body.second is not None:
            raise ConfigError("this run classifies single texts; remove second")
        single = run
        found = await service.compute_for(request, lambda: list(single.predict(texts)))
    else:
        raise mismatch(body.model, run, LabelRun.does)
    return _answer(body.model, "labels", [None if one is None else one._asdict() for one in found])


@router.post("/tag", tags=["labels"], summary="Tags of words")
async def tag(body: TagBody, request: Request) -> Response:
    service: Service = request.app.state.service
    run = await service.run(body.model, TagRun)
    sentences = [text.split() for text in listed(body.text)]
    found = await service.compute_for(request, lambda: list(run.tag(sentences, beam=body.beam)))
    return _answer(body.model, "tags", [None if one is None else one._asdict() for one in found])


@router.post("/answer", tags=["answers"], summary="Answer a question")
async def answer(body: AnswerBody, request: Request) -> Response:
    """The answer to a question: a part of a context, or generated."""
    service: Service = request.app.state.service
    run = await service.any_run(body.model)
    found: list[Any]
    if isinstance(run, GeneratedAnswerRun):
        if body.context is not None:
            raise ConfigError("this run answers without a text; remove context")
        generator = run
        [found] = await service.compute_for(request, lambda: list(generator.answer([body.question], num=body.n)))
    elif isinstance(run, AnswerRun):
        if body.context is None or not body.context.strip():
            raise ConfigError("this run finds answers in a text; give it as context")
        reader, context = run, body.context
        found = [await service.compute_for(request, lambda: reader.answer(body.question, context))]
    else:
        raise mismatch(body.model, run, AnswerRun.does)
    return _answer(body.model, "answers", [one._asdict() for one in found])


@router.post("/fill", tags=["filling"], summary="Fill the gaps of a text")
async def fill(body: FillBody, request: Request) -> Response:
    service: Service = request.app.state.service
    run = await service.run(body.model, FillingRun)
    found = await service.compute_for(request, lambda: run.fill(body.text, num=body.n))
    return _answer(body.model, "fillings", [one._asdict() for one in found])


@router.post("/images/generations", tags=["images"], summary="The same, where OpenAI's clients look for it")
@router.post("/images", tags=["images"], summary="Sample images")
async def images(body: ImagesBody, request: Request) -> Response:
    """Images as base64 of PNG files, in OpenAI's form."""
    service: Service = request.app.state.service
    run = await service.run(body.model, ImageRun)
    require_pillow()
    seed = random_seed() if body.seed is None else body.seed

    def draw() -> list[str]:
        levels = run.draw(body.n, label=body.label or body.prompt or None, seed=seed, temperature=body.temperature)
        return [base64.b64encode(png(_coloured(one))).decode("ascii") for one in run.visible(levels)]

    found = await service.compute_for(request, draw)
    return json_response({"created": int(time.time()), "data": [{"b64_json": one} for one in found]})


def _coloured(image: Any) -> Any:
    """Grey pixels (H, W, 1) or coloured ones (H, W, 3) as coloured ones."""
    return np.repeat(image, 3, -1) if image.shape[-1] == 1 else image


def _answer(model: str, kind: str, data: list[Any]) -> Response:
    return json_response({"object": kind, "model": model, "data": data})
