"""SentencePiece: unigram and character models trained here, and existing .model files."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from chainrule.errors import TokenizerError
from chainrule.tokenizers.base import REPLACEMENT, Ids, Texts, Tokenizer, decode_bytes, parse_size, require_text, sample
from chainrule.tokenizers.chars import alphabet

SPACE = "\u2581"  # how the library writes a space, so that it confuses a real U+2581 with one
SAMPLE = 5_000_000  # characters of training text; enough for all common vocabulary sizes
WHITE = ["\n", "\t"]  # tokens of their own; the trainer splits at the first and rejects the second
_BETWEEN_SENTENCES = re.compile("[\n\t\0\u2585]")  # U+2585 is reserved by the library's trainer

# No normalisation, no added or dropped spaces; one thread, because sums of floats depend on their order.
_EXACT = {
    "normalization_rule_name": "identity",
    "add_dummy_prefix": False,
    "remove_extra_whitespaces": False,
    "hard_vocab_limit": False,  # a small text results in a small vocabulary instead of an error
    "max_sentence_length": 1 << 20,
    "num_threads": 1,
    "minloglevel": 2,
}
UNIGRAM = _EXACT | {"model_type": "unigram", "unk_id": 0, "bos_id": -1, "eos_id": -1, "pad_id": -1}
_OURS = _EXACT | {
    "eos_id": 0,
    "unk_id": 1,
    "bos_id": -1,
    "pad_id": -1,
    "eos_piece": "<eos>",
    "unk_piece": "<unk>",
    "user_defined_symbols": WHITE,
}


class SentencePiece(Tokenizer):
    """A SentencePiece model with its own ids."""

    kind: ClassVar[str] = "sentencepiece"

    def __init__(self, model: bytes) -> None:
        self.model = model
        self._processor = _processor(model)
        self._normalizer = read_normalizer(model)
        self._eos = int(self._processor.eos_id())
        if self._eos < 0:
            raise TokenizerError("the SentencePiece model has no end-of-sentence piece; train it with an eos_id")
        self._surfaces = [self._surface(index) for index in range(self._processor.vocab_size())]
        byte_ids = {self._surfaces[index]: index for index in range(self.vocabulary) if self._processor.is_byte(index)}
        self._has_bytes = len(byte_ids) == 256
        real_space = [bytes([byte]) for byte in SPACE.encode("utf-8")]
        self._real_space = [byte_ids[byte] for byte in real_space] if self._has_bytes else [self.unknown]

    @classmethod
    def train(cls, argument: str | None, texts: Texts) -> Self:
        if argument is None:
            raise TokenizerError("sentencepiece needs a size, 'char' or a file; for example sentencepiece:8000")
        if argument == "char":
            require_text(cls.kind, texts)
            return cls(_train_characters(texts))
        if argument.isdigit():
            size = parse_size(cls.kind, argument, least=256 + 2 + len(WHITE) + 1)
            require_text(cls.kind, texts)
            return cls(_train_unigram(size, texts))
        return cls.read(Path(argument))

    @classmethod
    def read(cls, path: Path) -> Self:
        """Load a .model file."""
        try:
            return cls(path.read_bytes())
        except FileNotFoundError:
            raise TokenizerError(
                f"there is no SentencePiece model {str(path)!r}; give a .model file, a size such as "
                "sentencepiece:8000, or sentencepiece:char"
            ) from None
        except OSError as error:
            raise TokenizerError(f"SentencePiece model {str(path)!r} cannot be read: {error.strerror}") from None
        except TokenizerError as error:
            raise TokenizerError(f"{str(path)!r}: {error}") from None

    @property
    def vocabulary(self) -> int:
        return len(self._surfaces)

    @property
    def eos(self) -> int:
        return self._eos

    @property
    def unknown(self) -> int:
        return int(self._processor.unk_id())

    @property
    def lossless(self) -> bool:
        return self._normalizer == Normalizer(rules=b"", adds_prefix=False, drops_spaces=False)

    @property
    def note(self) -> str:
        kept = (
            "decoding restores the text exactly"
            if self.lossless
            else "decoding restores the text as normalised by the model"
        )
        unseen = (
            "an unseen character is encoded as bytes"
            if self._has_bytes
            else "a run of unseen characters becomes <unk>, shown as U+FFFD"
        )
        return f"{kept}; {unseen}"

    def _encode(self, text: str) -> Ids:
        if SPACE not in text or not self.lossless:
            return np.array(self._processor.encode(text), dtype=np.int32)
        # Prevent the library from treating a real U+2581 as a space.
        first, *rest = self._processor.encode(text.split(SPACE))
        return np.array([*first, *(index for part in rest for index in (*self._real_space, *part))], dtype=np.int32)

    def _pieces(self, ids: Sequence[int]) -> list[str]:
        pieces = decode_bytes([self._surfaces[index] for index in ids])
        if pieces and self._normalizer.adds_prefix:
            pieces[0] = pieces[0].removeprefix(" ")
        return pieces

    def _surface(self, index: int) -> bytes:
        piece: str = self._processor.id_to_piece(index)
        if self._processor.is_control(index) or index == self._eos:
            return b""
        if self._processor.is_unknown(index):
            return REPLACEMENT.encode("utf-8")
        if self._processor.is_byte(index):
            return bytes([int(piece[1:-1], 16)])  # <0x0A>
        return piece.replace(SPACE, " ").encode("utf-8")

    def to_json(self) -> dict[str, Any]:
        return {"model": base64.b64encode(self.model).decode("ascii")}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        return cls(base64.b64decode(data["model"], validate=True))


def _train_unigram(size: int, texts: Texts) -> bytes:
    sentences = (line for passage in sample(texts, SAMPLE) for line in _BETWEEN_SENTENCES.split(passage) if line)
    return train_model("sentencepiece", sentences, _OURS | {"vocab_size": size, "byte_fallback": True})


def _train_characters(texts: Texts) -> bytes:
    """Only the set of characters matters, so each is given once: memory does not depend on the text."""
    characters = _BETWEEN_SENTENCES.sub("", alphabet(texts()).replace(SPACE, " "))
    size = 2 + len(WHITE) + len(characters)
    options = _OURS | {"model_type": "char", "vocab_size": size, "character_coverage": 1.0}
    return train_model("sentencepiece:char", iter(characters), options)


def train_model(kind: str, sentences: Iterable[str], options: Mapping[str, Any]) -> bytes:
    """Run the trainer of the library, which is deterministic."""
    import sentencepiece

    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(sentences), model_writer=model, **options)
    except RuntimeError as error:
        raise TokenizerError(f"tokenizer {kind!r} cannot be trained on this text: {_reason(str(error))}") from None
    return model.getvalue()


def _reason(message: str) -> str:
    """Return the error of the library in terms of the spec."""
    if "smaller than required_chars" in message and (sizes := re.search(r"(\d+) vs (\d+)", message)):
        return f"{sizes[1]} pieces are too few for its characters; use at least {int(sizes[2]) + 1}"
    if "sentences_.empty()" in message:
        return "it contains only line ends"
    return message.split("]", 1)[-1].strip() or message


def pieces_and_scores(model: bytes) -> list[tuple[str, float]]:
    """Return the ordinary pieces of a model, best first."""
    processor = _processor(model)
    ordinary = (index for index in range(processor.vocab_size()) if not processor.is_unknown(index))
    return [(processor.id_to_piece(index), processor.get_score(index)) for index in ordinary]


def _processor(model: bytes) -> Any:
    import sentencepiece

    try:
        processor = sentencepiece.SentencePieceProcessor()
        processor.LoadFromSerializedProto(model)  # the constructor would ignore b""
        return processor
    except RuntimeError:
        raise TokenizerError("this is not a valid SentencePiece model; restore the .model file") from None


class Normalizer(NamedTuple):
    """How a model normalises text before it segments it."""

    rules: bytes  # compiled replacements; empty: none
    adds_prefix: bool
    drops_spaces: bool


def read_normalizer(model: bytes) -> Normalizer:
    """Return the normalizer_spec (field 3) of a serialised ModelProto, with the defaults of its definition."""
    spec = b"".join(value for number, value in _fields(model) if number == 3 and isinstance(value, bytes))
    values = dict(_fields(spec))
    rules = values.get(2, b"")
    return Normalizer(rules if isinstance(rules, bytes) else b"", bool(values.get(3, 1)), bool(values.get(4, 1)))


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield field numbers and values of a serialised protocol-buffer message."""
    stream = io.BytesIO(message)
    while stream.tell() < len(message):
        key = _varint(stream)
        number, wire = key >> 3, key & 7
        if wire == 0:
            yield number, _varint(stream)
        else:
            yield number, stream.read({1: 8, 2: 0, 5: 4}[wire] or _varint(stream))


def _varint(stream: io.BytesIO) -> int:
    """Read a variable-length integer: seven bits per byte, low bits first; the eighth marks that more follow."""
    value = shift = 0
    while True:
        byte = stream.read(1)[0]
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value
