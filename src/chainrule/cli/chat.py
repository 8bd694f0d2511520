"""`chainrule chat`: a conversation with a language model that has a chat template."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from chainrule.cli.interactive import Session
from chainrule.cli.options import Device, RunPath, Threads, open_text_run

if TYPE_CHECKING:
    from chainrule.serving.chat import ChatTemplate
    from chainrule.tasks.text import TextRun


def chat(
    run: RunPath,
    system: Annotated[
        str | None, typer.Option(help="Message of the system at the beginning.", show_default=False)
    ] = None,
    chat_template: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Jinja template of the conversation. Default: the chat_template.jinja of the run.",
            show_default=False,
        ),
    ] = None,
    length: Annotated[int, typer.Option(min=1, help="Maximum number of tokens of an answer.")] = 256,
    temperature: Annotated[float, typer.Option(help="Sampling temperature.")] = 0.8,
    top_p: Annotated[float | None, typer.Option(help="Nucleus sampling.", show_default=False)] = None,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    allow_unknown: Annotated[
        bool,
        typer.Option(
            "--allow-unknown", help="Encode out-of-vocabulary words of messages as `<unk>` instead of failing."
        ),
    ] = False,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Chat with a language model that has a chat template. For example

    chainrule chat runs/first --chat-template chat.jinja
    """
    opened = open_text_run(run, device=device, threads=threads)
    from chainrule.serving.chat import ChatTemplate, template_of

    template = ChatTemplate.read(chat_template) if chat_template is not None else template_of(opened.folder)
    options: dict[str, Any] = {"length": length, "temperature": temperature, "allow_unknown": allow_unknown}
    if top_p is not None:
        options["top_p"] = top_p
    Conversation(opened, template, system=system, seed=seed, **options).run("")


class Message(NamedTuple):
    """What somebody has said."""

    role: str
    content: str


class Conversation(Session):
    """A session in which typed lines are messages, and the model answers them."""

    hint = "type a message; /help lists commands, Ctrl-D ends"
    usage = "Type a message, and the model answers it."

    def __init__(self, run: TextRun, template: ChatTemplate, *, system: str | None, **options: Any) -> None:
        super().__init__(run, **options)
        self.template, self.system = template, system
        self.messages: list[Message] = []
        self.new()

    @property
    def stop(self) -> Sequence[str]:
        return [*super().stop, *self.template.stop]

    def prompt(self, typed: str) -> str:
        return self.template.prompt([one._asdict() for one in (*self.messages, Message("user", typed))])

    def show_typed(self, typed: str) -> None:
        """The line that was typed is on the screen already."""

    def keep(self, typed: str, generated: str, ended: bool) -> None:
        self.messages += [Message("user", typed), Message("assistant", generated.strip())]

    def undo(self) -> str:
        typed = super().undo()
        del self.messages[-2:]
        return typed

    def new(self) -> None:
        super().new()
        self.messages = [] if self.system is None else [Message("system", self.system)]

    def show(self) -> None:
        for role, content in self.messages:
            typer.echo(f"{role}: {content}")
