#!/usr/bin/env python3
"""Speed of speculative decoding: two servers of one model, with and without, that answer the same requests in turn.

    scripts/speculation_rows.py --coordinator FILE --model MODEL [--draft-model MODEL] [--rounds 3] [--draft-max N] [--json FILE]

Drafts are those of prompt lookup or of a draft model. Each case is computed alone (batch 1) or with others (batch 8 and 32), greedily or by seed. Printed are the tokens per second of
both, the median of the paired ratios beside its goal, and the share of drafts that were accepted. Answers have to be
equal, byte for byte."""

import json
import re
import statistics
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import measuring
from served_streams import Server

NOTE = """The committee met on Tuesday, 4 March, in the library of the old town hall. Present were Anna Weber, who took
the chair, Tomas Novak, Priya Raman and Luis Ortega. The minutes of the previous meeting were read and approved without
changes. Anna Weber reported that the repair of the roof will cost 48,300 euros, of which the city pays half. Tomas Novak
asked whether the work could begin before the summer holidays. Priya Raman answered that the company needs six weeks and
can begin on 12 May at the earliest. Luis Ortega proposed to close the reading room during that time and to move the
children's books to the school next door. The proposal was accepted with three votes to one. The next meeting takes place
on Tuesday, 1 April, at the same time."""

PEOPLE = [("Anna Weber", 41, "Leipzig"), ("Tomas Novak", 29, "Brno"), ("Priya Raman", 35, "Chennai"), ("Luis Ortega", 52, "Quito"),
          ("Marta Silva", 47, "Porto"), ("Jonas Berg", 33, "Bergen"), ("Aiko Mori", 26, "Nagoya"), ("Peter Kovacs", 58, "Szeged")]
LIST = "\n".join(f"{name} is {age} years old and lives in {city}." for name, age, city in PEOPLE)
PERSON = {
    "type": "object",
    "properties": {"full_name": {"type": "string"}, "age_in_years": {"type": "integer"}, "city_of_residence": {"type": "string"}},
    "required": ["full_name", "age_in_years", "city_of_residence"],
    "additionalProperties": False,
}
SCHEMA = {
    "type": "object",
    "properties": {"people": {"type": "array", "items": PERSON, "minItems": 8, "maxItems": 8}},
    "required": ["people"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "people", "schema": SCHEMA, "strict": True}}
TOPICS = ["a lighthouse", "the history of bread", "a journey by train", "how rain forms", "a shy robot", "an old clock",
          "learning to swim", "a market in spring"]


def chat(text, new, **more):
    return {"messages": [{"role": "user", "content": text}], "max_tokens": new, "temperature": 0, **more}


def edits(number):
    return chat(f"Note {number}.\n{NOTE}\n\nRepeat this note word for word, but write March as April.", 320)


def extraction(number):
    return chat(f"List {number}.\n{LIST}\n\nExtract all people as JSON.", 500, response_format=FORMAT)


def free_text(number):
    topic = TOPICS[number % len(TOPICS)]
    return chat(f"Write a long story, number {number}, about {topic}.", 256, temperature=0.8, seed=number)


# Name, requests at a time, and the least ratio that is asked.
CASES = [
    ("extraction with a schema", extraction, 1, 1.5),
    ("edit of a quoted text", edits, 1, 1.5),
    ("free text", free_text, 1, 0.98),
    ("edit of a quoted text", edits, 8, 0.98),
    ("free text", free_text, 32, 0.98),
    ("extraction with a schema", extraction, 32, 0.98),
]


def ask(server, body):
    request = urllib.request.Request(
        f"{server.address}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=900) as reply:
        answer = json.load(reply)
    return answer["choices"][0]["message"]["content"], answer["usage"]["completion_tokens"]


def run(server, bodies):
    """The answers, and their tokens per second, prompts included."""
    began = time.monotonic()
    with ThreadPoolExecutor(len(bodies)) as pool:
        answers = list(pool.map(lambda body: ask(server, body), bodies))
    return [text for text, _ in answers], sum(tokens for _, tokens in answers) / (time.monotonic() - began)


def drafts(server):
    """Verified and accepted drafts so far."""
    with urllib.request.urlopen(f"{server.address}/metrics", timeout=60) as reply:
        text = reply.read().decode()
    names = ("draft", "accepted")
    found = [re.search(rf"spec_decode_num_{name}_tokens_total\S* (\d+)", text) for name in names]
    return [int(match[1]) if match else 0 for match in found]


def main():
    parser = measuring.parser(__doc__, "model", rounds=3)
    parser.add_argument("--draft-max", type=int, default=16)
    parser.add_argument("--draft-model")
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    options = ("--context", "2048")
    source = ("--draft-model", arguments.draft_model) if arguments.draft_model else ("--speculate", "ngram")
    plain = Server(arguments.coordinator, arguments.model, *options)
    drafting = Server(arguments.coordinator, arguments.model, *options, *source, "--draft-max", arguments.draft_max)
    print(f"{'case':28} {'batch':>5} {'plain':>8} {'drafts':>8} {'ratio':>6} {'goal':>5} {'accepted':>9}")
    for name, request, batch, goal in CASES:
        if arguments.only not in name:
            continue
        speeds, before, differing = [], drafts(drafting), 0
        for round_number in range(arguments.rounds):
            bodies = [request(1000 * round_number + number) for number in range(batch)]
            order = [plain, drafting] if round_number % 2 == 0 else [drafting, plain]
            results = {server: run(server, bodies) for server in order}
            differing += sum(a != b for a, b in zip(results[plain][0], results[drafting][0]))
            speeds.append((results[plain][1], results[drafting][1]))
        verified, accepted = (after - start for after, start in zip(drafts(drafting), before))
        ratio = statistics.median(with_drafts / without for without, with_drafts in speeds)
        plain_speed, draft_speed = (statistics.median(column) for column in zip(*speeds))
        share = accepted / verified if verified else 0
        mark = " " if ratio >= goal else "*"
        print(f"{name:28} {batch:5} {plain_speed:8.1f} {draft_speed:8.1f} {ratio:5.2f}{mark} {goal:5.2f} {accepted:5}/{verified} {share:.2f}", flush=True)
        if differing:
            print(f"  {differing} answers differ")
        row = {"case": name, "batch": batch, "plain": plain_speed, "drafts": draft_speed, "ratio": ratio, "goal": goal,
               "verified": verified, "accepted": accepted, "differing": differing}
        measuring.append(arguments.json, row)
    plain.end()
    drafting.end()


if __name__ == "__main__":
    main()
