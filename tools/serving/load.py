"""Loads a server with requests and reports tokens per second, time to the first token, gaps between tokens, and failures.

    python tools/serving/load.py URL --clients 16 --requests 32        clients that ask again as soon as they have an answer
    python tools/serving/load.py URL --rate 0.8 --requests 60          Poisson arrivals, so many a second
    python tools/serving/load.py URL --prefix-words 1600               the first token of two requests with a common beginning
    python tools/serving/load.py URL --idle 2000 --clients 4           beside connections that say nothing, or half a request

It speaks `/completion` of Brasa and of llama.cpp. Prompts are random words; a seed gives the same requests each time. Exit code 1 if
a request failed.
"""

import argparse
import asyncio
import json
import random
import sys
import time

from client import Server, request, share


async def closed_loop(server, bodies, clients):
    """Clients that take the next request once they have an answer."""
    waiting, answers = list(reversed(bodies)), []

    async def client():
        while waiting:
            answers.append(await server.ask("/completion", waiting.pop()))

    await asyncio.gather(*(client() for _ in range(clients)))
    return answers


async def arrivals(server, bodies, rate, rng):
    """Requests that arrive whether or not the server is ready for them."""
    tasks = []
    for body in bodies:
        tasks.append(asyncio.create_task(server.ask("/completion", body)))
        await asyncio.sleep(rng.expovariate(rate))
    return await asyncio.gather(*tasks)


async def idlers(server, count):
    """Connections that send nothing or half a head; fewer if the server takes no more."""
    opened = []
    for at in range(count):
        try:
            reader, writer = await server.connect()
        except OSError:
            break
        if at % 2:
            writer.write(b"POST /completion HTTP/1.1\r\nhost: x\r\n")
        opened.append((reader, writer))
    return opened


async def common_prefix(server, options):
    """First-token times of two requests that begin alike."""
    prefix = request(options.seed, (options.prefix_words,) * 2, (1, 1))["prompt"] + " "
    first, second = [
        await server.ask("/completion", request(seed, (8, 8), (8, 8), prefix=prefix)) for seed in (options.seed + 1, options.seed + 2)
    ]
    return [first, second], {
        "prompt_tokens": first.last.get("tokens_evaluated") or first.last.get("timings", {}).get("prompt_n"),
        "first_request_ms": 1e3 * first.first,
        "second_request_ms": 1e3 * second.first,
        "share": second.first / first.first if first.first else 0.0,
    }


def figures(answers, wall):
    """What the answers say of the server."""
    good = [answer for answer in answers if answer.status == 200 and not answer.error and answer.tokens]
    firsts = [answer.first for answer in good]
    gaps = [gap for answer in good for gap in answer.gaps]
    ends = [answer.end for answer in good]
    tokens = sum(answer.tokens for answer in good)
    report = {
        "requests": len(answers),
        "failures": len(answers) - len(good),
        "tokens": tokens,
        "tokens_per_s": tokens / wall,
        "first_p50_ms": 1e3 * share(firsts, 0.5),
        "first_p99_ms": 1e3 * share(firsts, 0.99),
        "gap_p50_ms": 1e3 * share(gaps, 0.5),
        "gap_p99_ms": 1e3 * share(gaps, 0.99),
        "slowest_over_median": max(ends, default=0) / share(ends, 0.5) if ends else 0.0,
    }
    timed = [answer for answer in good if "timings" in answer.last]
    if timed:
        # What the server itself says of its decoding and its prompts, for requests that ran alone.
        report["server_decode_tokens_per_s"] = share([answer.last["timings"]["predicted_per_second"] for answer in timed], 0.5)
        # A first part of two tokens, of which the first ended within a character, comes a step late.
        whole = [answer for answer in timed if answer.counts[:1] == [1]]
        if whole:
            report["added_ms"] = 1e3 * share([answer.first - answer.last["timings"]["prompt_ms"] / 1e3 for answer in whole], 0.5)
    return report


async def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--rate", type=float, help="Poisson arrivals a second, in place of --clients")
    parser.add_argument("--prompt-words", type=int, nargs=2, default=(75, 225), metavar=("LEAST", "MOST"))
    parser.add_argument("--answer-tokens", type=int, nargs=2, default=(32, 64), metavar=("LEAST", "MOST"))
    parser.add_argument("--prefix-words", type=int, help="measure two requests with a common beginning")
    parser.add_argument("--idle", type=int, default=0, help="connections that are open beside the load")
    parser.add_argument("--greedy", action="store_true", help="the most probable tokens, in place of sampled ones")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--label", default="")
    options = parser.parse_args()
    server = Server(options.url)
    idle = await idlers(server, options.idle)
    started = time.perf_counter()
    if options.prefix_words:
        answers, report = await common_prefix(server, options)
    else:
        seeds = range(options.seed * 100_000, options.seed * 100_000 + options.requests)
        fields = {"temperature": 0} if options.greedy else {}
        bodies = [request(seed, options.prompt_words, options.answer_tokens, **fields) for seed in seeds]
        if options.rate:
            answers = await arrivals(server, bodies, options.rate, random.Random(options.seed))
        else:
            answers = await closed_loop(server, bodies, options.clients)
        report = figures(answers, time.perf_counter() - started)
    if options.idle:
        report["idle_opened"] = len(idle)
        report["idle_still_open"] = sum(not reader.at_eof() for reader, _ in idle)
        for _, writer in idle:
            writer.close()
    rounded = {name: round(value, 3) if isinstance(value, float) else value for name, value in report.items()}
    print(json.dumps({"label": options.label, **rounded} if options.label else rounded))
    failed = [answer for answer in answers if answer.status != 200 or answer.error]
    for answer in failed[:5]:
        print(f"failed: {answer.status} {answer.error or answer.last}", file=sys.stderr)
    sys.exit(1 if failed or len(idle) < options.idle else 0)


asyncio.run(main())
