"""What a comparison found, as plain values: the content of results.json, and all that the report draws."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from chainrule.config import Settings


class Point(Settings):
    """One point of a learning curve."""

    seconds: float
    tokens: int
    bits_per_byte: float


class Row(Settings):
    """One model of the comparison."""

    name: str = Field(description="the family, or `mixture`")
    kind: Literal["family", "mixture"] = "family"
    summary: str = Field(description="one line on what the model is")
    run: str = Field(description="folder of the run, relative to that of the comparison")
    settings: dict[str, Any] = Field(description="the sizes and rates that were chosen for the budget")
    parts: dict[str, float] = Field({}, description="of a mixture: share of each part in the weights")
    parameters: int
    nats_per_token: float
    bits_per_byte: float = Field(description="of images bits per dim: a channel of a pixel stands for a byte")
    interval: tuple[float, float] = Field(description="95 % of bits_per_byte, by block bootstrap over the text")
    perplexity: float
    word_perplexity: float
    accuracy: float
    train_tokens: int
    train_tokens_per_second: float
    decode_tokens_per_second: float
    seconds: float = Field(description="wall-clock time of training")
    memory_bytes: int = Field(description="peak resident memory of the training process")
    curve: list[Point] = Field([], description="bits per byte of validation text while it trained")
    sample: str = Field("", description="text that the model wrote by itself")
    picture: str = Field("", description="images that the model drew by itself: a PNG in base64")


class Failure(Settings):
    """A family that could not be trained or scored."""

    name: str
    reason: str


class Bucket(Settings):
    """Tokens that have something in common, and what each model paid for them."""

    label: str
    tokens: int
    bits_per_token: dict[str, float] = Field(description="row name -> mean surprisal in bits")


class Excerpt(Settings):
    """A passage of the held-out text with every token's surprisal under every model."""

    title: str
    tokens: list[str]
    bits: dict[str, list[float]] = Field(description="row name -> surprisal of each token in bits")


class Analysis(Settings):
    """Where the models differ."""

    by_position: list[Bucket] = Field(description="by how many tokens of the text came before")
    by_frequency: list[Bucket] = Field(description="by how often the token's word stands in the training text")
    excerpts: list[Excerpt] = Field(description="passages on which the models differ most, and a plain one")


class Results(Settings):
    """The whole comparison."""

    data: str
    tokenizer: str
    command: str = Field(description="what reproduces it")
    version: str
    created: str = Field(description="ISO 8601")
    machine: str = Field(description="processors and threads, in words")
    budget: str = Field(description="what every family was given, in words")
    threads: int
    unit: Literal["byte", "dim"] = Field(
        "byte", description="what bits are counted by: bytes of a text, dims of images"
    )
    values: int | None = Field(None, description="tokens of an image, where images were compared")
    train_tokens: int = Field(description="tokens of the training text")
    held_out_bytes: int
    rows: list[Row] = Field(description="best first")
    failures: list[Failure] = Field([], description="families that are missing above, and why")
    best: str = Field(description="name of the row with the fewest bits per byte")
    recommendation: str
    protocol: dict[str, Any] = Field(description="how every row was scored; per row where they differ")
    analysis: Analysis | None = None


class BudgetCurve(Settings):
    """The same comparison at several budgets."""

    data: str
    command: str
    unit: Literal["byte", "dim"] = "byte"
    minutes: list[float]
    bits_per_byte: dict[str, list[float | None]] = Field(description="row name -> one figure a budget; none: failed")
    leaders: list[str] = Field(description="the best row at each budget")
    recommendation: str
