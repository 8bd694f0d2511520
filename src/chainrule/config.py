"""Settings: TOML files and `--set a.b=c` become frozen, validated values.

Every part of the package declares its own settings as a subclass of `Settings`. `RunConfig` combines them and is stored
as `config.toml` in a run folder. An unknown key is an error that suggests the closest known one.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import tomli_w
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from chainrule.errors import ConfigError, nearest
from chainrule.limits import LARGEST_SEED, MOST_THREADS
from chainrule.memory import parse_size


class Settings(BaseModel):
    """Frozen keyword-only settings in which an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @classmethod
    def parse(cls, values: Mapping[str, Any], *, where: str = "") -> Self:
        """Validate plain values; raises ConfigError with a one-line message."""
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            raise ConfigError(explain(cls, error, where)) from None


class ModelConfig(Settings):
    """Settings that every family has."""

    vocabulary: int = Field(ge=1, description="number of token ids; set from the tokenizer")


class RasterConfig(ModelConfig):
    """Settings of models of two-dimensional images; `vocabulary` is the number of brightness levels."""

    shape: tuple[int, int, int] = Field(description="channels, height and width of an image; set from the data")

    @property
    def size(self) -> int:
        """Values of an image."""
        channels, height, width = self.shape
        return channels * height * width


class ImageForm(Settings):
    """The format of the images of a run: detected in its data, and used to read and generate further images."""

    channels: Literal[1, 3]
    height: int = Field(ge=1)
    width: int = Field(ge=1)
    depth: int = Field(ge=2, description="number of values of a channel in the data")
    levels: int = Field(ge=2, description="number of values of a channel in the model")
    classes: tuple[str, ...] = Field((), description="names of the classes; empty if the images have no labels")

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, rows, columns."""
        return self.channels, self.height, self.width

    @property
    def size(self) -> int:
        """Values of an image: the length of its sequence."""
        return self.channels * self.height * self.width


def _column(value: Any) -> Any:
    """A column number is as good as its digits: `--set data.tag_column=2` is read as an integer."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Column = Annotated[str, BeforeValidator(_column)]
"""The name of a field or column, or the number of a column, counted from 1."""


class DataConfig(Settings):
    """Where the data comes from, and how it is split and preprocessed."""

    train: str = Field(
        description="a path, folder, glob, '-', builtin:NAME or hub:NAME[:CONFIG[:SPLIT]]; "
        "the target text if `source` is given"
    )
    valid: str | None = Field(None, description="validation data, in the same formats")
    test: str | None = Field(None, description="test data, scored once after training")
    test_fraction: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="fraction of the training data that is test data if `test` is not given; at its end, or spread",
    )
    valid_fraction: float = Field(
        0.1, gt=0, lt=1, description="fraction of the training data that is validation data if `valid` is not given"
    )
    valid_from: Literal["end", "start", "spread"] = Field(
        "end",
        description="where that fraction is taken: at the end (before the test data), at the start, or spread evenly "
        "over the data in blocks, as is the test data then",
    )
    field: Column = Field(
        "text",
        description="field (a.b: b inside a) of a record, or name or number of a column of a table, with the text",
    )
    unit: Literal["auto", "stream", "documents"] = Field(
        "auto",
        description="one long text, or one sequence per line or record; auto: documents if records, or lines like "
        "those of a list of names",
    )
    unicode: Literal["none", "NFC", "NFD", "NFKC", "NFKD"] = Field("none", description="Unicode normalisation form")
    squeeze_spaces: bool = Field(False, description="replace runs of spaces and tabs by one space")
    strip_ends: bool = Field(False, description="remove white space at both ends of lines")
    remote: Literal["copy", "stream"] = Field(
        "copy",
        description="text by URL: copy it to the cache once, or read it where it is, whenever it is encoded",
    )
    workers: int | None = Field(
        None, ge=1, description="processes that encode a text of more than 64 MiB; none: one per core"
    )

    source: str | None = Field(
        None, description="translation: the source text, one sentence per line; none: `train` contains both sides"
    )
    valid_source: str | None = Field(None, description="translation: the source text of `valid`")
    test_source: str | None = Field(None, description="translation: the source text of `test`")
    source_field: Column | None = Field(
        None,
        description="translation: field, column (from 1) or language of the source; default: source, 1, the first; "
        "classification: field or column of the text; default: text, sentence, 1",
    )
    target_field: Column | None = Field(
        None,
        description="translation: field, column (from 1) or language of the target; default: target, 2, the second; "
        "classification: field or column of the label; default: label, class, category, 2",
    )
    target_language: str | None = Field(
        None,
        description="translation: language code for the tokenization of BLEU, such as zh; none: from file names",
    )
    separate_vocabularies: bool = Field(
        False, description="translation: one vocabulary per side instead of a shared one"
    )
    max_side_bytes: int = Field(
        1000, ge=1, description="translation: maximum bytes of UTF-8 per side of a training pair"
    )
    length_ratio: float = Field(
        9.0, ge=1, description="translation: maximum ratio of the lengths in bytes of the two sides of a training pair"
    )
    identical: Literal["keep", "drop"] = Field("keep", description="translation: training pairs whose sides are equal")
    duplicates: Literal["keep", "drop"] = Field("drop", description="translation: repeated training pairs")
    pairs: bool | None = Field(
        None,
        description="t5: whether the data are pairs, such as questions and answers; none: if columns or fields are "
        "named so",
    )
    distil_from: str | None = Field(
        None, description="translation: teacher run whose translations replace the training targets"
    )
    distil_pairs: int | None = Field(
        None, ge=1, description="translation: number of training pairs that the teacher translates; none: all"
    )

    levels: int | None = Field(
        None, ge=2, description="images: brightness levels per channel; 2: black and white; none: as in the data"
    )
    shape: tuple[int, ...] | None = Field(
        None, description="images: height, width and optionally channels of arrays that are flat or packed bits"
    )
    image: ImageForm | None = Field(None, description="images: their format; detected in the data, not set by users")

    tag_column: Column | None = Field(
        None,
        description="tagging: name (UPOS, ner, …) or number (from 1) of the tag column; none: UPOS, or the last column",
    )
    passage_length: int = Field(200, ge=2, description="reading: tokens per passage of a long context")
    passage_stride: int = Field(150, ge=1, description="reading: tokens between the starts of consecutive passages")
    word_overlap: float = Field(
        8.0,
        ge=0,
        description="reading: nats by which an answer is more probable if its sentence has all words of the question, "
        "relative to none",
    )
    negatives: int = Field(4, ge=0, description="reading: training passages without the answer, per question")

    @model_validator(mode="after")
    def _two_sides(self) -> Self:
        """A split with a source file needs a target file."""
        for split in ("valid", "test"):
            if getattr(self, f"{split}_source") is not None and getattr(self, split) is None:
                raise ValueError(f"{split}_source needs {split}, the target side; give both")
        return self

    @model_validator(mode="after")
    def _no_gaps(self) -> Self:
        if self.passage_stride > self.passage_length:
            raise ValueError(
                f"passage_stride {self.passage_stride} exceeds passage_length {self.passage_length}, so text would be "
                f"skipped; try {self.passage_length * 3 // 4}"
            )
        return self

    def named(self, split: str) -> str:
        """Return the name of the validation or test data for reports."""
        given, fraction = (self.test, self.test_fraction) if split == "test" else (self.valid, self.valid_fraction)
        if given is not None:
            return given
        if self.valid_from == "spread":
            return f"{fraction:g} of {self.train}, spread evenly"
        if split == "test":
            return f"the last {fraction:g} of {self.train}"
        if self.valid_from == "start":
            return f"the first {fraction:g} of the training part of {self.train}"
        cut = "" if self.test or self.test_fraction is None else f", before the last {self.test_fraction:g}"
        return f"the last {fraction:g} of {self.train}{cut}"


class TrainConfig(Settings):
    """Settings of the training loop."""

    steps: int | None = Field(None, ge=1, description="budget: optimizer steps")
    tokens: int | None = Field(None, ge=1, description="budget: training tokens")
    epochs: float | None = Field(None, gt=0, description="budget: epochs, passes over the training data")
    minutes: float | None = Field(None, gt=0, description="budget: minutes, by `clock`")
    clock: Literal["wall", "cpu"] = Field(
        "wall",
        description="what minutes and seconds are measured in: wall-clock time, or CPU time of all threads, which "
        "other load on the machine does not change",
    )

    batch_tokens: int = Field(2048, ge=1, description="tokens per optimizer step")
    segment: int | None = Field(None, ge=1, description="tokens per row of a batch; none: the default of the model")
    accumulate: int = Field(
        1, ge=1, description="parts in which the gradient of a batch is accumulated; the result is the same"
    )

    optimizer: Literal["muon", "adamw"] = Field(
        "muon", description="muon: Muon for hidden matrices, AdamW for the rest"
    )
    learning_rate: float = Field(0.004, gt=0, description="peak learning rate of AdamW")
    muon_learning_rate: float = Field(0.025, gt=0, description="peak learning rate of Muon")
    weight_decay: float = Field(0.1, ge=0, description="decoupled weight decay, on matrices only")
    betas: tuple[float, float] = Field((0.9, 0.95), description="β₁ and β₂ of AdamW")
    clip: float = Field(1.0, ge=0, description="maximum gradient norm; 0: no clipping")
    schedule: Literal["cosine", "linear", "wsd", "noam", "step", "constant"] = Field(
        "linear",
        description="learning-rate schedule after the warm-up; noam: inverse square root; wsd: warm-up, stable, decay; "
        "step: times step_gamma at every step_size of the budget",
    )
    warmup: float = Field(0.02, ge=0, lt=1, description="fraction of the budget in which the learning rate rises")
    decay: float = Field(0.3, gt=0, le=1, description="fraction of the budget in which wsd decays")
    step_size: float = Field(
        0.1, gt=0, le=1, description="fraction of the budget between decays of step; of 10 epochs 0.1 is one"
    )
    step_gamma: float = Field(0.9, gt=0, le=1, description="factor of the learning rate at each decay of step")
    floor: float = Field(0.0, ge=0, le=1, description="final learning rate as a fraction of the peak")
    ema: float = Field(0.0, ge=0, lt=1, description="decay of the exponential moving average of the weights; 0: none")
    average_checkpoints: int | None = Field(
        None, ge=2, description="also validate the average of the weights at the last N validations; none: off"
    )

    objective: Literal["likelihood", "nce", "sampled"] = Field(
        "likelihood",
        description="nce (noise-contrastive estimation) and sampled (sampled softmax): for large vocabularies",
    )
    noise_samples: int = Field(1024, ge=1, description="noise tokens drawn per step by nce and sampled")
    noise: Literal["unigram", "uniform"] = Field(
        "unigram", description="distribution of the noise tokens of nce and sampled"
    )
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="probability mass spread over the whole vocabulary")
    validate_every: int | None = Field(None, ge=1, description="steps between validations; none: 10 per run")
    validate_tokens: int = Field(16384, ge=1, description="validation tokens scored during training")
    validate_bleu: bool | None = Field(
        None, description="translation: compute BLEU and chrF at validations; none: if sacrebleu is installed"
    )
    best_by: Literal["loss", "accuracy"] = Field(
        "loss",
        description="metric on the validation data that selects the best weights; accuracy: classifiers and taggers",
    )
    patience: int | None = Field(None, ge=1, description="validations without improvement before early stopping")
    save_every: int | None = Field(None, ge=1, description="steps between checkpoints; none: once a minute")
    log_every: int | None = Field(
        None, ge=1, description="steps between lines in metrics.jsonl; none: every 1 % of the run"
    )

    precision: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description="auto: bfloat16 if the hardware multiplies it, on a CPU for models of 100,000 parameters and more; "
        "float16: with loss scaling, for older GPUs; weights are float32 in any case",
    )
    parallel: Literal["ddp", "fsdp"] = Field(
        "ddp",
        description="several processes (torchrun): ddp: each has all weights; fsdp: each has a part of weights, "
        "gradients and optimizer state (gpt, transformer, bert, t5)",
    )
    checkpoint_activations: bool = Field(
        False,
        description="keep the inputs of blocks only and compute the rest again in the backward pass: less memory, a "
        "third more time (gpt, transformer, bert, t5)",
    )
    compile: bool = Field(False, description="use torch.compile; mostly useful on a GPU")
    tensorboard: bool = Field(False, description="also write TensorBoard event files to RUN/tensorboard")

    @model_validator(mode="after")
    def _one_budget(self) -> Self:
        given = [name for name in BUDGETS if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} are both given; give one budget")
        return self

    @model_validator(mode="after")
    def _one_average(self) -> Self:
        if self.ema and self.average_checkpoints is not None:
            raise ValueError(
                f"ema {self.ema:g} and average_checkpoints {self.average_checkpoints} are both given; choose one"
            )
        return self

    @model_validator(mode="after")
    def _noam_needs_a_peak(self) -> Self:
        if self.schedule == "noam" and not self.warmup:
            raise ValueError("schedule 'noam' decays from the end of the warm-up, but warmup is 0; set warmup=0.1")
        return self

    @model_validator(mode="after")
    def _smoothing_needs_the_whole_vocabulary(self) -> Self:
        if self.label_smoothing and self.objective != "likelihood":
            raise ValueError(
                f"label_smoothing {self.label_smoothing:g} needs the whole vocabulary, and objective "
                f"{self.objective!r} samples it; set label_smoothing=0, or objective=likelihood"
            )
        return self


BUDGETS = ("steps", "tokens", "epochs", "minutes")


class RunConfig(Settings):
    """All settings of a run, enough to repeat it; stored as config.toml in its folder."""

    format: int = Field(1, description="version of the run folder format")
    family: str
    tokenizer: str = "chars"
    source_tokenizer: str | None = Field(
        None, description="translation: tokenizer of the source; none: same as `tokenizer`"
    )
    start_from: str | None = Field(None, description="run that provides the vocabulary and the initial weights")
    seed: int = Field(0, ge=0, le=LARGEST_SEED)
    threads: int | None = Field(None, ge=1, le=MOST_THREADS)
    device: str = "auto"
    memory: str | None = Field(
        None, description="memory for counting n-grams, such as 2GB, with the rest on disk; none: all in memory"
    )
    data: DataConfig
    train: TrainConfig = TrainConfig()
    model: dict[str, Any] = Field(default_factory=dict, description="settings of the family")

    @field_validator("memory")
    @classmethod
    def _is_size(cls, value: str | None) -> str | None:
        if value is not None:
            parse_size(value)
        return value


FORMAT = RunConfig.model_fields["format"].default


def explain(settings: type[BaseModel], error: ValidationError, where: str = "") -> str:
    """Return the first error as one line: what is wrong, the value, a remedy."""
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
    return f"setting {path!r} got {first['input']!r}: {message}"


def _owner(settings: type[BaseModel], path: list[str]) -> type[BaseModel]:
    for name in path:
        field = settings.model_fields.get(name)
        kind = field.annotation if field else None
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            settings = kind
    return settings


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file as plain values."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no config file {str(path)!r}; check the path") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"config file {str(path)!r} cannot be read: {error}") from None


def write_toml(config: Settings) -> str:
    """Return settings as TOML, without those that are None."""
    return tomli_w.dumps(config.model_dump(mode="json", exclude_none=True))


def apply_overrides(values: dict[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Return a copy of `values` with every `a.b=c` applied; a value is parsed as TOML, else taken as a string."""
    result = _copy(values)
    for text in overrides:
        path, equals, value = text.partition("=")
        names = path.strip().split(".")
        if not equals or not all(names):
            raise ConfigError(f"--set takes KEY=VALUE, got {text!r}; for example --set model.order=7")
        table = result
        for name in names[:-1]:
            table = table.setdefault(name, {})
            if not isinstance(table, dict):
                raise ConfigError(f"--set {text!r}: {name!r} is a value, not a table; remove the part after it")
        table[names[-1]] = _toml_value(value.strip())
    return result


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _copy(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _copy(value) if isinstance(value, Mapping) else value for name, value in values.items()}
