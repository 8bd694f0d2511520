"""`chainrule generate --interactive`: a text that the user and the model continue in turn.

What is typed is appended to the text, and the model continues it. The whole text is the prompt of each turn, so a model
with an unlimited context sees all of it, and a text reads on as if it had never been interrupted. The engine of the
server decodes it, so what has been read in one turn is in its prefix cache in the next.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from chainrule.cli.options import errors, output
from chainrule.errors import ChainruleError, ConfigError

if TYPE_CHECKING:
    from chainrule.serving.requests import Request
    from chainrule.tasks.text import TextRun

HELP = """\
{usage} Ctrl-C stops the text, Ctrl-D ends.
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

    hint = "type text to continue it; /help lists commands, Ctrl-D ends"
    usage = "Type text to append it and continue; an empty line continues."

    def __init__(self, run: TextRun, *, seed: int, **options: Any) -> None:
        from chainrule.serving.engine import Engine

        self.generator = run
        self.engine = Engine()
        self.options = {"seed": seed, **options}
        self.text = ""
        self.turns: list[Turn] = []
        self.commands = {"again": self.again, "undo": self.undo, "new": self.new, "text": self.show, "help": self.help}

    def run(self, prompt: str) -> None:
        """Answer lines until the input ends."""
        if sys.stdin.isatty():
            with contextlib.suppress(ImportError):  # line editing and history; not on every system
                import readline  # noqa: F401
            errors.print(self.hint, style="dim", highlight=False)
        with self.engine:
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
        request = self.request(self.prompt(typed), self.options)  # refuses wrong prompts and settings
        self.turns.append(Turn(self.text, typed))
        self.options["seed"] += 1
        self.show_typed(typed)
        generated, ended = self.answer(request)
        typer.echo()
        self.keep(typed, generated, ended)

    def request(self, prompt: str, options: Mapping[str, Any]) -> Request:
        """The request to the engine."""
        from chainrule.decoding.sampling import Sampling
        from chainrule.serving.texts import text_request

        known = {"seed", "length", "stop", "draft", "allow_unknown"}
        return text_request(
            self.generator,
            prompt,
            max_tokens=options["length"],
            sampling=Sampling.parse({name: value for name, value in options.items() if name not in known}),
            seed=options["seed"],
            stop=self.stop,
            draft=options.get("draft"),
            allow_unknown=options.get("allow_unknown", False),
        )

    def answer(self, request: Request) -> tuple[str, bool]:
        """Show what is generated as it grows; return it, and whether the model has ended the text."""
        from chainrule.serving.texts import GrowingText

        text, pieces = GrowingText(self.generator, self.stop), []
        with contextlib.suppress(KeyboardInterrupt):  # stops the text, not the session
            for token in self.engine.stream(request):
                pieces.append(text.add([token]))
                typer.echo(pieces[-1], nl=False)
        return "".join(pieces), text.result is not None and text.result.finished == "eos"

    @property
    def stop(self) -> Sequence[str]:
        found: Sequence[str] = self.options.get("stop", ())
        return found

    # What a text and a conversation do differently

    def prompt(self, typed: str) -> str:
        return self.text + typed

    def show_typed(self, typed: str) -> None:
        if typed and not self.generator.right_to_left:
            output.print(typed, style="bold", end="", markup=False, highlight=False, soft_wrap=True)

    def keep(self, typed: str, generated: str, ended: bool) -> None:
        self.text = generated + self.text + typed if self.generator.right_to_left else self.text + typed + generated
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
        self.request("", changed)  # refuses values that are out of range
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
        typer.echo(HELP.format(usage=self.usage, settings=", ".join(SETTINGS)))
