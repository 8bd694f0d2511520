"""The bodies of requests, as OpenAI defines them where it does."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from chainrule.limits import LARGEST_SEED

MOST_CHOICES = 16
MOST_PROMPTS = 64
MOST_TEXTS = 256
MOST_CHARACTERS = 1_000_000

Text = Annotated[str, StringConstraints(max_length=MOST_CHARACTERS)]
Texts = Annotated[list[Text], Field(min_length=1, max_length=MOST_TEXTS)]
Ids = Annotated[list[int], Field(min_length=1, max_length=MOST_CHARACTERS)]


class Body(BaseModel):
    """A request body; unknown parameters are refused."""

    model_config = ConfigDict(extra="forbid")

    model: str = Field(description="name of a served run")


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")

    include_usage: bool = Field(False, description="end the stream with the number of tokens")


class GenerationBody(Body):
    """What completions of texts and of chats share."""

    temperature: float = Field(1.0, ge=0, le=100, description="0: always the most probable token")
    top_p: float = Field(1.0, gt=0, le=1, description="smallest set of tokens with this probability")
    top_k: int | None = Field(None, ge=1, description="the k most probable tokens only")
    min_p: float | None = Field(None, ge=0, le=1, description="minimum probability relative to the most probable one")
    repetition_penalty: float = Field(1.0, gt=0, description="above 1: tokens of the text so far are less probable")
    seed: int | None = Field(None, ge=0, le=LARGEST_SEED, description="equal seeds give equal texts; none: random")
    n: int = Field(1, ge=1, le=MOST_CHOICES, description="number of texts for each prompt")
    stop: str | list[str] | None = Field(None, description="at most 16 strings that end the text, not part of it")
    stream: bool = Field(False, description="send the text as it grows, as server-sent events")
    stream_options: StreamOptions | None = None
    draft_model: str | None = Field(
        None, description="speculative decoding: a smaller served run, or `self`; same text, less time"
    )
    presence_penalty: Literal[0] = 0
    frequency_penalty: Literal[0] = 0
    logit_bias: dict[str, float] | None = Field(None, max_length=0, description="not supported: null or empty")
    user: str | None = Field(None, description="ignored")

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not all(self.stops):
            raise ValueError("a stop string is empty, so no text could be generated; remove it")
        if len(self.stops) > 16 or sum(map(len, self.stops)) > 4096:
            raise ValueError("stop has more than 16 strings or 4096 characters; give fewer")
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options needs stream: true; set it, or remove stream_options")
        return self


class CompletionBody(GenerationBody):
    prompt: Text | Texts | Ids | Annotated[list[Ids], Field(min_length=1)] = Field(
        "", description="text, texts, token ids, or several of them"
    )
    suffix: Text | None = Field(None, description="text after the completion, for families that fill gaps")
    max_tokens: int = Field(16, ge=0, description="0 goes with echo: the prompt alone, with its log-probabilities")
    logprobs: int | None = Field(None, ge=0, le=20, description="log-probabilities, and those of so many alternatives")
    echo: bool = Field(False, description="begin each text with its prompt")
    best_of: Literal[1] | None = None
    beam: int | None = Field(None, ge=1, le=32, description="beam search of this width instead of sampling")
    length_penalty: float = Field(1.0, ge=0, le=10, description="with beam: rank by log P / length^A")

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        if isinstance(self.prompt, str):
            return [self.prompt]
        if self.prompt and isinstance(self.prompt[0], int):
            return [self.prompt]
        return self.prompt  # type: ignore[return-value]

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if len(self.prompts) > MOST_PROMPTS:
            raise ValueError(f"{len(self.prompts)} prompts; send at most {MOST_PROMPTS} in one request")
        if self.max_tokens == 0 and (not self.echo or self.stream or self.beam is not None):
            raise ValueError("max_tokens is 0, which needs echo and excludes stream and beam; ask for at least 1")
        if self.beam is not None:
            if self.stream or self.draft_model or self.logprobs is not None:
                raise ValueError("beam excludes stream, draft_model and logprobs; remove them")
            if self.beam < self.n:
                raise ValueError(f"beam is {self.beam} and n is {self.n}; a beam finds at most its width of texts")
        if self.suffix is not None and (self.stream or self.echo or self.logprobs is not None):
            raise ValueError("suffix excludes stream, echo and logprobs; remove them")
        return self


class Message(BaseModel):
    model_config = ConfigDict(extra="forbid")

    role: Literal["system", "developer", "user", "assistant"]
    content: Text
    name: str | None = None


class ChatBody(GenerationBody):
    messages: list[Message] = Field(min_length=1, max_length=1000)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1, description="the newer name of max_tokens")
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=20)


class EmbeddingsBody(Body):
    input: Text | Texts
    layer: int | None = Field(None, ge=0, description="of a model with several; 0: token embeddings")
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: None = None
    user: str | None = None


class ScoreBody(Body):
    text: Text = Field(min_length=1)
    source: Text | None = Field(None, description="what a translation run translates")
    alternatives: int = Field(0, ge=0, le=20, description="most probable tokens at each position")


class TranslateBody(Body):
    text: Text | Texts
    beam: int = Field(5, ge=1, le=32)
    n: int = Field(1, ge=1, le=MOST_CHOICES)
    length_penalty: float = Field(1.0, ge=0, le=10)

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.beam < self.n:
            raise ValueError(f"beam is {self.beam} and n is {self.n}; a beam finds at most its width of texts")
        return self


class ClassifyBody(Body):
    text: Text | Texts
    second: Text | None = Field(None, description="the second text, for runs that classify pairs")


class TagBody(Body):
    text: Text | Texts = Field(description="sentences, their words separated by spaces")
    beam: int = Field(5, ge=1, le=32)


class AnswerBody(Body):
    question: Text = Field(min_length=1)
    context: Text | None = Field(None, description="the text with the answer, for runs that find it in a text")
    n: int = Field(1, ge=1, le=MOST_CHOICES)


class FillBody(Body):
    text: Text = Field(description="a text in which <> marks each gap")
    n: int = Field(5, ge=1, le=MOST_CHOICES)


class ImagesBody(Body):
    prompt: str | None = Field(None, max_length=1000, description="the name that OpenAI's clients give the label")
    n: int = Field(1, ge=1, le=MOST_CHOICES)
    label: str | None = Field(None, description="the class, for runs that have classes")
    temperature: float = Field(1.0, gt=0, le=100)
    seed: int | None = Field(None, ge=0, le=LARGEST_SEED)
    response_format: Literal["b64_json"] = "b64_json"
    user: str | None = Field(None, description="ignored")
