"""Settings: from TOML files and `--set a.b=c` to frozen, checked values.

Every part of the package describes its own settings as a subclass of `Settings`; `RunConfig` puts them together
and is what `config.toml` in a run folder holds. An unknown key is an error that names the nearest known one.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Self

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from chainrule.errors import ConfigError, nearest


class Settings(BaseModel):
    """Frozen keyword-only settings in which an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @classmethod
    def parse(cls, values: Mapping[str, Any], *, where: str = "") -> Self:
        """Check plain values; a mistake becomes a one-line ConfigError."""
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            raise ConfigError(explain(cls, error, where)) from None


class ModelConfig(Settings):
    """What every family's settings have in common."""

    vocabulary: int = Field(ge=1, description="number of token ids; taken from the tokenizer")


class RasterConfig(ModelConfig):
    """What the settings of models that know about rows and columns have in common; `vocabulary` is the levels."""

    shape: tuple[int, int, int] = Field(description="channels, height and width of an image; taken from the data")

    @property
    def size(self) -> int:
        """Values of an image."""
        channels, height, width = self.shape
        return channels * height * width


class ImageForm(Settings):
    """What the images of a run are: found out from its data, and enough to read and to draw more of them."""

    channels: Literal[1, 3]
    height: int = Field(ge=1)
    width: int = Field(ge=1)
    depth: int = Field(ge=2, description="values that a channel of a pixel can have in the data")
    levels: int = Field(ge=2, description="values that the model knows")
    classes: tuple[str, ...] = Field((), description="names of the labels; none where the images have no labels")

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, rows, columns."""
        return self.channels, self.height, self.width

    @property
    def size(self) -> int:
        """Values of an image: the length of its sequence."""
        return self.channels * self.height * self.width


class DataConfig(Settings):
    """Where the sequences come from and how they are cut."""

    train: str = Field(
        description="a path, folder, glob, '-', builtin:NAME or hub:NAME[:CONFIG[:SPLIT]]; "
        "the target text where `source` is given"
    )
    valid: str | None = Field(None, description="validation data, in the same forms")
    test: str | None = Field(None, description="test data, scored once when training has ended")
    test_fraction: float | None = Field(
        None, gt=0, lt=1, description="share cut from the end as test data when `test` is not given"
    )
    valid_fraction: float = Field(
        0.1, gt=0, lt=1, description="share cut from the end, before any test data, when `valid` is not given"
    )
    valid_at: Literal["end", "start"] = Field("end", description="where that share is cut from")
    field: str = Field("text", description="the field of a JSON or Parquet record that holds the text")
    unit: Literal["auto", "stream", "documents"] = Field(
        "auto", description="one long text, or one sequence a line or record; auto: records are documents"
    )
    unicode: Literal["none", "NFC", "NFD", "NFKC", "NFKD"] = Field("none", description="Unicode normal form")
    squeeze_spaces: bool = Field(False, description="runs of spaces and tabs become one space")
    strip_ends: bool = Field(False, description="white space at the ends of lines is dropped")

    source: str | None = Field(
        None, description="translation: the source text, line by line; none: `train` holds both sides"
    )
    valid_source: str | None = Field(None, description="translation: the source text of `valid`")
    test_source: str | None = Field(None, description="translation: the source text of `test`")
    source_field: str | None = Field(
        None,
        description="translation: field, column (from 1) or language of the source; none: source, 1, the first; "
        "classification: field or column of the text; none: text, sentence, 1",
    )
    target_field: str | None = Field(
        None,
        description="translation: field, column (from 1) or language of the target; none: target, 2, the second; "
        "classification: field or column of the label; none: label, class, category, 2",
    )
    target_language: str | None = Field(
        None, description="translation: code that BLEU cuts words by, such as zh; none: from the names of the data"
    )
    separate: bool = Field(False, description="translation: a vocabulary for each side; false: one for both")
    longest_side: int = Field(1000, ge=1, description="translation: bytes of UTF-8 in a side of a training pair")
    length_ratio: float = Field(
        9.0, ge=1, description="translation: bytes of the longer side of a training pair to those of the shorter"
    )
    identical: Literal["keep", "drop"] = Field("keep", description="translation: training pairs of two equal sides")
    duplicates: Literal["keep", "drop"] = Field("drop", description="translation: repetitions of a training pair")
    distil_from: str | None = Field(
        None, description="translation: a run whose translations are learnt from in place of the training targets"
    )

    levels: int | None = Field(
        None, ge=2, description="images: brightness levels of a channel; 2: black and white; none: as in the data"
    )
    shape: tuple[int, ...] | None = Field(
        None, description="images: height, width and perhaps channels, where an array holds them flat or as packed bits"
    )
    image: ImageForm | None = Field(None, description="images: what they are; found out from the data, never set")

    tag_column: str | None = Field(
        None, description="tagging: name (of CoNLL-U) or number (from 1) of the column of tags; none: UPOS, the last"
    )
    passage: int = Field(200, ge=2, description="reading: tokens of a passage that a long context is cut into")
    passage_stride: int = Field(150, ge=1, description="reading: tokens from the start of a passage to the next one's")
    negatives: int = Field(4, ge=0, description="reading: passages without the answer to learn from, for each question")

    @model_validator(mode="after")
    def _two_sides(self) -> Self:
        """Where one side of a split is a file, so is the other."""
        for split in ("valid", "test"):
            if getattr(self, f"{split}_source") is not None and getattr(self, split) is None:
                raise ValueError(f"{split}_source is given without {split}, its translation; give both")
        return self

    @model_validator(mode="after")
    def _no_gaps(self) -> Self:
        if self.passage_stride > self.passage:
            raise ValueError(
                f"passage_stride {self.passage_stride} is more than passage {self.passage}, so that some text would be "
                f"in no passage; try {self.passage * 3 // 4}"
            )
        return self

    def named(self, split: str) -> str:
        """What a reader should know the validation or test data by."""
        if split == "test":
            return self.test or f"the last {self.test_fraction:g} of {self.train}"
        if self.valid_at == "start":
            return self.valid or f"the first {self.valid_fraction:g} of the training side of {self.train}"
        cut = "" if self.test or self.test_fraction is None else f", before the last {self.test_fraction:g}"
        return self.valid or f"the last {self.valid_fraction:g} of {self.train}{cut}"


class TrainConfig(Settings):
    """The one training loop."""

    steps: int | None = Field(None, ge=1, description="budget: optimizer steps")
    tokens: int | None = Field(None, ge=1, description="budget: training tokens")
    epochs: float | None = Field(None, gt=0, description="budget: passes over the training data")
    minutes: float | None = Field(None, gt=0, description="budget: minutes of wall-clock time")

    batch_tokens: int = Field(2048, ge=1, description="tokens in one optimizer step")
    segment: int | None = Field(None, ge=1, description="tokens in one row; none: the model's own")
    accumulate: int = Field(1, ge=1, description="pieces that one batch is computed in; the result is the same")

    optimizer: Literal["muon", "adamw"] = Field("muon", description="muon: matrices by Muon, the rest by AdamW")
    learning_rate: float = Field(0.004, gt=0, description="peak, for AdamW's share")
    muon_learning_rate: float = Field(0.025, gt=0, description="peak, for Muon's share")
    weight_decay: float = Field(0.1, ge=0, description="decoupled, on matrices only")
    betas: tuple[float, float] = Field((0.9, 0.95), description="AdamW's two decay rates")
    clip: float = Field(1.0, ge=0, description="largest norm of the gradient; 0: no clipping")
    schedule: Literal["cosine", "linear", "wsd", "noam", "constant"] = Field(
        "linear", description="after the warm-up; noam: by the inverse square root"
    )
    warmup: float = Field(0.02, ge=0, lt=1, description="share of the budget in which the rate rises")
    decay: float = Field(0.3, gt=0, le=1, description="share of the budget in which wsd falls")
    floor: float = Field(0.0, ge=0, le=1, description="share of the peak rate left at the end")
    ema: float = Field(0.0, ge=0, lt=1, description="decay of the running mean of weights; 0: none")
    average: int | None = Field(
        None, ge=2, description="also try the mean of the weights at the last so many validations; none: do not"
    )

    objective: Literal["likelihood", "nce", "sampled"] = Field(
        "likelihood", description="nce and sampled: against words drawn as noise, for large vocabularies"
    )
    noise: int = Field(1024, ge=1, description="words drawn in a step, where the objective draws some")
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="probability mass spread over the vocabulary")
    validate_every: int | None = Field(None, ge=1, description="steps between validations; none: 10 in a run")
    validate_tokens: int = Field(16384, ge=1, description="validation tokens used while training")
    validate_bleu: bool | None = Field(
        None, description="translation: BLEU and chrF at validations; none: if sacrebleu is installed"
    )
    best_by: Literal["loss", "accuracy"] = Field(
        "loss", description="which weights are the best; accuracy: of a classifier or a tagger, on validation data"
    )
    patience: int | None = Field(None, ge=1, description="validations without progress before stopping early")
    save_every: int | None = Field(None, ge=1, description="steps between saved states; none: once a minute")
    log_every: int | None = Field(None, ge=1, description="steps between lines in metrics.jsonl; none: 1 % of the run")

    precision: Literal["auto", "float32", "bfloat16"] = Field("auto", description="auto: bfloat16 where it is fast")
    compile: bool = Field(False, description="torch.compile; pays on a GPU, seldom on a CPU")
    tensorboard: bool = Field(False, description="also write TensorBoard event files to RUN/tensorboard")

    @model_validator(mode="after")
    def _one_budget(self) -> Self:
        given = [name for name in BUDGETS if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} are both given; a run has one budget")
        return self

    @model_validator(mode="after")
    def _one_mean(self) -> Self:
        if self.ema and self.average is not None:
            raise ValueError(f"ema {self.ema:g} and average {self.average} are both given; a run keeps one mean")
        return self

    @model_validator(mode="after")
    def _noam_needs_a_peak(self) -> Self:
        if self.schedule == "noam" and not self.warmup:
            raise ValueError("schedule 'noam' falls from the end of the warm-up, and warmup is 0; set warmup=0.1")
        return self

    @model_validator(mode="after")
    def _smoothing_needs_the_whole_vocabulary(self) -> Self:
        if self.label_smoothing and self.objective != "likelihood":
            raise ValueError(
                f"label_smoothing {self.label_smoothing:g} spreads mass over all words, and objective "
                f"{self.objective!r} looks at a few; set label_smoothing=0, or objective=likelihood"
            )
        return self


BUDGETS = ("steps", "tokens", "epochs", "minutes")


class RunConfig(Settings):
    """All that is needed to repeat a run; stored as config.toml in its folder."""

    format: int = Field(1, description="version of the run folder")
    family: str
    tokenizer: str = "chars"
    source_tokenizer: str | None = Field(None, description="translation: the source's own; none: as `tokenizer` says")
    start_from: str | None = Field(None, description="a run whose vocabulary and weights this one begins with")
    seed: int = 0
    threads: int | None = Field(None, ge=1)
    device: str = "auto"
    data: DataConfig
    train: TrainConfig = TrainConfig()
    model: dict[str, Any] = Field(default_factory=dict, description="the family's settings")


FORMAT = RunConfig.model_fields["format"].default


def explain(settings: type[BaseModel], error: ValidationError, where: str = "") -> str:
    """The first mistake in one line: what, got, remedy."""
    first = error.errors()[0]
    path = ".".join([part for part in (where, *map(str, first["loc"])) if part])
    if first["type"] == "extra_forbidden":
        owner = _owner(settings, [str(part) for part in first["loc"][:-1]])
        return f"unknown setting {path!r}; {nearest(str(first['loc'][-1]), owner.model_fields)}"
    if first["type"] == "missing":
        return f"setting {path!r} is missing; give it a value"
    if first["type"] == "value_error":
        return str(first["ctx"]["error"]) if not path else f"{path}: {first['ctx']['error']}"
    message = first["msg"][0].lower() + first["msg"][1:]
    return f"setting {path!r} has the value {first['input']!r}: {message}"


def _owner(settings: type[BaseModel], path: list[str]) -> type[BaseModel]:
    for name in path:
        field = settings.model_fields.get(name)
        kind = field.annotation if field else None
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            settings = kind
    return settings


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file as plain values."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no config file {str(path)!r}; check the path") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"config file {str(path)!r} cannot be read: {error}") from None


def write_toml(config: Settings) -> str:
    """Settings as TOML; what is None is left out."""
    return tomli_w.dumps(config.model_dump(mode="json", exclude_none=True))


def apply_overrides(values: dict[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """`values` with every `a.b=c` applied; the value is read as TOML, or else as a string."""
    result = _copy(values)
    for text in overrides:
        path, equals, value = text.partition("=")
        names = path.strip().split(".")
        if not equals or not all(names):
            raise ConfigError(f"--set takes KEY=VALUE, got {text!r}; for example --set model.order=7")
        place = result
        for name in names[:-1]:
            place = place.setdefault(name, {})
            if not isinstance(place, dict):
                raise ConfigError(f"--set {text!r}: {name!r} is a value, not a table; drop what follows it")
        place[names[-1]] = _toml_value(value.strip())
    return result


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _copy(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _copy(value) if isinstance(value, Mapping) else value for name, value in values.items()}
