#!/usr/bin/env python3
"""How long hostile requests within the documented limits hold up others: a stream's next token, and /health.

    scripts/hostile_rows.py --coordinator FILE --model MODEL [--rounds 1] [--only TEXT] [--json FILE]

Beside a stream that runs all the time, each case sends requests at a time that ask for as much as one may. Printed are
the longest time between two tokens of the stream beyond what a step may take (--step-ms), and the longest time until
/health answers, in ms; GOAL_TOKEN_MS and GOAL_HEALTH_MS at most are asked. Requests that are refused with a 4xx are
part of a case: the limits are what is measured."""

import collections
import http.client
import json
import socket
import threading
import time

import measuring
from served_streams import Server

GOAL_TOKEN_MS, GOAL_HEALTH_MS, STEP_MS, CONTEXT, SLOTS = 250, 50, 100, 2048, 16
CALM_S, LIMIT_S, HEALTH_EVERY_S = 3.0, 120.0, 0.02
COMPLETIONS, CHAT, TOKENIZE = "/v1/completions", "/v1/chat/completions", "/tokenize"


def schema(number, properties):
    """An object of this many properties, 16 bytes of name each, that no other number has."""
    named = {f"property_{number}_{index}": {"type": "string", "maxLength": 9 + index % 90} for index in range(properties)}
    return {"type": "object", "properties": named, "required": list(named), "additionalProperties": False}


def with_schema(number, properties):
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema(number, properties)}}
    return {"prompt": "a", "max_tokens": 4, "response_format": form}


def cases():
    """Name, path, and the bodies that are sent at a time."""
    choices = [f"choice number {number}" for number in range(4096)]
    choice = {"prompt": "a", "max_tokens": 4, "n": 64, "structured_outputs": {"choice": choices}}
    stops = ["\u0004" + "x" * 250 + str(number) for number in range(60)]
    stop = {"prompt": "a", "max_tokens": 300, "ignore_eos": True, "stream": True, "stop": stops}
    logprobs = {"prompt": "a", "max_tokens": 400, "n": 32, "logprobs": 20, "ignore_eos": True, "temperature": 1}
    echoed = {"prompt": "a b " * 900, "max_tokens": 1, "echo": True, "logprobs": 20, "stream": True}
    metadata = '{"prompt":"a","max_tokens":2,"metadata":[' + ",".join(["1"] * 15_000_000) + "]}"
    text = {"prompt": "ab " * 10_000_000}
    messages = {"messages": [{"role": "user", "content": ""}] * 300_000, "max_tokens": 2}
    yield "choices: 4096 x n 64", COMPLETIONS, [choice] * 4
    yield "stop: 60 strings of 252 bytes, streamed", COMPLETIONS, [stop] * 8
    yield "stop: 300,000 strings", COMPLETIONS, [{**stop, "stop": [str(number) for number in range(300_000)]}] * 4
    yield "log-probabilities: 20 x 400 x n 32", COMPLETIONS, [logprobs] * 2
    yield "a prompt echoed with log-probabilities", COMPLETIONS, [echoed] * 4
    yield "24 schemas of 64 KB", COMPLETIONS, [with_schema(number, 1150) for number in range(24)]
    yield "16 schemas of 1900 properties", COMPLETIONS, [with_schema(number, 1900) for number in range(16)]
    yield "4 bodies of 30 MB that nothing reads", COMPLETIONS, [metadata] * 4
    yield "4 prompts of 30 MB", COMPLETIONS, [text] * 4
    yield "4 texts of 30 MB to tokenise", TOKENIZE, [text] * 4
    yield "4 texts of 2 MB to tokenise", TOKENIZE, [{"prompt": "ab " * 690_000, "return_token_strs": True}] * 4
    yield "300,000 messages", CHAT, [messages] * 2


class Target:
    """The server as clients reach it."""

    def __init__(self, address):
        self.host, port = address.removeprefix("http://").rsplit(":", 1)
        self.port = int(port)

    def connection(self):
        return http.client.HTTPConnection(self.host, self.port, timeout=LIMIT_S)

    def post(self, path, body, statuses):
        connection = self.connection()
        try:
            connection.request("POST", path, body, {"Content-Type": "application/json"})
            reply = connection.getresponse()
            while reply.read(1 << 20):
                pass
            statuses[reply.status] += 1
        except (OSError, http.client.HTTPException) as error:
            statuses[type(error).__name__] += 1
        finally:
            connection.close()


class Watch:
    """A stream that is started again whenever it ends, and questions after /health, until this is stopped."""

    def __init__(self, target):
        self.target, self.gaps, self.healths, self.over = target, [], [], False
        self.last_token = self.last_health = time.monotonic()
        self.threads = [threading.Thread(target=self.tokens), threading.Thread(target=self.health)]
        for thread in self.threads:
            thread.start()

    def tokens(self):
        body = {"prompt": [5, 6, 7], "max_tokens": CONTEXT - 64, "ignore_eos": True, "stream": True, "temperature": 1}
        while not self.over:
            connection = self.target.connection()
            connection.request("POST", COMPLETIONS, json.dumps(body), {"Content-Type": "application/json"})
            reply, last = connection.getresponse(), None
            while not self.over and (line := reply.readline()):
                if line.startswith(b"data: {"):
                    now = time.monotonic()
                    if last is not None:
                        self.gaps.append((now, now - last))
                    self.last_token = last = now
            # The first token of the next stream is not waited for.
            self.last_token = float("inf")
            connection.close()

    def health(self):
        connection = self.target.connection()
        connection.connect()
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while not self.over:
            asked = time.monotonic()
            connection.request("GET", "/health")
            reply = connection.getresponse()
            reply.read()
            now = time.monotonic()
            if reply.status != 200:
                raise RuntimeError(f"/health says {reply.status}")
            self.healths.append((now, now - asked))
            self.last_health = now
            time.sleep(HEALTH_EVERY_S)
        connection.close()

    def longest_ms(self, since):
        """The longest time between two tokens, and until /health answered, since then. What is waited for still counts."""
        now = time.monotonic()

        def longest(told, last):
            return 1000 * max(now - last, max((took for at, took in told if at >= since), default=0.0))

        return longest(self.gaps, self.last_token), longest(self.healths, self.last_health + HEALTH_EVERY_S)

    def stop(self):
        self.over = True
        for thread in self.threads:
            thread.join()


def beside(target, path, bodies):
    """Longest times in ms without and with the requests, and their statuses."""
    # Bytes: encoding a text would hold Python's lock, and with it both clocks, for tens of milliseconds.
    bodies = [(body if isinstance(body, str) else json.dumps(body)).encode() for body in bodies]
    watch, statuses = Watch(target), collections.Counter()
    began = time.monotonic()
    time.sleep(CALM_S)
    calm, sent = watch.longest_ms(began + 1.0), time.monotonic()
    threads = [threading.Thread(target=target.post, args=(path, body, statuses)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    time.sleep(0.5)
    under = watch.longest_ms(sent)
    watch.stop()
    return calm, under, statuses


def main():
    parser = measuring.parser(__doc__, "model", rounds=1)
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    arguments = parser.parse_args()
    options = ["--slots", SLOTS, "--context", CONTEXT, "--step-ms", STEP_MS]
    server = Server(arguments.coordinator, arguments.model, *options)
    goals = f"goals {GOAL_TOKEN_MS} and {GOAL_HEALTH_MS}"
    print(f"beside hostile requests, ms ({goals})".ljust(48) + "token late    calm   /health    calm   statuses")
    try:
        for name, path, bodies in cases():
            if arguments.only not in name:
                continue
            for _ in range(arguments.rounds):
                calm, under, statuses = beside(Target(server.address), path, bodies)
                late, calm_late = (max(0.0, longest[0] - STEP_MS) for longest in (under, calm))
                is_met = late <= GOAL_TOKEN_MS and under[1] <= GOAL_HEALTH_MS
                shown = " ".join(f"{status} x{count}" for status, count in sorted(statuses.items(), key=str))
                row = f"{name.ljust(48)}{late:10.0f}{calm_late:8.0f}{under[1]:10.0f}{calm[1]:8.0f}   {shown}"
                print(f"{row}   {'met' if is_met else 'MISSED'}", flush=True)
                line = {"case": name, "token_late_ms": late, "token_late_calm_ms": calm_late}
                line |= {"health_ms": under[1], "health_calm_ms": calm[1], "statuses": shown}
                measuring.append(arguments.json, line)
    finally:
        server.end()


if __name__ == "__main__":
    main()
