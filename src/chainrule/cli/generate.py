"""`chainrule generate`: continue a prompt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chainrule.cli.lines import progress_bar, with_progress
from chainrule.cli.options import (
    Checkpoint,
    Device,
    Gamma,
    Json,
    RunPath,
    Threads,
    Weights,
    errors,
    open_run,
    open_text_run,
    output,
    print_json,
    refuse_options,
    with_weights,
)
from chainrule.cli.prompts import read_prompts
from chainrule.errors import ConfigError
from chainrule.limits import LARGEST_SEED

if TYPE_CHECKING:
    from chainrule.decoding.drafts import Drafter
    from chainrule.tasks.generated_answers import GeneratedAnswerRun
    from chainrule.tasks.text import GeneratedText

OF_TEXT = (
    "length", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "draft", "weights", "seed", "stop",
    "interactive", "plain", "allow_unknown",
)  # fmt: skip
"""Options that a run has no use for that searches for answers."""


def generate(
    context: typer.Context,
    run: RunPath,
    prompt: Annotated[
        str | None,
        typer.Option(
            help="Text to continue; - reads one prompt per line from standard input. Default: standard input if it is "
            "a file or a pipe, else none (start from BOS).",
            show_default=False,
        ),
    ] = None,
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
            metavar="RUN|ngram|self|int8",
            help="Speculative decoding: same text, less time. Draft tokens come from a smaller run, an n-gram model of "
            "the training data, the text itself (prompt lookup), or the model with int8 weights.",
            show_default=False,
        ),
    ] = None,
    weights: Weights = "float32",
    gamma: Gamma = None,
    num: Annotated[int, typer.Option("--num", "-n", min=1, help="Number of texts for each prompt.")] = 1,
    seed: Annotated[int, typer.Option(min=0, max=LARGEST_SEED, help="Random seed; text i uses seed + i.")] = 0,
    stop: Annotated[
        list[str] | None, typer.Option(help="Stop before this string. May be repeated.", show_default=False)
    ] = None,
    plain: Annotated[
        bool | None,
        typer.Option(
            "--plain/--no-plain",
            help="One text per line and nothing else; line ends within a text become spaces. Default: for prompts from "
            "standard input, and for runs whose documents are lines.",
            show_default=False,
        ),
    ] = None,
    interactive: Annotated[
        bool,
        typer.Option("--interactive", "-i", help="Continue text that you type, line by line; /help lists commands."),
    ] = False,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Number of texts decoded at once.")] = 32,
    allow_unknown: Annotated[
        bool,
        typer.Option(
            "--allow-unknown", help="Encode out-of-vocabulary words of the prompt as `<unk>` instead of failing."
        ),
    ] = False,
    checkpoint: Checkpoint = "best",
    device: Device = "auto",
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Continue prompts by sampling, greedy decoding or beam search.

    The prompt and its continuation are printed; a single text is streamed. With --json the output is a list of texts
    with their log-probability, number of tokens and reason for stopping. For example

        chainrule generate runs/first --prompt "The " --length 300 --temperature 0.8

        chainrule generate runs/first < prompts.txt > continued.txt

        chainrule generate runs/names --num 20 --plain

        chainrule generate runs/first --interactive

    A t5 that was trained on pairs of question and answer prints its answer to each prompt.
    """
    given = _sampling_options(
        greedy, beam,
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=repetition_penalty,
    )  # fmt: skip
    refuse_options(context, "length_penalty", unless=beam is not None, needs="--beam")
    if interactive:
        _refuse_with_interactive(
            {"beam": beam is not None, "num": num > 1, "json": json, "plain": bool(plain), "prompt -": prompt == "-"}
        )
    loaded = open_run(run, device=device, threads=threads, checkpoint=checkpoint)
    from chainrule.tasks.base import require
    from chainrule.tasks.generated_answers import GeneratedAnswerRun
    from chainrule.tasks.text import TextRun

    if isinstance(loaded, GeneratedAnswerRun):
        refuse_options(context, *OF_TEXT, unless=False, needs="a run that generates text, not answers")
        _print_answers(loaded, prompt, beam=1 if greedy else beam or 5, num=num, json=json)
        return
    opened = require(loaded, TextRun)
    opened = open_text_run(run, device=device, threads=threads, checkpoint=checkpoint).with_gamma(gamma)
    opened = with_weights(opened, weights)
    drafter = None
    if draft is not None:
        drafter = opened.drafter(
            draft if draft in ("ngram", "self", "int8") else open_text_run(Path(draft), device=device)
        )
        given["draft"] = drafter
    given |= {"length": length, "stop": stop or [], "allow_unknown": allow_unknown}
    if interactive:
        from chainrule.cli.interactive import Session

        Session(opened, seed=seed, **given).run(prompt or "")
        return
    prompts = read_prompts(prompt)
    one_per_line = opened.of_documents or prompts.by_line if plain is None else plain
    streamed = len(prompts.texts) == num == 1 and beam is None and not (json or one_per_line or opened.right_to_left)
    if streamed:
        texts = opened.stream(prompts.texts[0], show=_echo, seed=seed, **given)
        output.print(prompts.texts[0], style="bold", end="", markup=False, highlight=False, soft_wrap=True)
        next(texts)
        typer.echo()
        _note_on_draft(drafter)
        return
    options = {"num": num, "seed": seed, "beam": beam, "length_penalty": length_penalty, "batch": batch, **given}
    total = num * len(prompts.texts)
    found: Iterable[GeneratedText]
    if beam is not None and len(prompts.texts) == 1:
        with progress_bar("beam search") as progress:
            found = list(opened.texts(prompts.texts, progress=progress, **options))
    else:
        found = opened.texts(prompts.texts, **options)
    if total > batch or (beam is not None and len(prompts.texts) > 1):
        found = with_progress(found, "generating", "texts", fraction=lambda done: done / total)
    if json:
        print_json([text._asdict() for text in found])
        _note_on_draft(drafter)
        return
    for number, text in enumerate(found, start=1):
        if not one_per_line:
            output.rule(f"{number} of {total} · log P {text.log_prob:.2f}", align="left", style="dim")
            _print_text(text.prompt, text.text, before=opened.right_to_left)
        elif opened.right_to_left:
            typer.echo(_one_line(text.text + text.prompt))
        else:
            typer.echo(_one_line(text.prompt + text.text))
    _note_on_draft(drafter)


def _print_answers(run: GeneratedAnswerRun, prompt: str | None, *, beam: int, num: int, json: bool) -> None:
    questions = read_prompts(prompt).texts
    found = run.answer(questions, beam=beam, num=num)
    if json:
        pairs = zip(questions, found, strict=True)
        print_json([{**answer._asdict(), "prompt": question} for question, answers in pairs for answer in answers])
        return
    for answers in found:
        for answer in answers:
            typer.echo(answer.text)


def _sampling_options(greedy: bool, beam: int | None, **sampling: float | None) -> dict[str, Any]:
    """Those of the sampling options that were given; refused where they exclude each other."""
    given: dict[str, Any] = {name: value for name, value in sampling.items() if value is not None}
    if greedy:
        excluded = [name for name in given if name != "repetition_penalty"]
        if excluded or beam is not None:
            other = "--beam" if beam is not None else "--" + excluded[0].replace("_", "-")
            raise ConfigError(f"--greedy and {other} exclude each other; remove one of them")
        given["greedy"] = True
    return given


def _refuse_with_interactive(given: Mapping[str, bool]) -> None:
    for option in (name for name, is_given in given.items() if is_given):
        raise ConfigError(f"--interactive and --{option} exclude each other; remove one of them")


def _print_text(prompt: str, text: str, *, before: bool) -> None:
    """A prompt in bold and its continuation, or what comes before it."""
    if before:
        typer.echo(text, nl=False)
    output.print(prompt, style="bold", end="", markup=False, highlight=False, soft_wrap=True)
    typer.echo("" if before else text)


def _one_line(text: str) -> str:
    return " ".join(text.splitlines())


def _note_on_draft(drafter: Drafter | None) -> None:
    """Tell the user where a draft did not pay off."""
    if drafter is not None and drafter.record is not None and (summary := drafter.record.summary) is not None:
        errors.print(f"draft: {summary}", style="dim", markup=False, highlight=False, soft_wrap=True)


def _echo(text: str) -> None:
    typer.echo(text, nl=False)
