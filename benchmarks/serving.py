"""The server: throughput, latency, the cost of HTTP and the prefix cache, against other servers.

    python benchmarks/serving.py [--threads 1] [--repeats 3] [--json FILE] [--small] [--no-peers]

A GPT of 10M parameters in the GPT-2 layout is served by chainrule, by a plain FastAPI server that calls `generate` of
transformers, and by `transformers serve` (which needs accelerate; extra `bench`), each in a process of its own with the
same weights and threads. Clients are in another process; each sends one streaming request after the other. The engine
by itself and the server take turns; all values are medians of the turns.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

TOKENS = 64
SENTENCE = "the cat sat on a mat where there is smoke and fire said one cook to another bird in hand is worth two"
WORDS = SENTENCE.split()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3, help="turns of the engine and the server")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    parser.add_argument("--small", action="store_true", help="a smaller model and fewer requests: a trial")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--client", help=argparse.SUPPRESS)
    parser.add_argument("--plain-server", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.client:
        print(json.dumps(asyncio.run(load(**json.loads(arguments.client)))))
        return
    if arguments.plain_server:
        plain_server(Path(arguments.plain_server[0]), int(arguments.plain_server[1]), arguments.threads)
        return
    with tempfile.TemporaryDirectory() as folder:
        results = measure(Path(folder), arguments)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


def measure(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    width, layers = (128, 3) if arguments.small else (384, 6)
    run, exported = make_run(folder, width, layers)
    clients = [1, 8, 16] if arguments.small else [1, 8, 16, 32]
    results: dict[str, Any] = {"threads": arguments.threads, "tokens": TOKENS, "repeats": arguments.repeats}
    alone: dict[str, list[float]] = {str(count): [] for count in clients}
    served: dict[str, list[dict[str, Any]]] = {str(count): [] for count in clients}
    with chainrule_server(run, arguments.threads) as url:
        engine_rate = engine_rates(run, arguments)
        for _ in range(arguments.repeats):
            for count in clients:
                alone[str(count)].append(engine_rate(count))
                served[str(count)].append(clients_of(url, count, arguments))
        results["prefix"] = prefix(url)
    results["engine"] = {count: statistics.median(rates) for count, rates in alone.items()}
    results["chainrule"] = {count: median_of(rows) for count, rows in served.items()}
    report_engine(results["engine"])
    report("chainrule serve", results["chainrule"])
    if not arguments.no_peers:
        few = [1, 16]
        with plain_peer(exported, arguments.threads) as url:
            results["plain"] = {str(count): clients_of(url, count, arguments) for count in few}
        report("FastAPI + generate", results["plain"])
        try:
            with transformers_serve(exported, arguments.threads) as url:
                peer = {"model": str(exported), "rounds": 2}
                results["transformers serve"] = {str(count): clients_of(url, count, arguments, **peer) for count in few}
            report("transformers serve", results["transformers serve"])
        except (RuntimeError, OSError, ValueError) as error:
            print(f"transformers serve: not measured ({error})")
            results["transformers serve"] = {"error": str(error)}
    summary(results)
    return results


# The model


def make_run(folder: Path, width: int, layers: int, name: str = "gpt10m", vocabulary: int = 512) -> tuple[Path, Path]:
    """A run with random weights, and the same model for transformers."""
    import torch

    from chainrule.config import DataConfig, RunConfig
    from chainrule.families import build
    from chainrule.interop.exchange import export_huggingface
    from chainrule.tokenizers import train_tokenizer
    from chainrule.training.checkpoint import RunFolder

    tokenizer = train_tokenizer(f"bpe:{vocabulary}", lambda: [prompt_of(0, 5000)])  # a token for each word
    torch.manual_seed(0)
    heads = max(2, width // 64)
    settings = {"layout": "gpt2", "layers": layers, "width": width, "heads": heads, "context": 512}
    model = build("gpt", {"vocabulary": tokenizer.vocabulary, **settings})
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.05)
    values = model.config.model_dump(mode="json", exclude_none=True)
    config = RunConfig(
        family="gpt", tokenizer=f"bpe:{vocabulary}", data=DataConfig(train="none.txt", unit="stream"), model=values
    )
    run = RunFolder(folder / name)
    run.create(config, tokenizer)
    run.write_weights(model)
    exported = folder / f"{name}-exported"
    export_huggingface(model, tokenizer, exported)
    return run.path, exported


def prompt_of(seed: int, words: int) -> str:
    rng = random.Random(seed)
    return " ".join(rng.choice(WORDS) for _ in range(words))


# Servers


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def serving(command: Sequence[str], port: int, ready: str, seconds: float = 90) -> Iterator[str]:
    """A server in a process of its own; its address when it answers."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        url = f"http://127.0.0.1:{port}"
        try:
            end = time.monotonic() + seconds
            while True:
                if process.poll() is not None or time.monotonic() > end:
                    log.seek(0)
                    last = log.read().decode(errors="replace").strip().splitlines()[-1:]
                    raise RuntimeError(f"the server did not start: {' '.join(last)}")
                with suppress(OSError, urllib.error.URLError):
                    urllib.request.urlopen(url + ready, timeout=2)
                    break
                time.sleep(0.2)
            yield url
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def chainrule_server(run: Path, threads: int, *options: str) -> Iterator[str]:
    port = free_port()
    command = [sys.executable, "-m", "chainrule", "serve", str(run), "--port", str(port), "--threads", str(threads)]
    with serving([*command, "--log-level", "warning", *options], port, "/ready") as url:
        yield url


@contextmanager
def plain_peer(exported: Path, threads: int) -> Iterator[str]:
    port = free_port()
    command = [sys.executable, __file__, "--plain-server", str(exported), str(port), "--threads", str(threads)]
    with serving(command, port, "/health") as url:
        yield url


@contextmanager
def transformers_serve(exported: Path, threads: int) -> Iterator[str]:
    port = free_port()
    program = Path(sys.executable).parent / "transformers"
    command = [str(program), "serve", str(exported), "--port", str(port), "--device", "cpu", "--host", "127.0.0.1"]
    os.environ["OMP_NUM_THREADS"] = str(threads)
    with serving(command, port, "/health") as url:
        yield url


def plain_server(exported: Path, port: int, threads: int) -> None:
    """What one writes first: a thread for each request that calls `generate`."""
    import torch
    import uvicorn
    from fastapi import FastAPI
    from fastapi.responses import StreamingResponse
    from transformers import AutoTokenizer, GPT2LMHeadModel, TextIteratorStreamer

    torch.set_num_threads(threads)
    model = GPT2LMHeadModel.from_pretrained(exported).eval()
    tokenizer = AutoTokenizer.from_pretrained(exported)
    app = FastAPI()

    @app.get("/health")
    def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.post("/v1/completions")
    async def complete(body: dict[str, Any]) -> Any:
        ids = tokenizer(body["prompt"], return_tensors="pt").input_ids
        streamer = TextIteratorStreamer(tokenizer, skip_prompt=True)
        rules = {"do_sample": True, "max_new_tokens": body["max_tokens"], "min_new_tokens": body["max_tokens"]}
        threading.Thread(target=lambda: model.generate(ids, streamer=streamer, pad_token_id=0, **rules)).start()

        def events() -> Iterator[str]:
            for piece in streamer:
                yield f"data: {json.dumps({'choices': [{'text': piece}]})}\n\n"
            usage = {"completion_tokens": body["max_tokens"]}
            yield f"data: {json.dumps({'choices': [], 'usage': usage})}\n\ndata: [DONE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


# Clients


async def stream_once(host: str, port: int, body: dict[str, Any]) -> dict[str, Any]:
    """One streaming request: the times of its events, and the number of tokens."""
    reader, writer = await asyncio.open_connection(host, port)
    content = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nConnection: close\r\n"
    began = time.perf_counter()
    writer.write(head.encode() + f"Content-Length: {len(content)}\r\n\r\n".encode() + content)
    times: list[float] = []
    received = b""
    while part := await reader.read(1 << 16):
        if b"data: " in part:
            times.append(time.perf_counter() - began)
        received += part
    writer.close()
    status = int(received.split(b" ", 2)[1])
    usage = [line for line in received.split(b"\n") if b'"completion_tokens"' in line]
    count = len(times)
    if usage:
        count = json.loads(usage[-1].split(b"data: ", 1)[1])["usage"]["completion_tokens"]
    return {"status": status, "times": times, "tokens": count, "text": received.decode(errors="replace")}


async def load(
    url: str, clients: int, rounds: int, model: str, words: int = 12, tokens: int = TOKENS, offset: int = 0
) -> dict[str, Any]:
    """Clients that send one request after the other."""
    host, port = url.removeprefix("http://").split(":")
    found: list[dict[str, Any]] = []

    async def client(number: int) -> None:
        for step in range(rounds):
            seed = offset + number * 1000 + step
            body = {
                "model": model, "prompt": prompt_of(seed, words), "max_tokens": tokens, "seed": seed, "stream": True,
                "stream_options": {"include_usage": True},
            }  # fmt: skip
            found.append(await stream_once(host, int(port), body))

    began = time.perf_counter()
    await asyncio.gather(*(client(number) for number in range(clients)))
    seconds = time.perf_counter() - began
    bad = [one["text"][-300:] for one in found if one["status"] != 200 or not one["times"]]
    if bad:
        raise SystemExit(f"{len(bad)} requests failed: {bad[0]}")
    gaps = [later - before for one in found for before, later in zip(one["times"], one["times"][1:], strict=False)]
    first = [one["times"][0] for one in found]
    return {
        "tokens_per_second": sum(one["tokens"] for one in found) / seconds,
        "first_token": percentiles(first),
        "between_tokens": percentiles(gaps or [0.0]),
        "requests": len(found),
    }


def percentiles(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {"p50": statistics.median(ordered), "p95": ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]}


def clients_of(
    url: str, count: int, arguments: argparse.Namespace, *, model: str = "gpt10m", rounds: int = 0, **options: Any
) -> dict[str, Any]:
    """Run clients in a process of their own, after a short warm-up."""
    rounds = rounds or rounds_of(count, arguments)
    for warm in (True, False):
        how = {"url": url, "clients": min(count, 2) if warm else count, "rounds": 1 if warm else rounds, "model": model}
        how |= {"offset": 500_000 if warm else 0, **options}
        done = subprocess.run([sys.executable, __file__, "--client", json.dumps(how)], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr.strip().splitlines()[-1])
    found: dict[str, Any] = json.loads(done.stdout)
    return found


# Measurements


def engine_rates(run: Path, arguments: argparse.Namespace) -> Callable[[int], float]:
    """A function that gives the tokens per second of the engine without HTTP for a number of clients."""
    import torch

    from chainrule.decoding.sampling import Sampling
    from chainrule.serving.engine import Engine
    from chainrule.serving.texts import text_request
    from chainrule.tasks import load as load_run
    from chainrule.tasks.text import TextRun

    torch.set_num_threads(arguments.threads)
    opened = load_run(run, TextRun, device="cpu")

    def client(engine: Engine, number: int, rounds: int) -> None:
        for step in range(rounds):
            prompt = prompt_of(number * 1000 + step, 12)
            engine.generate(text_request(opened, prompt, max_tokens=TOKENS, sampling=Sampling(), seed=number))

    def rate(count: int) -> float:
        with Engine() as engine:
            client(engine, 500, 1)
            rounds = rounds_of(count, arguments)
            threads = [threading.Thread(target=client, args=(engine, number, rounds)) for number in range(count)]
            before, began = engine.stats.generated_tokens, time.perf_counter()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return (engine.stats.generated_tokens - before) / (time.perf_counter() - began)

    return rate


def rounds_of(count: int, arguments: argparse.Namespace) -> int:
    """Requests of each client."""
    return 2 if arguments.small else 4 if count <= 8 else 3


def median_of(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The median of each value of several turns."""
    first = rows[0]
    return {
        name: median_of([row[name] for row in rows])
        if isinstance(first[name], dict)
        else statistics.median(row[name] for row in rows)
        for name in first
    }


def prefix(url: str) -> dict[str, float]:
    """Time to the first token after a prefix of 200 tokens: new, and the second time."""
    host, port = url.removeprefix("http://").split(":")
    times: dict[str, list[float]] = {"new": [], "cached": []}
    for trial in range(10):
        begin = prompt_of(9000 + trial, 200)
        for kind in times:
            body = {"model": "gpt10m", "prompt": f"{begin} {kind}", "max_tokens": 1, "stream": True, "seed": 1}
            times[kind].append(asyncio.run(stream_once(host, int(port), body))["times"][0])
    found = {kind: statistics.median(values) for kind, values in times.items()}
    print(f"prefix of 200 tokens: first token after {1e3 * found['new']:.0f} ms, the second time "
          f"{1e3 * found['cached']:.0f} ms: {found['new'] / found['cached']:.1f} times shorter")  # fmt: skip
    return {**found, "ratio": found["new"] / found["cached"]}


# Tables


def report_engine(rates: dict[str, float]) -> None:
    print("engine without HTTP   " + "   ".join(f"{count} at once: {rate:6.0f} tok/s" for count, rate in rates.items()))


def report(name: str, rows: dict[str, Any]) -> None:
    print(f"\n{name:22} clients    tok/s   first token p50 / p95   between tokens p50 / p95")
    for count, row in rows.items():
        first, gap = row["first_token"], row["between_tokens"]
        times = f"{1e3 * first['p50']:8.0f} / {1e3 * first['p95']:5.0f} ms"
        gaps = f"{1e3 * gap['p50']:10.1f} / {1e3 * gap['p95']:5.1f} ms"
        print(f"{'':22} {count:>7} {row['tokens_per_second']:8.0f}   {times}   {gaps}")


def summary(results: dict[str, Any]) -> None:
    own = {count: row["tokens_per_second"] for count, row in results["chainrule"].items()}
    print(f"\n16 clients against one: {own['16'] / own['1']:.1f} times the tokens per second")
    print(f"cost of HTTP at 16 clients: {1 - own['16'] / results['engine']['16']:.0%} of the engine's rate")
    for name in ("plain", "transformers serve"):
        if "16" in results.get(name, {}):
            other = results[name]["16"]
            first = results["chainrule"]["16"]["first_token"]["p50"], other["first_token"]["p50"]
            print(
                f"16 clients against {name}: {own['16'] / other['tokens_per_second']:.1f} times the tokens per second, "
                f"first token after {1e3 * first[0]:.0f} instead of {1e3 * first[1]:.0f} ms"
            )


if __name__ == "__main__":
    main()
