#!/usr/bin/env python3
"""Whether rows that are dealt to three coordinators have the answers of one: scripts/ray/check.py MODEL

A cluster of three nodes on this machine (ray.cluster_utils.Cluster) answers 300 prompts, some of
them sampled, from JSON Lines. In the middle one actor is killed with SIGKILL, and the coordinator of
another. Sorted by id, the output has the bytes of a single batch. The same for Parquet through
examples/ray_batch.py, and for the example in docs/python.md."""

import glob
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import ray
from ray.cluster_utils import Cluster

import tandem
import tandem.ray
from tandem.rows import Rows, columns, plain

ROOT = Path(__file__).resolve().parents[2]
NODES = 3
PROMPTS = 300
FIELDS = {"max_tokens": 12, "temperature": 0.8}
SERVER = {"device": "none", "cpu_threads": 1, "slots": 8}


class Watched(tandem.ray.Generate):
    """An actor that says in a folder where it runs, and after how many batches."""

    def __init__(self, *, seen, **given):
        super().__init__(**given)
        self._note = Path(seen) / f"{os.getpid()}.json"
        self._batches = 0

    def __call__(self, batch):
        self._say()
        result = super().__call__(batch)
        self._batches += 1
        self._say()
        return result

    def _say(self):
        node = ray.get_runtime_context().get_node_id()
        said = {
            "actor": os.getpid(),
            "server": self._server.pid,
            "node": node,
            "batches": self._batches,
        }
        temporary = self._note.with_suffix(".new")
        temporary.write_text(json.dumps(said))
        temporary.replace(self._note)


def notes(seen):
    return [json.loads(path.read_text()) for path in Path(seen).glob("*.json")]


class Killer(threading.Thread):
    """Kills one actor, and the coordinator of another, once every node has answered a batch."""

    def __init__(self, seen):
        super().__init__(daemon=True)
        self.seen, self.killed = seen, []

    def run(self):
        while len({note["node"] for note in notes(self.seen) if note["batches"] > 0}) < NODES:
            time.sleep(0.02)
        first, second = notes(self.seen)[:2]
        os.kill(first["actor"], signal.SIGKILL)
        os.kill(second["server"], signal.SIGKILL)
        self.killed = [("actor", first["actor"]), ("coordinator", second["server"])]
        # The coordinator of a killed actor ends by itself.
        until = time.monotonic() + 60
        while Path(f"/proc/{first['server']}").exists():
            assert time.monotonic() < until, "a coordinator outlived its actor"
            time.sleep(0.05)


def table():
    """Prompts of different lengths, with columns of their own."""
    words = "red green blue north south east west seven eight nine river stone".split()
    for index in range(PROMPTS):
        said = " ".join(words[(index * step) % len(words)] for step in range(1, 4 + index % 5))
        yield {"id": f"row-{index:03}", "prompt": f"Continue: {said}", "group": index % 7}


def lines(rows):
    """Rows as JSON Lines, sorted by id: what is compared, byte by byte."""
    ordered = sorted(rows, key=lambda row: row["id"])
    return "".join(json.dumps(row, sort_keys=True) + "\n" for row in ordered).encode()


def read_lines(folder):
    found = []
    for path in glob.glob(f"{folder}/**/*.json*", recursive=True):
        found += [json.loads(line) for line in Path(path).read_text().splitlines()]
    return found


def single(model, rows, fields):
    """The same by one coordinator, as a batch."""
    asked = Rows(fields=fields)
    answers = tandem.generate(model, [asked.request(row) for row in rows], device="none")
    return lines({**rows[answer.index], **columns(answer)} for answer in answers)


def dealt(model, work):
    """JSON Lines in, JSON Lines out, with two deaths in between."""
    seen, output = work / "seen", work / "answers"
    seen.mkdir()
    killer = Killer(seen)
    killer.start()
    given = {"seen": str(seen), "model": model, "fields": FIELDS, **SERVER}
    rows = ray.data.read_json(str(work / "prompts.jsonl")).repartition(target_num_rows_per_block=10)
    answered = rows.map_batches(
        Watched,
        fn_constructor_kwargs=given,
        batch_size=10,
        compute=ray.data.ActorPoolStrategy(size=NODES),
        num_cpus=0.5,
        resources={"coordinator": 1},
    )
    answered.write_json(str(output))
    killer.join(60)
    assert len(killer.killed) == 2, f"only {killer.killed} were killed: nothing was tested"
    for what, pid in killer.killed:
        print(f"killed in the middle: {what} {pid}")
    nodes = {note["node"] for note in notes(seen) if note["batches"]}
    assert len(nodes) == NODES, f"{len(nodes)} nodes answered"
    return lines(read_lines(output))


def example(model, work, wanted):
    """examples/ray_batch.py from Parquet to Parquet."""
    import pyarrow.parquet

    ray.data.read_json(str(work / "prompts.jsonl")).write_parquet(str(work / "prompts.parquet"))
    command = [sys.executable, str(ROOT / "examples" / "ray_batch.py"), "--model", model]
    command += ["--actors", "2", "--cpus", "0.5", "--slots", "8", "--device", "none"]
    command += ["--max-tokens", "4", str(work / "prompts.parquet"), str(work / "parquet")]
    environment = {**os.environ, "RAY_ADDRESS": ray.get_runtime_context().gcs_address}
    subprocess.run(command, check=True, env=environment)
    rows = []
    for path in glob.glob(f"{work}/parquet/*.parquet"):
        rows += pyarrow.parquet.read_table(path).to_pylist()
    assert lines(plain(rows)) == wanted, "the example's answers differ from a batch's"


def documented_example(model, work, wanted):
    """The first example under "Many machines" of docs/python.md, with this model and these files."""
    text = (ROOT / "docs/python.md").read_text().split("## Many machines", 1)[1]
    code = text.split("```python\n", 1)[1].split("```", 1)[0]
    for named, here in (
        ('"./SmolLM2"', repr(model)),
        ('"prompts.jsonl"', repr(str(work / "prompts.jsonl"))),
        ('"answers"', repr(str(work / "of_example"))),
    ):
        assert named in code, f"docs/python.md no longer contains {named}"
        code = code.replace(named, here)
    exec(compile(code, "docs/python.md", "exec"), {})
    found = read_lines(work / "of_example")
    assert lines(found) == wanted, "the example's answers differ from a batch's"


def main():
    model = sys.argv[1]
    rows = list(table())
    cluster = Cluster()
    for _ in range(NODES):
        # Objects are small; a node's store is by default a third of the machine's memory.
        cluster.add_node(num_cpus=2, resources={"coordinator": 1}, object_store_memory=100 << 20)
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        with tempfile.TemporaryDirectory() as folder:
            work = Path(folder)
            (work / "prompts.jsonl").write_bytes(lines(rows))
            wanted = single(model, rows, FIELDS)
            found = dealt(model, work)
            assert found == wanted, "dealt answers differ from a batch's"
            print(f"{len(rows)} rows by {NODES} coordinators: the {len(wanted)} bytes of one batch")
            few = single(model, rows, {"max_tokens": 4})
            example(model, work, few)
            documented_example(model, work, single(model, rows, {"max_tokens": 24}))
    finally:
        ray.shutdown()
        cluster.shutdown()
    print("examples/ray_batch.py and the example of docs/python.md: likewise")


if __name__ == "__main__":
    main()
