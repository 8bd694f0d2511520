"""`chainrule generate`: continue a prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from chainrule.cli.options import Checkpoint, Device, Json, RunPath, Threads, open_text_run, output, print_json
from chainrule.errors import ConfigError


def generate(
    run: RunPath,
    prompt: Annotated[str, typer.Option(help="Text to continue. Empty: start from BOS.")] = "",
    length: Annotated[int, typer.Option(min=1, help="Maximum number of tokens to generate.")] = 200,
    greedy: Annotated[bool, typer.Option("--greedy", help="Greedy decoding: always the most probable token.")] = False,
    temperature: Annotated[
        float | None,
        typer.Option(
            help="Sampling temperature: below 1 less random, above 1 more random. Default 1.", show_default=False
        ),
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(help="Sample from the K most probable tokens only.", show_default=False)
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(help="Nucleus sampling: the smallest set of tokens with this probability.", show_default=False),
    ] = None,
    min_p: Annotated[
        float | None, typer.Option(help="Minimum probability relative to the most probable token.", show_default=False)
    ] = None,
    repetition_penalty: Annotated[
        float | None,
        typer.Option(help="Above 1: tokens of the prompt or output become less probable.", show_default=False),
    ] = None,
    beam: Annotated[
        int | None,
        typer.Option(min=1, help="Beam search of this width instead of sampling.", show_default=False),
    ] = None,
    length_penalty: Annotated[float, typer.Option(help="With --beam: rank by log P / length^A.")] = 1.0,
    draft: Annotated[
        str | None,
        typer.Option(
            metavar="RUN|ngram|self",
            help="Speculative decoding: same text, less time. Draft tokens come from a smaller run, an n-gram model of "
            "the training data, or the text itself (prompt lookup).",
            show_default=False,
        ),
    ] = None,
    num: Annotated[int, typer.Option(min=1, help="Number of texts.")] = 1,
    seed: Annotated[int, typer.Option(help="Random seed; text i uses seed + i.")] = 0,
    stop: Annotated[
        list[str] | None, typer.Option(help="Stop before this string. May be repeated.", show_default=False)
    ] = None,
    allow_unknown: Annotated[
        bool,
        typer.Option(
            "--allow-unknown", help="Encode out-of-vocabulary words of the prompt as <unk> instead of failing."
        ),
    ] = False,
    checkpoint: Checkpoint = "best",
    device: Device = "auto",
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Continue a prompt by sampling, greedy decoding or beam search.

    The prompt and its continuation are printed; a single text is streamed. With --json the output is a list of texts
    with their log-probability, number of tokens and reason for stopping. For example

        chainrule generate runs/first --prompt "The " --length 300 --temperature 0.8
    """
    sampling: dict[str, Any] = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
    }
    given = {name: value for name, value in sampling.items() if value is not None}
    if greedy:
        excluded = [name for name in given if name != "repetition_penalty"]
        if excluded or beam is not None:
            other = "--beam" if beam is not None else "--" + excluded[0].replace("_", "-")
            raise ConfigError(f"--greedy and {other} exclude each other; remove one of them")
        given["greedy"] = True
    opened = open_text_run(run, device=device, threads=threads, checkpoint=checkpoint)
    if draft is not None:
        given["draft"] = draft if draft in ("ngram", "self") else open_text_run(Path(draft), device=device)
    options: dict[str, Any] = {
        "length": length, "num": num, "seed": seed, "stop": stop or [], "allow_unknown": allow_unknown, **given
    }  # fmt: skip
    if num == 1 and beam is None and not json:
        output.print(prompt, style="bold", end="", markup=False, highlight=False)
        for _ in opened.stream(prompt, show=_echo, **options):
            pass
        typer.echo()
        return
    texts = opened.generate(prompt, beam=beam, length_penalty=length_penalty, **options)
    if json:
        print_json([{**text._asdict(), "prompt": prompt} for text in texts])
        return
    for number, text in enumerate(texts):
        output.rule(f"{number + 1} of {num} · log P {text.log_prob:.2f}", align="left", style="dim")
        output.print(prompt, style="bold", end="", markup=False, highlight=False)
        typer.echo(text.text)


def _echo(text: str) -> None:
    typer.echo(text, nl=False)
