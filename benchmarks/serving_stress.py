"""The server under stress: thousands of good, bad, oversized and cancelled requests.

    python benchmarks/serving_stress.py [--requests 10000] [--threads 1] [--json FILE]

Every good answer must be that of the same request alone, no row may stay occupied, and the memory must not grow.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

from serving import chainrule_server, make_run, prompt_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = stress(Path(folder), arguments.requests, arguments.threads)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    if results["wrong"] or results["rows_left"]:
        raise SystemExit("answers were wrong, or rows are still occupied")


def stress(folder: Path, requests: int, threads: int) -> dict[str, Any]:
    """Many requests, good and bad, some of which are cancelled: every good answer must be that of the request alone."""
    run, _ = make_run(folder, 32, 1, name="tiny", vocabulary=300)
    with chainrule_server(run, threads, "--queue", "64", "--prompt-tokens", "300", "--rows", "16") as url:
        found = asyncio.run(storm(url, requests))
    print(f"stress: {requests:,} requests in {found['seconds']:.0f} s: {found['outcomes']}; "
          f"memory {found['memory_mb'][0]:.0f} MB after a tenth, {found['memory_mb'][1]:.0f} MB at the end; "
          f"rows left: {found['rows_left']}; wrong answers: {found['wrong']}")  # fmt: skip
    return found


async def storm(url: str, requests: int) -> dict[str, Any]:
    host, port = url.removeprefix("http://").split(":")
    good = [
        {"model": "tiny", "prompt": prompt_of(number, 1 + number % 40), "max_tokens": 1 + number % 30, "seed": number,
         "temperature": (number % 4) / 2, "stream": False}
        for number in range(60)
    ]  # fmt: skip
    expected = [text_of(await post(host, int(port), body)) for body in good]
    rng = random.Random(0)
    outcomes: dict[str, int] = {}
    wrong = 0
    memory: list[float] = []
    limit = asyncio.Semaphore(48)
    began = time.perf_counter()

    async def one(number: int) -> None:
        nonlocal wrong
        async with limit:
            kind = rng.choices(["good", "stream", "cancel", "bad", "large", "unknown"], [50, 15, 15, 8, 6, 6])[0]
            index = rng.randrange(len(good))
            body = dict(good[index])
            if kind == "bad":
                body |= rng.choice([{"max_tokens": -1}, {"prompt": {"a": 1}}, {"top_p": 7}, {"nonsense": 1}])
            elif kind == "large":
                body["prompt"] = prompt_of(number, 2000)
            elif kind == "unknown":
                body["model"] = "../../etc/passwd"
            elif kind in ("stream", "cancel"):
                body["stream"] = True
                if kind == "cancel":
                    body["max_tokens"] = 4000
            answer = await post(host, int(port), body, hang_up=kind == "cancel" and rng.random())
            outcomes[f"{kind} {answer[0]}"] = outcomes.get(f"{kind} {answer[0]}", 0) + 1
            if kind in ("good", "stream") and answer[0] == 200 and text_of(answer) != expected[index]:
                wrong += 1
            if number in (requests // 10, requests - 1):
                memory.append(await value_of(host, int(port), "process_resident"))

    await asyncio.gather(*(one(number) for number in range(requests)))
    for _ in range(50):
        left = await value_of(host, int(port), "chainrule_running_requests")
        if not left:
            break
        await asyncio.sleep(0.1)
    seconds = time.perf_counter() - began
    return {
        "outcomes": dict(sorted(outcomes.items())),
        "wrong": wrong,
        "rows_left": left,
        "memory_mb": memory,
        "seconds": seconds,
    }


async def post(host: str, port: int, body: dict[str, Any], hang_up: float | bool = False) -> tuple[int, str]:
    reader, writer = await asyncio.open_connection(host, port)
    content = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nConnection: close\r\n"
    writer.write(head.encode() + f"Content-Length: {len(content)}\r\n\r\n".encode() + content)
    if hang_up:
        with suppress(TimeoutError):
            await asyncio.wait_for(reader.read(200), float(hang_up) * 0.2)
        writer.close()
        return 0, ""
    received = (await reader.read(-1)).decode()
    writer.close()
    return int(received.split(" ", 2)[1]), received.split("\r\n\r\n", 1)[1]


def text_of(answer: tuple[int, str]) -> str:
    """The text of an answer, whole or as events."""
    content = answer[1]
    if not content.lstrip().startswith("{"):
        lines = [line[6:] for line in content.splitlines() if line.startswith("data: {")]
        return "".join(choice["text"] for line in lines for choice in json.loads(line)["choices"])
    text: str = json.loads(content[: content.rindex("}") + 1])["choices"][0]["text"]
    return text


async def value_of(host: str, port: int, name: str) -> float:
    """A metric of the server; its resident memory in MB is read from the system."""
    text = await asyncio.to_thread(lambda: urllib.request.urlopen(f"http://{host}:{port}/metrics").read().decode())
    if name == "process_resident":
        line = next((line for line in text.splitlines() if line.startswith("process_resident_memory_bytes ")), "x 0")
        return float(line.split()[1]) / 1e6
    return float(next(line for line in text.splitlines() if line.startswith(name + " ")).split()[1])


if __name__ == "__main__":
    main()
