"""The results of a comparison as plain values: the content of results.json, from which the report is rendered."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from chainrule.config import Settings


class LearningPoint(Settings):
    """One point of a learning curve."""

    seconds: float
    tokens: int
    bits_per_byte: float


class MetricEstimate(Settings):
    """A metric of the task, such as BLEU, and its uncertainty."""

    value: float
    interval: tuple[float, float] = Field(description="95 % interval, by bootstrap over the test examples")


class MetricColumn(Settings):
    """A metric of the task that every row has."""

    key: str
    name: str
    digits: int = Field(description="after the decimal point, as displayed")


class ComparisonRow(Settings):
    """One model of the comparison."""

    name: str = Field(description="the family or encoder, `mixture` or `mixture+cache`")
    kind: Literal["family", "mixture"] = "family"
    evaluation: Literal["static", "adaptive"] = Field(
        "static", description="adaptive: the model adapts to the test data while it is scored, by a neural cache"
    )
    summary: str = Field(description="one-line description of the model")
    run: str = Field(description="run folder, relative to the folder of the comparison")
    settings: dict[str, Any] = Field(description="model settings chosen for the budget")
    parts: dict[str, float] = Field({}, description="of a mixture: mean weight of each part")
    parameters: int
    metrics: dict[str, MetricEstimate] = Field(
        {}, description="of labels: accuracy and macro_f1; of pairs: bleu and chrf"
    )
    nats_per_token: float
    bits_per_byte: float = Field(
        description="for images, per dim: a channel of a pixel counts as a byte; for labels, per label"
    )
    interval: tuple[float, float] = Field(description="95 % interval of bits_per_byte, by block bootstrap")
    perplexity: float
    word_perplexity: float | None
    accuracy: float | None = Field(
        description="fraction of tokens that were the most probable ones; none for parallel models"
    )
    train_tokens: int
    train_tokens_per_second: float
    decode_tokens_per_second: float = Field(0.0, description="of text and images")
    texts_per_second: float = Field(0.0, description="texts labelled or translated per second")
    seconds: float = Field(description="wall-clock time of training")
    memory_bytes: int = Field(description="peak resident memory of the training process")
    curve: list[LearningPoint] = Field([], description="bits per byte on the validation data during training")
    sample: str = Field("", description="text generated without a prompt")
    picture: str = Field("", description="images generated without a label: a PNG in base64")

    @property
    def speed(self) -> float:
        """Decoding speed: tokens per second, or texts per second if whole texts are labelled or translated."""
        return self.texts_per_second or self.decode_tokens_per_second


class FailedFamily(Settings):
    """A family that could not be trained or scored."""

    name: str
    reason: str


class TokenBucket(Settings):
    """Tokens with a common property, and their mean surprisal under each model."""

    label: str
    tokens: int
    bits_per_token: dict[str, float] = Field(description="row name -> mean surprisal in bits")


class Excerpt(Settings):
    """An excerpt of the held-out text with the surprisal of every token under every model."""

    title: str
    tokens: list[str]
    bits: dict[str, list[float]] = Field(description="row name -> surprisal of each token in bits")


class Analysis(Settings):
    """Where the models differ."""

    by_position: list[TokenBucket] = Field(description="by the number of preceding tokens")
    by_frequency: list[TokenBucket] = Field(description="by the frequency of the token's word in the training text")
    excerpts: list[Excerpt] = Field(description="the start of the text, and where the leading models differ most")


class ComparisonResults(Settings):
    """The content of results.json."""

    data: str
    tokenizer: str
    command: str = Field(description="command that reproduces the comparison")
    version: str
    created: str = Field(description="ISO 8601")
    machine: str = Field(description="processor architecture and number of processors")
    budget: str = Field(description="budget of each family, for display")
    total_seconds: float = Field(0.0, description="wall-clock time of the whole comparison")
    threads: int
    unit: Literal["byte", "dim", "label"] = Field(
        "byte", description="bits are per byte of text, per dim of images, or per label"
    )
    activity: str = Field("", description="what the best model does best, if not predicting text or images")
    metrics: list[MetricColumn] = Field([], description="metrics of the task, the deciding one first; none: bits")
    tokens_per_image: int | None = Field(None, description="None for text")
    train_tokens: int = Field(description="number of tokens of the training data")
    held_out_bytes: int = Field(description="of text; for images, pixel values; for labels and pairs, test texts")
    rows: list[ComparisonRow] = Field(description="best first")
    failures: list[FailedFamily] = Field([], description="families without a row, with the reason")
    notes: list[str] = Field([], description="what was left out or cut short to keep the time of the budget")
    best: str = Field(description="name of the first row: fewest bits per byte, or best by the first metric")
    recommendation: str
    protocol: dict[str, Any] = Field(description="how the rows were scored; per row where they differ")
    analysis: Analysis | None = None

    @property
    def speed_unit(self) -> str:
        """What is decoded: tokens of text or pixels, or whole texts."""
        return "texts" if self.metrics else "tokens"

    def __repr__(self) -> str:
        from chainrule.comparison.notebook import results_text

        return results_text(self)

    __str__ = __repr__

    def _repr_html_(self) -> str:
        from chainrule.comparison.notebook import results_html

        return results_html(self)


class BudgetCurve(Settings):
    """The same comparison at several budgets: the content of curve.json."""

    data: str
    command: str
    unit: Literal["byte", "dim", "label"] = "byte"
    minutes: list[float]
    bits_per_byte: dict[str, list[float | None]] = Field(
        description="row name -> bits per byte at each budget; None where the family failed"
    )
    metric: MetricColumn | None = Field(None, description="the deciding metric of labels and pairs; none: bits")
    metric_values: dict[str, list[float | None]] = Field({}, description="the same for this metric")
    leaders: list[str] = Field(description="the best row at each budget")
    recommendation: str

    @property
    def values(self) -> dict[str, list[float | None]]:
        """What the models are ranked by."""
        return self.bits_per_byte if self.metric is None else self.metric_values

    @property
    def quantity(self) -> str:
        """The name of these values."""
        return f"bits per {self.unit}" if self.metric is None else self.metric.name

    def shown(self, value: float) -> str:
        return f"{value:.{3 if self.metric is None else self.metric.digits}f}"
