#!/usr/bin/env python3
"""Interactive streams of a server that computes a batch at the same time: time between tokens, and total throughput.

    scripts/batch_rows.py --coordinator FILE --model MODEL [--lines 2000] [--streams 8] [--stream-tokens 256] [--slots 16]
        [--layers N] [--phase-s 200] [--json FILE]

Three measurements by one server, in turn: the streams alone, a batch of LINES requests through /v1/batches alone, and the
same batch while the streams run. The streams are those of `coordinator bench-serve`, sent again until the batch has ended. Printed
are the 99th percentile of the times between two tokens of a stream, with and without the batch, and the processed
tokens (of prompts and answers) per second of the batch, with and without streams; at most MAX_ITL_RATIO times, and at
least MIN_THROUGHPUT_RATIO of it, are asked. A batch that has not ended after PHASE_S seconds is cancelled, so that the
whole takes less than ten minutes on any machine. Answers of both batches must be the same bytes but for their times."""

import json
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

import measuring
from served_streams import Server

MAX_ITL_RATIO, MIN_THROUGHPUT_RATIO = 1.2, 0.95
STREAM_PROMPT, ALONE_ROUNDS = 16, 2
LINE_PROMPT, LINE_TOKENS, CONTEXT = 16, 32, 512


def post(server, path, body, kind="application/json"):
    request = urllib.request.Request(f"{server.address}{path}", body, {"Content-Type": kind})
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)


def get(server, path):
    with urllib.request.urlopen(f"{server.address}{path}") as reply:
        return reply.read().decode()


def batch_input(lines):
    """Prompts of token ids that differ from their first token on, so that no line computes less than another."""
    line = {"method": "POST", "url": "/v1/completions"}
    for number in range(lines):
        prompt = [100 + (number * 7919 + place * 104729) % 15_000 for place in range(LINE_PROMPT)]
        body = {"prompt": prompt, "max_tokens": LINE_TOKENS, "ignore_eos": True}
        yield json.dumps({"custom_id": str(number), **line, "body": body})


class Batch:
    """A batch of a server, from its creation to its end."""

    def __init__(self, server, lines):
        self.server = server
        boundary, content = "batch-rows", "\n".join(batch_input(lines)) + "\n"
        parts = f'--{boundary}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        parts += f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n{content}\r\n'
        data = f"{parts}--{boundary}--\r\n".encode()
        file = post(server, "/v1/files", data, f"multipart/form-data; boundary={boundary}")["id"]
        body = {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"}
        self.id = post(server, "/v1/batches", json.dumps(body).encode())["id"]

    def record(self):
        return json.loads(get(self.server, f"/v1/batches/{self.id}"))

    def wait(self, *statuses):
        while (record := self.record())["status"] not in statuses:
            if record["status"] in ("failed", "expired"):
                sys.exit(f"the batch has ended: {record}")
            time.sleep(0.02)
        return record

    def run(self, limit_s):
        """Waits for the end, and cancels the batch after a time; returns the processed tokens per second."""
        before, began = processed(self.server), time.monotonic()
        while self.record()["status"] == "in_progress" and time.monotonic() - began < limit_s:
            time.sleep(0.02)
        took, tokens = time.monotonic() - began, processed(self.server) - before
        if self.record()["status"] == "in_progress":
            post(self.server, f"/v1/batches/{self.id}/cancel", b"")
        return tokens / took

    def answers(self):
        """The answers by their ids, with the same time of creation."""
        record = self.wait("completed", "cancelled")
        content = get(self.server, f"/v1/files/{record['output_file_id']}/content")
        lines = re.sub(r'"created":\d+', '"created":0', content).strip().split("\n")
        return {json.loads(line)["custom_id"]: line for line in lines}


def processed(server):
    """Tokens of prompts and answers that were computed so far."""
    metrics = get(server, "/metrics")
    names = ("tandem_prompt_tokens_total", "tandem_generation_tokens_total")
    return sum(int(re.search(rf"^{name} (\d+)$", metrics, re.MULTILINE).group(1)) for name in names)


def streams(arguments, server, seed):
    """The results of `bench-serve` with all streams at once."""
    command = [arguments.coordinator, "bench-serve", "--url", server.address, "--requests", arguments.streams]
    command += ["--input-len", STREAM_PROMPT, "--output-len", arguments.stream_tokens, "--vocab-size", 15_000, "--seed", seed, "--json"]
    done = subprocess.run([*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"bench-serve: {done.stderr}")
    return json.loads(done.stdout)


def batch_alone(arguments, server):
    """Processed tokens per second of a batch, and its answers."""
    batch = Batch(server, arguments.lines)
    batch.wait("in_progress", "finalizing", "completed")
    return batch.run(arguments.phase_s), batch.answers()


def batch_with_streams(arguments, server):
    """Results of the streams that ended before the batch did, processed tokens per second meanwhile, and the answers."""
    batch, found, over = Batch(server, arguments.lines), [], threading.Event()
    batch.wait("in_progress")

    def send():
        while not over.is_set():
            results = streams(arguments, server, 100 + len(found))
            if not over.is_set():
                found.append(results)

    sender = threading.Thread(target=send)
    sender.start()
    rate = batch.run(arguments.phase_s)
    over.set()
    sender.join()
    if not found:
        sys.exit("the batch ended before the first streams did; use more --lines or fewer --stream-tokens")
    return found, rate, batch.answers()


def main():
    parser = measuring.parser(__doc__, "model")
    parser.add_argument("--lines", type=int, default=2000)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--stream-tokens", type=int, default=256)
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--phase-s", type=float, default=200)
    parser.add_argument("--layers", type=int, help="random weights of this many layers of a MODEL that is a name")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        options = ["--slots", arguments.slots, "--context", CONTEXT, "--store-batches", folder]
        if arguments.layers:
            options += ["--dummy-weights", "--layers", arguments.layers]
        server = Server(arguments.coordinator, arguments.model, *options)
        try:
            streams(arguments, server, 0)
            alone = [streams(arguments, server, 1 + number) for number in range(ALONE_ROUNDS)]
            batch_rate, expected = batch_alone(arguments, server)
            with_batch, total_rate, answers = batch_with_streams(arguments, server)
        finally:
            server.end()
    common = expected.keys() & answers.keys()
    if not common or any(expected[one] != answers[one] for one in common):
        sys.exit("answers of the batch differ while streams run")
    name = f"{arguments.lines} lines, {arguments.streams} streams, {arguments.slots} slots"
    print(name.ljust(44) + "alone  together  ratio")
    row = {"case": name, "rounds": [len(alone), len(with_batch)], "answers": [len(expected), len(answers)]}
    for quantile in ("median", "p95", "p99", "max"):
        values = [statistics.median(one["itl_ms"][quantile] for one in each) for each in (alone, with_batch)]
        ratio, goal = values[1] / values[0], ""
        if quantile == "p99":
            goal = "met" if ratio <= MAX_ITL_RATIO else f"MISSED (at most {MAX_ITL_RATIO})"
        print(f"ms between tokens of a stream, {quantile}".ljust(40) + f"{values[0]:9.2f} {values[1]:9.2f} {ratio:6.2f}   {goal}")
        row[f"itl_{quantile}_ms"] = values
    ratio = total_rate / batch_rate
    goal = "met" if ratio >= MIN_THROUGHPUT_RATIO else f"MISSED (at least {MIN_THROUGHPUT_RATIO})"
    print("processed tokens per second".ljust(40) + f"{batch_rate:9.0f} {total_rate:9.0f} {ratio:6.2f}   {goal}")
    row["tokens_per_s"] = [batch_rate, total_rate]
    measuring.append(arguments.json, row)


if __name__ == "__main__":
    main()
