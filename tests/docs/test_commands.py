"""Every command and every Python block of the README and the manual runs, on tiny data with tiny models.

A command is run as it is written, but for its budget and sizes (`shrunk`). The folder it runs in has a small file for
every name that the manual uses; a run that a command reads is first made by the command of the manual that writes it.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from tests.conftest import Command
from tests.features.folders import write_bert

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("README*.md")), *sorted((ROOT / "docs").rglob("*.md"))]

# Commands that do not run here: how they begin, and why.
NOT_RUN = {
    "git clone": "clones the repository",
    "cd chainrule": "clones the repository",
    "python3 -m venv": "makes an environment",
    ". .venv/bin/activate": "makes an environment",
    "pip install": "installs packages",
    "make demo": "takes minutes; examples/demo.py has a test of its own",
    "make experiments": "takes hours; tests/experiments runs them on built-in data",
    "python benchmarks/": "a benchmark, run by make bench",
    "python experiments/": "tested in tests/experiments",
    "chainrule serve": "serves until it is stopped; tested in tests/serving",
    "python examples/screenshot.py": "needs a browser and makes pictures for the README",
}
# Runs that the manual reads and no command of it writes, by their commands.
RUNS = {
    "runs/lstm": "chainrule train recurrent --data my.txt --out runs/lstm",
    "runs/names": "chainrule train ngram --data my.txt --set data.unit=documents --out runs/names",
    "runs/small": "chainrule train finite_memory --data my.txt --out runs/small",
    "runs/nar": "chainrule train nonautoregressive --source train.en --target train.de --out runs/nar",
}
COMPARED = {
    "builtin:digits": "neighbours,pixelcnn",
    "train.tsv": "words",
    "train.de": "seq2seq",
}  # by their data; else text
WRITES = ("train", "mix", "import", "export", "compare", "frontier")  # verbs whose --out is a new folder
COUNTED = ("ngram", "neighbours")
TINY = {
    "finite_memory": "width=8 layers=1 memory=3",
    "recurrent": "width=8 layers=1",
    "self_regressive": "width=8",
    "causal_conv": "width=8 layers=2",
    "attentive_conv": "width=8 layers=1 heads=2 context=32",
    "gpt": "width=8 layers=1 heads=2 context=32",
    "reverse": "model.width=8 model.layers=1 model.heads=2 model.context=32",
    "hybrid_language": "width=8 layers=1 chunk=4",
    "seq2seq": "width=8 layers=1",
    "transformer": "width=8 heads=2 encoder_layers=1 decoder_layers=1",
    "autoregressive_transformer": "width=8 attention_width=8",
    "fat": "width=8 heads=2 encoder_layers=1 decoder_layers=1 key_width=4",
    "hybrid": "width=8 layers=1",
    "nonautoregressive": "width=8 heads=2 encoder_layers=1 decoder_layers=1",
    "hybrid_regressive": "width=8 heads=2 encoder_layers=1 decoder_layers=1",
    "pixelcnn": "width=4 layers=1 first_kernel=3",
    "labelled_pixelcnn": "width=4 layers=1 first_kernel=3",
    "word2vec": "width=8 negatives=2",
    "elmo": "width=8 layers=1",
    "bert": "width=8 layers=2 heads=2 context=32",
    "t5": "width=8 heads=2 encoder_layers=1 decoder_layers=1 context=32",
    "vit": "width=8 layers=1 heads=2",
    "image_classifier": "hidden=8",
    "classifier": "embedding=8 heads=1 attention_width=4 hidden=8",
    "pair_classifier": "hidden=8",
    "tagger": "width=8 word_width=8",
    "reader": "width=8",
}
SIZES = re.compile(
    r"model\.(model\.)?(width|layers|heads|context|encoder_layers|decoder_layers|mlp_ratio)=|train\.batch_tokens="
)
BUDGETS = ("--minutes", "--steps", "--epochs", "--tokens")
TEXT = (
    "the cat sat on the mat and the dog sat on the log\n",
    "a king and a queen in the hand are worth two in the bush\n",
    "Once upon a time there was fire, said the man to the woman . How likely is this? It was The End\n",
    "the early bird catches the worm but the second mouse gets the cheese\n",
)
ENGLISH = ("a dog runs", "two dogs run", "a cat sleeps on the mat", "the cat and the dog", "it rains")
GERMAN = ("ein Hund rennt", "zwei Hunde rennen", "eine Katze schläft", "die Katze und der Hund", "es regnet")


class Line(NamedTuple):
    """One command of a page."""

    text: str
    page: str


def fences(page: Path, language: str) -> list[str]:
    text = page.read_text(encoding="utf-8")
    return [
        block for kind, block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL) if kind == language
    ]


def commands(page: Path) -> Iterator[str]:
    """The commands of a page: the lines of its bash blocks, continued ones joined, comments left out."""
    for block in fences(page, "bash"):
        for line in re.sub(r"\\\n\s*", "", block).splitlines():
            for part in re.sub(r"\s#\s.*$", "", line).split(" && "):
                if part.strip():
                    yield part.strip()


def words_of(text: str) -> list[str]:
    """The arguments of a chainrule command, without redirections and without what is piped into it."""
    words = shlex.split(text.rpartition("|")[2] if " | chainrule " in text else text)
    for sign in ("<", ">"):
        if sign in words:
            words = words[: words.index(sign)] + words[words.index(sign) + 2 :]
    return words[1:]


def shrunk(text: str) -> tuple[str, ...]:
    """The arguments with a budget of two steps and the sizes of a tiny model."""
    verb, *words = words_of(text)
    kept: list[str] = []
    tiny: list[str] = []
    skip = False
    for word, after in zip(words, [*words, ""][1:], strict=True):
        if skip:
            skip = False
        elif word in (*BUDGETS, "--threads", "--seconds", "--families") or (word == "--set" and SIZES.match(after)):
            skip = True
        else:
            word = re.sub(r"^(bpe|unigram):\d+$", r"\1:300", word)
            kept.append(re.sub(r"^(words|jieba):\d+$", r"\1:60", word))
    if verb == "train":
        family = words[0]
        if family not in COUNTED:
            tiny = ["--steps", "2", "--set", "train.batch_tokens=64", "--set", "train.validate_tokens=64"]
            for setting in TINY[family].split():
                tiny += ["--set", f"model.{setting}"]
            if family == "reader":  # whose tiny encoder reads few tokens
                tiny += ["--set", "data.passage_length=31", "--set", "data.passage_stride=21"]
    elif verb == "compare":
        families = next((names for data, names in COMPARED.items() if data in kept), "ngram,finite_memory")
        kept = ["my.txt" if word in ("builtin:prose", "input.txt", "train.txt") else word for word in kept]
        tiny = ["--tokens", "400", "--families", families]
        if "--budget-curve" in kept:  # it varies the minutes
            tiny = ["--minutes", "0.2", "--families", "ngram"]
    elif verb == "frontier":
        tiny = ["--seconds", "0.02", "--limit", "3"]
    elif verb == "generate" and "runs/qa" not in kept:  # answers have no length to choose
        tiny = ["--length", "12"]
    return (verb, *kept, *tiny)


def catalogue() -> tuple[list[Line], dict[str, str]]:
    """The different commands of all pages, and which of them writes which folder."""
    lines: dict[tuple[str, ...], Line] = {}
    writers = dict(RUNS)
    for page in PAGES:
        for text in commands(page):
            name = page.relative_to(ROOT).as_posix()
            if " chainrule " not in f" {text}" or text.startswith(tuple(NOT_RUN)):
                lines.setdefault((text,), Line(text, name))
                continue
            lines.setdefault(shrunk(text), Line(text, name))
            words = words_of(text)
            if words[0] in WRITES:
                writers.setdefault(words[words.index("--out") + 1], text)
    writers["comparison/runs/mixture"] = writers["comparison"]
    return list(lines.values()), writers


LINES, WRITERS = catalogue()


class Place:
    """A folder with everything that the commands read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made: set[tuple[str, ...]] = set()
        for name, content in files().items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        for name in ("models/bert", "models/minilm"):
            write_bert(folder / name, max_position_embeddings=64)

    def run(self, text: str, chainrule: Command, monkeypatch: pytest.MonkeyPatch) -> None:
        """Run a command, and before it those that write the runs that it reads."""
        words = shrunk(text)
        if words in self.made:
            return
        out = words[words.index("--out") + 1] if words[0] in WRITES else ""
        for name in {word.partition("=")[2] if word.startswith("model.encoder_run=") else word for word in words} - {
            out
        }:
            if name in WRITERS and not (self.folder / name).exists():
                self.run(WRITERS[name], chainrule, monkeypatch)
            if name == "exported/ngram/model.arpa" or name == "GoogleNews.bin":
                self.exported(name, chainrule, monkeypatch)
        if out:
            shutil.rmtree(self.folder / out, ignore_errors=True)
        with self.redirected(text).open(encoding="utf-8") as stdin:
            monkeypatch.setattr(sys, "stdin", stdin)
            outcome = chainrule(*words)
        assert outcome.code == 0, f"chainrule {shlex.join(words)}\n{outcome.err}"
        if out:
            assert any((self.folder / out).iterdir())
        self.made.add(words)

    def exported(self, name: str, chainrule: Command, monkeypatch: pytest.MonkeyPatch) -> None:
        if not (self.folder / name).exists():
            kind, run = ("arpa", "runs/ngram") if name.endswith("arpa") else ("word2vec", "runs/vectors")
            folder = Path(name).parent if kind == "arpa" else Path("news")
            self.run(f"chainrule export {run} --to {kind} --out {folder}", chainrule, monkeypatch)
            if kind == "word2vec":
                shutil.copy(self.folder / "news" / "vectors.bin", self.folder / name)

    def redirected(self, text: str) -> Path:
        """A file with the standard input of a command."""
        file = self.folder / "standard-input"
        file.write_bytes(self.stdin(text))
        return file if file.stat().st_size else Path(os.devnull)

    def stdin(self, text: str) -> bytes:
        if piped := re.match(r"echo \"(.*)\" \| ", text):
            return f"{piped[1]}\n".encode()
        if text.startswith("printf"):
            return b"what sat ?\tthe cat sat on the dog\n"
        redirected = re.search(r" < (\S+)", text)
        return (self.folder / redirected[1]).read_bytes() if redirected else b""


def idx(values: np.ndarray) -> bytes:
    """Bytes in the format of MNIST."""
    head = bytes([0, 0, 8, values.ndim]) + b"".join(size.to_bytes(4, "big") for size in values.shape)
    return gzip.compress(head + values.astype(np.uint8).tobytes())


def files() -> dict[str, bytes]:
    """A small file for every name that the manual uses."""
    text = "".join(TEXT[(index * 7 + index // 3) % 4] for index in range(60)).encode()
    held = "".join(TEXT[(index * 5 + 1) % 4] for index in range(12)).encode()
    made = dict.fromkeys(map("{}.txt".format, ("my", "input", "text", "train", "big", "letters", "article")), text)
    made |= dict.fromkeys(("tinyshakespeare.txt", "ptb.train.txt"), text)
    made |= dict.fromkeys(map("{}.txt".format, ("valid", "valid_part", "test", "held-out")), held)
    made |= dict.fromkeys(("ptb.valid.txt", "ptb.test.txt"), held)
    made["prompts.txt"] = b"Once upon\n\nthe cat\n"
    made["texts.txt"] = b"a gripping film\n\ndull\n"
    made["wikitext-2/train.txt.gz"], made["wikitext-2/valid.txt.gz"] = gzip.compress(text), gzip.compress(held)
    for name in ("train", "valid", "val", "test", "test_2016_flickr"):
        count = 40 if name == "train" else 6
        for suffix, side in (
            ("en", ENGLISH),
            ("de", GERMAN),
            ("zh", ("狗跑了", "两只狗在跑", "猫睡了", "猫和狗", "下雨了")),
        ):
            lines = (f"{side[index % 5]} {index // 5 + 1}\n" for index in range(count))
            made[f"{name}.{suffix}"] = "".join(lines).encode()
    labels = "".join(f"{'dull' if index % 2 else 'a gripping'} film {index % 7}\t{index % 2}\n" for index in range(24))
    made |= dict.fromkeys(("train.tsv", "dev.tsv", "test.tsv"), labels.encode())
    pairs = "".join(
        f"what {index % 3} ?\tthe film {index % 4}\t{'yes' if index % 3 == index % 4 else 'no'}\n"
        for index in range(24)
    )
    made |= dict.fromkeys(("pairs.tsv", "questions.tsv"), pairs.encode())
    lands = zip(("France", "Italy", "Spain"), ("Paris", "Rome", "Madrid"), strict=True)
    answers = [f"what is the capital of {land} ?\t{city} {index}\n" for land, city in lands for index in range(8)]
    made["qa.tsv"] = ("question\tanswer\n" + "".join(answers)).encode()
    choice = {"context": "the cat sat on", "endings": ["the mat", "the bush"], "label": 0}
    made |= dict.fromkeys(("choices.jsonl", "shots.jsonl"), f"{json.dumps(choice)}\n".encode() * 3)
    sentence = "1\tThe\tthe\tDET\t_\t_\t2\tdet\t_\t_\n2\tdog\tdog\tNOUN\t_\t_\t0\troot\t_\t_\n\n"
    made |= dict.fromkeys((f"en_ewt-ud-{name}.conllu" for name in ("train", "dev", "test")), (sentence * 6).encode())
    context = "the cat sat on the dog"
    asked = [
        {"id": str(index), "question": "what sat ?", "answers": [{"text": "cat", "answer_start": 4}]}
        for index in range(4)
    ]
    squad = json.dumps({"data": [{"paragraphs": [{"context": context, "qas": asked}]}]}).encode()
    made |= dict.fromkeys(("train.json", "valid.json", "dev.json", "covid-qa-train.json", "covid-qa-dev.json"), squad)
    made["questions-words.txt"] = b": all\nthe cat the dog\nking queen man woman\n"
    made["wordsim353.tsv"] = b"Word 1\tWord 2\tHuman (mean)\ncat\tdog\t7.0\nking\tqueen\t8.0\nthe\ton\t1.0\n"
    stream = io.BytesIO()
    bits = np.random.default_rng(0).integers(0, 256, (12, 98), dtype=np.uint8)
    np.savez(stream, train=bits, valid=bits[:4], test=bits[:4])
    made["binarized_mnist_packed.npz"] = stream.getvalue()
    for name in ("train", "t10k"):
        made[f"{name}-images-idx3-ubyte.gz"] = idx(np.random.default_rng(0).integers(0, 256, (20, 8, 8)))
        made[f"{name}-labels-idx1-ubyte.gz"] = idx(np.arange(20) % 2)
    stream = io.BytesIO()
    image = pytest.importorskip("PIL.Image")
    image.fromarray(np.zeros((8, 8), dtype=np.uint8)).save(stream, "png")
    made["my.png"] = stream.getvalue()
    return made


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("manual"))


@pytest.fixture(autouse=True)
def _in_place(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place.folder)
    monkeypatch.setenv("CHAINRULE_CACHE", str(place.folder / "cache"))


@pytest.mark.parametrize("line", LINES, ids=lambda line: f"{line.page}: {line.text[:70]}")
def test_every_command_of_the_manual_runs(
    line: Line, place: Place, chainrule: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    for beginning, reason in NOT_RUN.items():
        if line.text.startswith(beginning):
            pytest.skip(reason)
    place.run(line.text, chainrule, monkeypatch)


def test_every_reason_for_not_running_a_command_is_needed() -> None:
    for beginning in NOT_RUN:
        assert any(line.text.startswith(beginning) for line in LINES), beginning


# What the Python blocks use without defining it.
PRELUDE = """
import chainrule
from chainrule.config import DataConfig
from chainrule.data.corpus import prepare
ngram, gpt = (chainrule.load(f"runs/{name}").model for name in ("ngram", "gpt"))
model, small, prompts = gpt, ngram, [[1, 2], [3]]
corpus = prepare(DataConfig(train="my.txt"), "chars").valid
sources, references = ["a dog runs", "it rains"], ["ein Hund rennt", "es regnet"]
"""
PYTHON = [(page, fences(page, "python")) for page in PAGES if fences(page, "python")]


@pytest.mark.parametrize(("page", "blocks"), PYTHON, ids=[page.relative_to(ROOT).as_posix() for page, _ in PYTHON])
def test_every_python_block_of_the_manual_runs(
    page: Path, blocks: list[str], place: Place, chainrule: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The blocks of a page run one after the other, in one namespace, with less time."""
    code = "\n".join(blocks)
    for name in ["runs/ngram", "runs/gpt", *re.findall(r"\"(runs/[\w-]+)\"", code)]:
        if name in WRITERS and not (place.folder / name).exists():
            place.run(WRITERS[name], chainrule, monkeypatch)
    for name in re.findall(r"out=\"([\w/-]+)\"", code):
        shutil.rmtree(place.folder / name, ignore_errors=True)
    for run in ("gpt", "ngram", "pixelcnn"):
        shutil.rmtree(place.folder / "runs" / f"{run}-1", ignore_errors=True)
    code = re.sub(r"(compare\(\"my.txt\"), minutes=\d+", r'\1, tokens=400, families=["ngram"]', code)
    code = re.sub(r"minutes=\d+", "minutes=0.002", re.sub(r"seconds=\d+", "seconds=0.02", code))
    exec(compile(PRELUDE + re.sub(r"length=\d+", "length=12", code), page.name, "exec"), {})
