"""`chainrule chat`: a conversation in the terminal."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from chainrule.api import train
from chainrule.serving.chat import ChatTemplate
from chainrule.tasks import load
from chainrule.tasks.text import TextRun
from tests.conftest import Command

TEMPLATE = (
    '{# stop: "\\nuser:" #}{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}'
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


@pytest.fixture
def run(tmp_path: Path, text_file: Path) -> Path:
    out = tmp_path / "run"
    train("ngram", data=str(text_file), out=str(out), tokenizer="bytes", progress=False, scored=False)
    return out


@pytest.fixture
def template(tmp_path: Path) -> Path:
    file = tmp_path / "chat.jinja"
    file.write_text(TEMPLATE, encoding="utf-8")
    return file


def test_the_model_answers_after_the_whole_conversation(
    chainrule: Command, monkeypatch: pytest.MonkeyPatch, run: Path, template: Path
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("the cat\nthe dog\n"))
    done = chainrule("chat", run, "--chat-template", template, "--system", "be brief", "--length", 15, "--seed", 4)
    assert done.code == 0
    opened = load(run, TextRun)
    options = {"length": 15, "temperature": 0.8, "stop": ["\nuser:"]}
    first = "system: be brief\nuser: the cat\nassistant:"
    [answer] = opened.generate(first, seed=4, **options)
    second = f"{first[: -len('assistant:')]}assistant: {answer.text.strip()}\nuser: the dog\nassistant:"
    [other] = opened.generate(second, seed=5, **options)
    assert done.out == f"{answer.text}\n{other.text}\n"


def test_a_run_without_a_template_is_refused(chainrule: Command, run: Path) -> None:
    done = chainrule("chat", run)
    assert done.code == 2
    assert "has no chat template" in done.err


def test_the_template_in_the_folder_of_a_run_is_used(
    chainrule: Command, monkeypatch: pytest.MonkeyPatch, run: Path
) -> None:
    (run / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    monkeypatch.setattr("sys.stdin", io.StringIO("the cat\n/undo\n/text\n"))
    done = chainrule("chat", run, "--length", 3)
    assert done.code == 0
    assert "user:" not in done.out  # the turn was undone before the conversation was shown


def test_a_template_cannot_reach_the_system(tmp_path: Path) -> None:
    file = tmp_path / "bad.jinja"
    file.write_text("{{ ''.__class__.__mro__[1].__subclasses__() }}", encoding="utf-8")
    with pytest.raises(Exception, match="refuses"):
        ChatTemplate.read(file).prompt([{"role": "user", "content": "x"}])


def test_stop_strings_of_a_template(template: Path) -> None:
    assert ChatTemplate.read(template).stop == ("\nuser:",)
