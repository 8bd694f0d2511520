"""`chainrule generate`: what comes next?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from chainrule.cli.options import Checkpoint, Device, Json, RunPath, Threads, open_text_run, output, print_json
from chainrule.errors import ConfigError


def generate(
    run: RunPath,
    prompt: Annotated[str, typer.Option(help="The text to continue; empty: from the start.")] = "",
    length: Annotated[int, typer.Option(min=1, help="Tokens to generate at most.")] = 200,
    greedy: Annotated[bool, typer.Option("--greedy", help="Always the most probable token.")] = False,
    temperature: Annotated[
        float | None, typer.Option(help="Below 1 plays safe, above 1 dares more. Default 1.", show_default=False)
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Only the K most probable tokens.", show_default=False)] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Only the most probable tokens up to this mass.", show_default=False)
    ] = None,
    min_p: Annotated[
        float | None, typer.Option(help="Only tokens this probable relative to the first.", show_default=False)
    ] = None,
    repetition_penalty: Annotated[
        float | None, typer.Option(help="Above 1 discourages tokens already there.", show_default=False)
    ] = None,
    beam: Annotated[
        int | None,
        typer.Option(min=1, help="Search with a beam of this width instead of sampling.", show_default=False),
    ] = None,
    length_penalty: Annotated[
        float, typer.Option(help="With --beam: log P is divided by (generated length)^penalty.")
    ] = 1.0,
    draft: Annotated[
        str | None,
        typer.Option(
            metavar="RUN|ngram|self",
            help="The same text, sooner: let a smaller run, an n-gram of the training data or the text itself guess "
            "ahead.",
            show_default=False,
        ),
    ] = None,
    num: Annotated[int, typer.Option(min=1, help="How many texts.")] = 1,
    seed: Annotated[int, typer.Option(help="Text i is drawn with seed + i.")] = 0,
    stop: Annotated[
        list[str] | None, typer.Option(help="End before this string. May be repeated.", show_default=False)
    ] = None,
    allow_unknown: Annotated[
        bool, typer.Option("--allow-unknown", help="Read what the vocabulary lacks as <unk> instead of refusing.")
    ] = False,
    checkpoint: Checkpoint = "best",
    device: Device = "auto",
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Continue a prompt: by sampling, greedily, or by beam search. A single text appears as it is written."""
    chances: dict[str, Any] = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
    }
    given = {name: value for name, value in chances.items() if value is not None}
    if greedy:
        odd = [name for name in given if name != "repetition_penalty"]
        if odd or beam is not None:
            other = "--beam" if beam is not None else "--" + odd[0].replace("_", "-")
            raise ConfigError(f"--greedy and {other} exclude each other; leave one out")
        given["greedy"] = True
    opened = open_text_run(run, device=device, threads=threads, checkpoint=checkpoint)
    if draft is not None:
        given["draft"] = draft if draft in ("ngram", "self") else open_text_run(Path(draft), device=device)
    common: dict[str, Any] = {
        "length": length, "num": num, "seed": seed, "stop": stop or [], "allow_unknown": allow_unknown, **given
    }  # fmt: skip
    if num == 1 and beam is None and not json:
        output.print(prompt, style="bold", end="", markup=False, highlight=False)
        for _ in opened.stream(prompt, show=lambda text: _write(text), **common):
            pass
        typer.echo()
        return
    texts = opened.generate(prompt, beam=beam, length_penalty=length_penalty, **common)
    if json:
        print_json([{**text._asdict(), "prompt": prompt} for text in texts])
        return
    for number, text in enumerate(texts):
        output.rule(f"{number + 1} of {num} · log P {text.log_prob:.2f}", align="left", style="dim")
        output.print(prompt, style="bold", end="", markup=False, highlight=False)
        typer.echo(text.text)


def _write(text: str) -> None:
    typer.echo(text, nl=False)
