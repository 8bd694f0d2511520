"""The commands and JSON keys that scripts depend on."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tests.conftest import Command

SCORE_KEYS = {
    "nats_per_token",
    "bits_per_byte",
    "perplexity",
    "word_perplexity",
    "accuracy",
    "tokens",
    "bytes",
    "protocol",
}


@pytest.fixture
def run(chainrule: Command, text_file: Path, tmp_path: Path) -> Path:
    out = tmp_path / "ngram"
    outcome = chainrule("train", "ngram", "--data", text_file, "--set", "model.order=4", "--out", out)
    assert outcome.code == 0, outcome.err
    return out


def small_gpt(chainrule: Command, text: Path, out: Path, *words: object) -> Path:
    sets = ["model.layers=1", "model.width=16", "model.heads=2", "model.context=32", "train.batch_tokens=256"]
    flags = [word for setting in sets for word in ("--set", setting)]
    outcome = chainrule("train", "gpt", "--data", text, "--out", out, "--steps", 20, *flags, *words)
    assert outcome.code == 0, outcome.err
    return out


def test_models_lists_name_task_and_summary(chainrule: Command) -> None:
    rows = json.loads(chainrule("models", "--json").out)
    assert {"ngram", "recurrent", "gpt"} <= {row["name"] for row in rows}
    assert all(row["task"] and row["summary"] for row in rows)
    assert "Kneser" in chainrule("models").out


def test_models_shows_the_settings_of_a_family(chainrule: Command) -> None:
    rows = {row["setting"]: row for row in json.loads(chainrule("models", "recurrent", "--json").out)}
    assert rows["model.cell"]["default"] == "lstm"
    assert rows["train.batch_tokens"]["default"] == 512  # the family's own
    assert "data.unit" in rows
    assert "model.layout" in chainrule("models", "gpt").out
    assert chainrule("models", "gtp").code == 2


def test_train_prints_the_validation_score_as_json(chainrule: Command, text_file: Path, tmp_path: Path) -> None:
    words = ("--tokenizer", "bytes", "--valid-fraction", "0.2", "--seed", "3", "--json")
    outcome = chainrule("train", "ngram", "--data", text_file, "--out", tmp_path / "run", *words)
    about = json.loads(outcome.out)
    assert about["family"] == "ngram"
    assert about["vocabulary"] == 257
    assert about["validation"].keys() >= SCORE_KEYS


def test_train_takes_a_validation_file_and_a_config_file(chainrule: Command, text_file: Path, tmp_path: Path) -> None:
    config = tmp_path / "settings.toml"
    config.write_text('tokenizer = "words"\n[model]\norder = 2\n')
    valid = tmp_path / "valid.txt"
    valid.write_text("the cat sat on the log\n")
    words = ("--valid", valid, "--config", config, "--set", "model.order=3", "--json")
    about = json.loads(chainrule("train", "ngram", "--data", text_file, "--out", tmp_path / "run", *words).out)
    assert about["tokenizer"] == "words"
    assert about["validation"]["tokens"] == 7
    assert "order = 3" in (tmp_path / "run" / "config.toml").read_text()


def test_train_reads_builtin_text(chainrule: Command, tmp_path: Path) -> None:
    outcome = chainrule("train", "ngram", "--data", "builtin:prose", "--out", tmp_path / "run", "--json")
    assert outcome.code == 0, outcome.err
    assert 1.0 < json.loads(outcome.out)["validation"]["bits_per_byte"] < 4.0


def test_score_has_fixed_keys_and_is_stored_with_its_protocol(chainrule: Command, run: Path, text_file: Path) -> None:
    found = json.loads(chainrule("score", run, "--data", text_file, "--json").out)
    assert found.keys() >= SCORE_KEYS
    assert found["perplexity"] == pytest.approx(math.exp(found["nats_per_token"]))
    assert found["protocol"]["carry_over"] is True
    kept = [json.loads(line) for line in (run / "scores.jsonl").read_text().splitlines()][-1]
    assert kept["protocol"] == found["protocol"]
    assert kept["data"] == str(text_file)
    table = chainrule("score", run, "--data", text_file).out
    assert "bits/byte" in table
    assert "state carried over" in table


def test_score_per_token_gives_surprisals_and_alternatives(chainrule: Command, run: Path) -> None:
    found = json.loads(chainrule("score", run, "--text", "the cat", "--per-token", "--json").out)
    entries = found["per_token"]
    assert "".join(entry["token"] for entry in entries) == "the cat"
    mean = sum(entry["surprisal"] for entry in entries) / 7
    assert mean == pytest.approx(found["nats_per_token"])
    assert all(len(entry["alternatives"]) == 5 for entry in entries)
    shown = chainrule("score", run, "--text", "the cat", "--per-token").out
    assert "the cat" in shown
    assert "most surprising" in shown


def test_generate_gives_texts_with_their_log_probability(chainrule: Command, run: Path) -> None:
    words = ("--prompt", "the ", "--length", 12, "--num", 3, "--seed", 5, "--json")
    texts = json.loads(chainrule("generate", run, *words).out)
    assert len(texts) == 3
    assert all(len(text["text"]) == 12 and text["log_prob"] < 0 for text in texts)
    assert texts == json.loads(chainrule("generate", run, *words).out)
    alone = json.loads(chainrule("generate", run, *words[:4], "--seed", 6, "--json").out)
    assert alone[0]["text"] == texts[1]["text"]


@pytest.mark.parametrize(
    "how",
    ["--greedy", "--temperature 0.7 --top-k 5", "--top-p 0.9", "--min-p 0.1", "--repetition-penalty 2", "--beam 3"],
)
def test_generate_by_every_method(chainrule: Command, run: Path, how: str) -> None:
    [text] = json.loads(chainrule("generate", run, "--prompt", "the ", "--length", 8, *how.split(), "--json").out)
    assert len(text["text"]) == 8


def test_generate_streams_the_text_of_json(chainrule: Command, run: Path) -> None:
    words = ("--prompt", "the ", "--length", 30, "--seed", 2)
    [text] = json.loads(chainrule("generate", run, *words, "--json").out)
    assert chainrule("generate", run, *words).out == "the " + text["text"] + "\n"


def test_generate_stops_before_a_stop_string(chainrule: Command, run: Path) -> None:
    words = ("--prompt", "the cat", "--length", 400, "--stop", "\n")
    [text] = json.loads(chainrule("generate", run, *words, "--json").out)
    assert "\n" not in text["text"]
    assert text["finished"] == "stop"
    assert chainrule("generate", run, *words).out == "the cat" + text["text"] + "\n"


def test_verify_passes_on_a_sound_run_and_fails_on_a_damaged_one(
    chainrule: Command, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = chainrule("verify", run)
    assert outcome.code == 0
    assert "✓ probabilities sum to one" in outcome.out
    from chainrule.models.ngram import NGram

    real = NGram.log_prob
    monkeypatch.setattr(NGram, "log_prob", lambda self, batch: real(self, batch) + 0.001)
    broken = chainrule("verify", run, "--json")
    assert broken.code == 1
    assert not json.loads(broken.out)["passed"]


def test_info_describes_a_run(chainrule: Command, run: Path) -> None:
    about = json.loads(chainrule("info", run, "--json").out)
    assert about["family"] == "ngram"
    assert about["validation"]["bits_per_byte"] > 0
    assert "vocabulary" in chainrule("info", run).out


def test_an_ngram_is_exported_to_arpa_and_imported(chainrule: Command, run: Path, tmp_path: Path) -> None:
    assert chainrule("export", run, "--to", "arpa", "--out", tmp_path / "arpa").code == 0
    back = tmp_path / "back"
    assert chainrule("import", tmp_path / "arpa", "--from", "arpa", "--out", back).code == 0
    scores = [json.loads(chainrule("score", one, "--text", "the dog sat", "--json").out) for one in (run, back)]
    assert scores[0]["nats_per_token"] == pytest.approx(scores[1]["nats_per_token"], abs=1e-5)


@pytest.mark.parametrize("tokenizer", ["chars", "bpe:300", "unigram:300"])
def test_a_gpt_is_exported_to_hugging_face_and_imported(
    chainrule: Command, text_file: Path, tmp_path: Path, tokenizer: str
) -> None:
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    words = ("--set", "model.layout=gpt2", "--tokenizer", tokenizer)
    run, folder, back = small_gpt(chainrule, text_file, tmp_path / "gpt", *words), tmp_path / "hf", tmp_path / "back"
    assert chainrule("export", run, "--to", "hf", "--out", folder).code == 0

    text = "the early bird"
    model = transformers.GPT2LMHeadModel.from_pretrained(folder)
    ids = transformers.AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt").input_ids
    read = torch.cat([torch.zeros(1, 1, dtype=torch.int64), ids], dim=1)
    with torch.no_grad():
        log_probs = model(read).logits[0, :-1].log_softmax(-1)
    expected = -float(log_probs.gather(1, ids[0, :, None]).mean())
    found = json.loads(chainrule("score", run, "--text", text, "--json").out)
    assert found["tokens"] == ids.shape[1]
    assert found["nats_per_token"] == pytest.approx(expected, abs=1e-4)

    assert chainrule("import", folder, "--from", "hf", "--out", back).code == 0
    again = json.loads(chainrule("score", back, "--text", text, "--json").out)
    assert again["nats_per_token"] == pytest.approx(expected, abs=1e-4)


def test_help_of_every_command_has_an_example(chainrule: Command) -> None:
    overview = chainrule("--help").out
    for command in (
        "compare", "models", "train", "mix", "score", "generate", "translate", "align", "predict", "draw", "embed",
        "words", "fill", "frontier", "verify", "info", "export", "import",
    ):  # fmt: skip
        assert command in overview
        outcome = chainrule(command, "--help")
        assert outcome.code == 0
        usage, _, text = outcome.out.partition("Usage:")[2].partition("\n")
        assert f" {command} " in usage
        assert f"chainrule {command}" in text, command
    assert "--resume" in chainrule("train", "--help").out
