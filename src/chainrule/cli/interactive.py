"""`chainrule generate --interactive`: a text that the user and the model continue in turn.

What is typed is appended to the text, and the model continues it. The whole text is the prompt of each turn, so a model
with an unlimited context sees all of it, and a text reads on as if it had never been interrupted.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from chainrule.cli.options import errors, output
from chainrule.errors import ChainruleError, ConfigError

if TYPE_CHECKING:
    from chainrule.tasks.text import TextRun

HELP = """\
Type text to append it and continue; an empty line continues. Ctrl-C stops the text, Ctrl-D ends.
/again           discard the last continuation and sample another one
/undo            remove what was typed and generated last
/new             start a new text
/text            show the whole text
/NAME VALUE      change a setting: {settings}
/NAME            show it
/quit            end"""

SETTINGS: dict[str, type] = {
    "seed": int, "length": int, "temperature": float, "top_k": int, "top_p": float, "min_p": float,
    "repetition_penalty": float,
}  # fmt: skip


class Turn(NamedTuple):
    """The text before a turn, and what was typed."""

    before: str
    typed: str


class Session:
    """The state of the conversation: the text, the turns that made it, and the settings of generation."""

    def __init__(self, run: TextRun, *, seed: int, **options: Any) -> None:
        self.generator = run
        self.options = {"seed": seed, **options}
        self.text = ""
        self.turns: list[Turn] = []
        self.commands = {"again": self.again, "undo": self.undo, "new": self.new, "text": self.show, "help": self.help}

    def run(self, prompt: str) -> None:
        """Answer lines until the input ends."""
        if sys.stdin.isatty():
            with contextlib.suppress(ImportError):  # line editing and history; not on every system
                import readline  # noqa: F401
            errors.print("type text to continue it; /help lists commands, Ctrl-D ends", style="dim", highlight=False)
        if prompt:
            self.attempt(prompt)
        while (line := self.next_line()) is not None and line.strip() != "/quit":
            self.attempt(line)

    def next_line(self) -> str | None:
        """The next line of input; None at its end. Ctrl-C discards what has been typed."""
        while True:
            try:
                return input("> " if sys.stdin.isatty() else "")
            except EOFError:
                if sys.stdin.isatty():
                    typer.echo()
                return None
            except KeyboardInterrupt:
                typer.echo()

    def attempt(self, line: str) -> None:
        """Carry out a line; an error is reported and changes nothing."""
        try:
            self.obey(line[1:]) if line.startswith("/") else self.go_on(line)
        except ChainruleError as error:
            errors.print(f"error {error}", style="red", markup=False, highlight=False, soft_wrap=True)

    def go_on(self, typed: str) -> None:
        """Append what was typed, and continue the text."""
        pieces: list[str] = []

        def show(piece: str) -> None:
            pieces.append(piece)
            typer.echo(piece, nl=False)

        texts = self.generator.stream(
            self.text + typed, show=show, **self.options
        )  # refuses wrong prompts and settings
        self.turns.append(Turn(self.text, typed))
        self.options["seed"] += 1
        if typed and not self.generator.right_to_left:
            output.print(typed, style="bold", end="", markup=False, highlight=False, soft_wrap=True)
        ended = False
        with contextlib.suppress(KeyboardInterrupt):  # stops the text, not the session
            ended = next(texts).finished == "eos"
        generated = "".join(pieces)
        self.text = generated + self.text + typed if self.generator.right_to_left else self.text + typed + generated
        typer.echo()
        if ended:
            self.text = ""
            errors.print("the text has ended; the next one starts anew", style="dim")

    def obey(self, command: str) -> None:
        """Carry out a command, or change a setting."""
        name, _, value = command.strip().partition(" ")
        name = name.replace("-", "_")
        if name in self.commands and not value:
            self.commands[name]()
        elif name in SETTINGS and not value:
            typer.echo(f"{name} {self.options.get(name, 'default')}")
        elif name in SETTINGS:
            self.set(name, value)
        else:
            raise ConfigError(f"unknown command /{command.strip()}; /help lists the commands")

    def set(self, name: str, value: str) -> None:
        try:
            changed = {**self.options, name: SETTINGS[name](value)}
        except ValueError:
            raise ConfigError(f"/{name} needs a number, got {value!r}") from None
        self.generator.stream("", show=lambda piece: None, **changed)  # refuses values that are out of range
        self.options = changed

    def again(self) -> None:
        typed = self.undo()
        self.go_on(typed)

    def undo(self) -> str:
        """Return to the text before the last turn; give what was typed in it."""
        if not self.turns:
            raise ConfigError("nothing has been generated yet; type a text to continue")
        self.text, typed = self.turns.pop()
        return typed

    def new(self) -> None:
        self.text, self.turns = "", []

    def show(self) -> None:
        typer.echo(self.text)

    def help(self) -> None:
        typer.echo(HELP.format(settings=", ".join(SETTINGS)))
