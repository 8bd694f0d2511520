"""Endpoints of the page: what a model predicts, attends to and searches, under /api/inspect.

What the endpoints compute is in `serving.inspect_*`, without HTTP.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from chainrule.decoding.sampling import Sampling
from chainrule.errors import ChainruleError, ConfigError, RunError
from chainrule.families import family
from chainrule.interface.base import AutoregressiveModel
from chainrule.interface.capabilities import AttentionHeads
from chainrule.interface.conditional import Conditional, HasAttention
from chainrule.limits import LARGEST_SEED
from chainrule.serving.inspect_attention import Attention, attend
from chainrule.serving.inspect_images import Canvas, Frame, canvas, draw, example, image_labels
from chainrule.serving.inspect_labels import LABELLING_RUNS, Choice, Labelled, label
from chainrule.serving.inspect_reports import (
    ReportEntry,
    Training,
    TrainingCurve,
    report_files,
    reports,
    training,
    trainings,
)
from chainrule.serving.inspect_search import Drafting, SearchTree, drafting, search
from chainrule.serving.inspect_text import NextTokens, ReadAnswer, next_tokens, read
from chainrule.serving.registry import Registry, UnknownRun
from chainrule.serving.schema import Body
from chainrule.serving.service import Service, mismatch
from chainrule.tasks import Run, run_type
from chainrule.tasks.answers import AnswerRun
from chainrule.tasks.generated_answers import GeneratedAnswerRun
from chainrule.tasks.image_labels import ImageLabelRun
from chainrule.tasks.images import ImageRun
from chainrule.tasks.pair_labels import PairLabelRun
from chainrule.tasks.text import TextRun
from chainrule.tasks.translation import TranslationRun
from chainrule.training.checkpoint import RunFolder

router = APIRouter(prefix="/api/inspect", tags=["inspect"])

MOST_CHARACTERS = 4000
REPORT_POLICY = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data:; font-src data:; frame-ancestors 'self'"
)
"""Content security policy of a report: its own scripts and styles, no requests, no access to the page around it."""


# Models


class ModelEntry(BaseModel):
    """A served run, and the views of the page that can show it."""

    name: str
    family: str
    summary: str
    does: str = Field(description="completes: a run that …")
    kind: str = Field(description="text, translation, images, label, pair, tags, span, answer, image_label or other")
    views: list[str]
    draws_labels: bool = Field(False, description="whether it draws an image of a given label")


KINDS: dict[type[Run], str] = {
    TextRun: "text",
    GeneratedAnswerRun: "answer",
    TranslationRun: "translation",
    ImageRun: "images",
    ImageLabelRun: "image_label",
    PairLabelRun: "pair",
    AnswerRun: "span",
}


def model_entry(name: str, folder: RunFolder) -> ModelEntry:
    """What can be shown of a run; needs its settings only, not its weights."""
    config = folder.config()
    model, kind = family(config.family), run_type(config)
    named = next((text for one, text in KINDS.items() if issubclass(kind, one)), None)
    if named is None and issubclass(kind, LABELLING_RUNS):
        named = "tags" if kind.__name__ == "TagRun" else "label"
    return ModelEntry(
        name=name,
        family=config.family,
        summary=model.summary(),
        does=kind.does,
        kind=named or "other",
        views=_views(kind, model),
        draws_labels=named == "images" and config.data.image is not None and issubclass(model, Conditional),
    )


def _views(kind: type[Run], model: type[Any]) -> list[str]:
    generates = issubclass(model, AutoregressiveModel)
    translates = issubclass(kind, TranslationRun)
    able = {
        "read": issubclass(kind, TextRun),
        "write": issubclass(kind, TextRun),
        "attend": (issubclass(kind, TextRun) and issubclass(model, AttentionHeads))
        or (translates and issubclass(model, HasAttention)),
        "search": (issubclass(kind, TextRun) or translates) and generates,
        "draw": issubclass(kind, ImageRun),
        "label": issubclass(kind, (*LABELLING_RUNS, ImageLabelRun)),
    }
    return [view for view, is_able in able.items() if is_able]


@router.get("/models", summary="The served runs, and the views that can show each")
def models(request: Request) -> list[ModelEntry]:
    registry = _registry(request)
    folders, found = registry.folders(), []
    for name in registry.names():
        try:
            found.append(model_entry(name, folders[name]))
        except ChainruleError:  # a run that is being written or is damaged; `serve` reports it when it is used
            continue
    return found


def _registry(request: Request) -> Registry:
    registry: Registry = request.app.state.registry
    return registry


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


# Requests


class ReadRequest(BaseModel):
    """One or two runs, and a text."""

    model_config = ConfigDict(extra="forbid")

    models: list[str] = Field(min_length=1, max_length=2)
    text: str = Field(max_length=MOST_CHARACTERS)


class SamplingRequest(Body):
    """A run, a text, and how tokens are sampled."""

    text: str = Field("", max_length=MOST_CHARACTERS)
    temperature: float = Field(1.0, ge=0, le=10)
    top_k: int | None = Field(None, ge=1)
    top_p: float | None = Field(None, gt=0, le=1)
    min_p: float | None = Field(None, ge=0, le=1)

    @property
    def sampling(self) -> Sampling:
        """A temperature of 0 is greedy decoding, as in OpenAI's interface."""
        if self.temperature == 0:
            return Sampling(greedy=True)
        return Sampling(temperature=self.temperature, top_k=self.top_k, top_p=self.top_p, min_p=self.min_p)


class NextRequest(SamplingRequest):
    """The distribution after a text."""

    count: int = Field(12, ge=1, le=100)


class AttendRequest(Body):
    """A text; for a translation model its source, and optionally a target."""

    text: str = Field(max_length=MOST_CHARACTERS)
    target: str | None = Field(None, max_length=MOST_CHARACTERS)


class SearchRequest(Body):
    """A beam search."""

    text: str = Field("", max_length=MOST_CHARACTERS)
    width: int = Field(4, ge=1, le=12)
    length: int = Field(12, ge=1, le=80)
    length_penalty: float = Field(1.0, ge=0, le=5)


class DraftRequest(SamplingRequest):
    """Speculative decoding."""

    draft: str | None = Field(None, description="a smaller run; None: what the text repeats")
    length: int = Field(60, ge=1, le=400)
    block: int = Field(4, ge=1, le=15, description="draft tokens per block")
    seed: int = Field(0, ge=0, le=LARGEST_SEED)


class DrawRequest(Body):
    """Images to draw, or one to complete."""

    num: int = Field(1, ge=1, le=16)
    label: str | None = None
    seed: int = Field(0, ge=0, le=LARGEST_SEED)
    temperature: float = Field(1.0, gt=0, le=10)
    given: list[int | None] | None = Field(
        None, max_length=1 << 16, description="levels in raster order; null: to draw"
    )


class LabelRequest(Body):
    """A text to label, and a question about it or the other text of a pair."""

    text: str = Field(max_length=MOST_CHARACTERS)
    other: str = Field("", max_length=MOST_CHARACTERS)


class ImageLabelRequest(Body):
    """An image to label, in levels and raster order."""

    image: list[int] = Field(max_length=1 << 16)


# Endpoints: what takes long is computed by the worker of the service, one request at a time


@router.post("/read", summary="Surprisal of every token, and what was expected in its place")
async def read_text(body: ReadRequest, request: Request) -> ReadAnswer:
    service = _service(request)
    if not body.text:
        raise ConfigError("the text is empty; give at least one character")
    runs = [(name, await service.run(name, TextRun)) for name in body.models]
    return await service.compute_for(request, lambda: read(runs, body.text))


@router.post("/next", summary="The distribution of the next token, and what sampling cuts off")
async def next_token(body: NextRequest, request: Request) -> NextTokens:
    service = _service(request)
    run = await service.run(body.model, TextRun)
    return await service.compute_for(request, lambda: next_tokens(run, body.text, body.sampling, count=body.count))


@router.post("/attend", summary="Attention weights by layer and head")
async def attention(body: AttendRequest, request: Request) -> Attention:
    service = _service(request)
    run = await service.any_run(body.model)
    return await service.compute_for(request, lambda: attend(run, body.text, body.target))


@router.post("/search", summary="The hypotheses of a beam search, step by step")
async def beam(body: SearchRequest, request: Request) -> SearchTree:
    service = _service(request)
    run = await service.any_run(body.model)
    options = {"width": body.width, "length": body.length}
    return await service.compute_for(
        request, lambda: search(run, body.text, **options, length_penalty=body.length_penalty)
    )


@router.post("/draft", summary="Draft tokens accepted and rejected in speculative decoding")
async def draft_tokens(body: DraftRequest, request: Request) -> Drafting:
    service = _service(request)
    run = await service.run(body.model, TextRun)
    draft = None if body.draft is None else await service.run(body.draft, TextRun)
    options = {"length": body.length, "block": body.block, "seed": body.seed}
    return await service.compute_for(
        request, lambda: drafting(run, body.text, draft, sampling=body.sampling, **options)
    )


@router.get("/canvas", summary="Size, levels and labels of a run's images")
async def image_form(model: str, request: Request) -> Canvas:
    run = await _service(request).any_run(model)
    if not isinstance(run, ImageRun | ImageLabelRun):
        raise mismatch(model, run, ImageRun.does)
    return canvas(run)


@router.get("/example", summary="A validation image of a run")
async def example_image(
    request: Request, model: str, number: Annotated[int, Query(ge=0, le=LARGEST_SEED)] = 0
) -> list[int]:
    service = _service(request)
    run = await service.run(model, ImageRun)
    return await service.compute_for(request, lambda: example(run, number))


@router.post("/draw", summary="Images as they grow: a line of JSON for each frame", response_class=StreamingResponse)
async def draw_images(body: DrawRequest, request: Request) -> StreamingResponse:
    service = _service(request)
    frames = draw(
        await service.run(body.model, ImageRun),
        num=body.num,
        label=body.label,
        seed=body.seed,
        sampling=Sampling(temperature=body.temperature),
        given=body.given,
    )
    first = await service.compute_for(request, lambda: next(frames))  # what is wrong is found before the answer begins
    return StreamingResponse(_lines(service, first, frames), media_type="application/x-ndjson")


async def _lines(service: Service, first: Frame, frames: Iterator[Frame]) -> AsyncIterator[str]:
    """Frame by frame, so that others are answered in between, and nothing is drawn once the client has gone."""
    frame: Frame | None = first
    while frame is not None:
        yield frame.model_dump_json() + "\n"
        frame = await service.compute(lambda: next(frames, None))


@router.post("/label", summary="Classes, tags or answers with their probabilities")
async def label_text(body: LabelRequest, request: Request) -> Labelled:
    service = _service(request)
    run = await service.any_run(body.model)
    return await service.compute_for(request, lambda: label(run, body.text, body.other))


@router.post("/label-image", summary="P(label | image)")
async def label_image(body: ImageLabelRequest, request: Request) -> list[Choice]:
    service = _service(request)
    run = await service.run(body.model, ImageLabelRun)
    found = await service.compute_for(request, lambda: image_labels(run, body.image))
    ranked = sorted(found.items(), key=lambda pair: -pair[1])
    return [Choice(text=text, probability=probability) for text, probability in ranked]


@router.get("/reports", summary="Reports of comparisons and frontiers in the served folders")
def list_reports(request: Request) -> list[ReportEntry]:
    return reports(_registry(request))


@router.get("/reports/{name}", summary="One report, as HTML", response_class=HTMLResponse)
def show_report(name: str, request: Request) -> HTMLResponse:
    file = report_files(_registry(request)).get(name)
    if file is None:
        raise UnknownRun(f"there is no report {name!r}; GET /api/inspect/reports lists them")
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise RunError(f"the report {name!r} cannot be read: {error.strerror}; write it again") from None
    return HTMLResponse(text, headers={"Content-Security-Policy": REPORT_POLICY, "X-Frame-Options": "SAMEORIGIN"})


@router.get("/trainings", summary="Trainings in the served folders, running ones first")
def list_trainings(request: Request) -> list[Training]:
    return trainings(_registry(request))


@router.get("/trainings/{name}", summary="The curve of a training")
def show_training(name: str, request: Request) -> TrainingCurve:
    found = training(_registry(request), name)
    if found is None:
        raise UnknownRun(f"there is no training {name!r} with a curve; GET /api/inspect/trainings lists them")
    return found
