r"""Chat templates: how the messages of a conversation become the prompt of a language model.

A run has a chat template if its folder has a file `chat_template.jinja`, in the form of Hugging Face's tokenizers: a
Jinja template of `messages` and `add_generation_prompt`. `chainrule serve --chat-template FILE` gives one to all runs
without their own. Stop strings that end a turn stand in its first line: {# stop: "\nUser:" #}.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from chainrule.errors import ConfigError, DecodingError
from chainrule.training.checkpoint import RunFolder

FILE = "chat_template.jinja"
STOP = re.compile(r"\{#\s*stop:\s*((?:\"(?:[^\"\\]|\\.)*\"[\s,]*)+)#\}")


@dataclass(frozen=True)
class ChatTemplate:
    """A template, and the strings that end a turn."""

    text: str
    stop: tuple[str, ...] = ()

    @classmethod
    def read(cls, file: Path) -> ChatTemplate:
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"chat template {str(file)!r} cannot be read: {error}; check the path") from None
        try:
            _environment().from_string(text)
        except TemplateError as error:
            raise ConfigError(f"chat template {str(file)!r} is no valid Jinja template: {error}") from None
        found = STOP.search(text)
        return cls(text, tuple(json.loads(f"[{','.join(re.findall(QUOTED, found[1]))}]")) if found else ())

    def prompt(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The prompt after which the model continues with the next answer."""
        try:
            rendered: str = (
                _environment()
                .from_string(self.text)
                .render(messages=list(messages), add_generation_prompt=True, bos_token="", eos_token="")
            )
        except TemplateError as error:
            raise DecodingError(f"the chat template refuses these messages: {error}") from None
        return rendered


QUOTED = r"\"(?:[^\"\\]|\\.)*\""


def template_of(folder: RunFolder, default: ChatTemplate | None = None) -> ChatTemplate:
    """The template of a run, or the default."""
    file = folder.path / FILE
    if file.is_file():
        return ChatTemplate.read(file)
    if default is None:
        raise ConfigError(
            f"run {folder.path.name!r} has no chat template; put a {FILE} into its folder, or use --chat-template FILE"
        )
    return default


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    environment.globals["raise_exception"] = raise_exception
    return environment
