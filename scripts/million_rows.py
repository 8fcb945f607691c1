#!/usr/bin/env python3
"""A million positions of one sequence on the CPU alone: prefilled, resumed by another process, and decoded (eLLM §7.2).

    scripts/million_rows.py --coordinator FILE --roofline FILE [--positions 1000000] [--layers 1] [--hours 1] [--folder DIR]

The model has the shapes of llama-3.2-1b and seeded weights; its configuration allows the positions. One server computes the
prompt in stages, each a longer part of it, and stores every page in its prompt cache; it stops before a stage that would not
end within the hours. A second server, of new processes, finds the stored pages, computes the rest of the prompt, which is
less than a page, and decodes. Its first answer must be that of the first server. With --folder the pages stay, and the next
run continues after them: a million positions that one run has no time for take several.

Printed and appended: positions reached, tokens per second of prefill and of the last stage, seconds to resume, seconds per
decoded token, the bytes that a decode step reads and their share of the bandwidth that the roofline measures, memory of all
processes, and the heap allocations of the workers while they decode."""

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

import measuring
from served_streams import Server

# Shapes of meta-llama/Llama-3.2-1B.
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "attention_bias": False,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}
NEW_TOKENS = 32
STAGES = 64
# Nobody waits for another's token, so that a step may have many rows of the prompt.
STEP_MS = 5000
# Positions of a page of the prompt cache for models of long contexts.
PAGE = 1024
# Positions after the last whole page: they are computed by each process and complete no page, so nothing is stored
# while tokens are decoded.
TAIL = 16
# What came before the first token (pages fetched, messages about them) is counted by the time of this one.
COUNTED_FROM = 12
ELEMENT_BYTES = 2


def position_bytes(layers):
    """Keys and values of a position."""
    return layers * 2 * CONFIG["num_key_value_heads"] * CONFIG["head_dim"] * ELEMENT_BYTES


def weight_bytes(layers):
    """Weights that a decode step reads: the layers' linears, and the head."""
    hidden, ffn = CONFIG["hidden_size"], CONFIG["intermediate_size"]
    kv = CONFIG["num_key_value_heads"] * CONFIG["head_dim"]
    layer = hidden * (2 * hidden + 2 * kv + 3 * ffn)
    return ELEMENT_BYTES * (layers * layer + CONFIG["vocab_size"] * hidden)


def stages(positions):
    """Ends of the parts of a prompt that are computed one after the other, in whole pages: each takes about as long."""
    # Attention makes the time grow with the square of the end.
    parts = (int(positions * (part / STAGES) ** 0.5) // PAGE * PAGE for part in range(1, STAGES))
    return [*sorted({end for end in parts if end > 0}), positions]


def metric(server, name):
    """The value of a metric of a server; 0 if it has none."""
    with urllib.request.urlopen(f"{server.address}/metrics", timeout=60) as reply:
        for line in reply.read().decode().splitlines():
            if line.startswith(f"{name} "):
                return float(line.split()[1])
    return 0.0


def children(pid):
    """The processes that any thread of a process has started, and theirs."""
    found = []
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
            found += [int(child) for child in file.read().split()]
    return found + [other for child in found for other in children(child)]


def memory_bytes(server):
    """Proportional set size of a server and all of its processes."""
    total = 0
    for pid in [server.process.pid, *children(server.process.pid)]:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
            total += sum(int(line.split()[1]) * 1024 for line in file if line.startswith("Pss:"))
    return total


def dram_bytes_per_s(roofline, threads):
    """The bandwidth of memory, as the roofline measures it just before."""
    command = [roofline, "--check", "--threads", str(threads or os.cpu_count())]
    checked = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(checked)["dram_gb_per_s"] * 1e9


class Decoded(list):
    """Times of an answer's tokens, and the workers' allocations at two of them."""

    def __init__(self, server):
        super().__init__()
        self.server, self.allocations = server, []

    def append(self, at):
        super().append(at)
        if len(self) in (COUNTED_FROM, NEW_TOKENS):
            self.allocations.append(metric(self.server, "tandem_worker_allocations"))


def ask(server, prompt, new, told=None):
    """An answer, the time from sending until each of its tokens, and how many tokens of the prompt were found computed."""
    told, usages, sent = [] if told is None else told, [], time.monotonic()
    answer = server.stream(prompt, new, 1, told, timeout_s=7 * 24 * 3600, usages=usages)
    return answer, [at - sent for at in told], usages[0]["prompt_tokens_details"]["cached_tokens"]


class Model:
    """A folder with the configuration, and the options of its servers."""

    def __init__(self, arguments, folder):
        self.arguments, self.path = arguments, os.path.join(folder, "model")
        self.pages = os.path.join(folder, "pages")
        os.makedirs(self.path, exist_ok=True)
        os.makedirs(self.pages, exist_ok=True)
        # The number of positions names the pages, so that every run of a folder has the same.
        config = {**CONFIG, "max_position_embeddings": 1 << 20}
        with open(os.path.join(self.path, "config.json"), "w", encoding="utf-8") as file:
            json.dump(config, file)

    def serve(self):
        positions = self.arguments.positions
        options = ["--dummy-weights", "--layers", self.arguments.layers, "--slots", 1]
        options += ["--context", positions + 2 * NEW_TOKENS, "--max-queue-tokens", 2 * positions + 1_000_000]
        options += ["--prompt-cache", self.pages, "--step-ms", STEP_MS]
        if self.arguments.threads:
            options += ["--threads", self.arguments.threads]
        return Server(self.arguments.coordinator, self.path, *options)


def prefill(model, prompt, hours):
    """Computes the stages that the hours allow, then the tail; its end, its answer, and a row for each stage."""
    began, rows, reached = time.monotonic(), [], 0
    server = model.serve()
    for end in stages(len(prompt) - TAIL):
        left_s = hours * 3600 - (time.monotonic() - began)
        # A stage takes about as long as the longest so far; stages that were found stored take no time.
        if rows and left_s < 1.2 * max(row["s"] for row in rows):
            break
        _, at, found = ask(server, prompt[:end], 1)
        rows.append({"end": end, "found": found, "s": at[0]})
        rate = (end - found) / at[0]
        print(f"  {end:9,} positions: {end - found:9,} computed in {at[0]:8.1f} s, {rate:8.0f} tokens/s", flush=True)
        reached = end
    reached += TAIL
    answer, _, _ = ask(server, prompt[:reached], 1)
    memory = memory_bytes(server)
    server.stop()
    return reached, answer, rows, memory


def main():
    parser = measuring.parser(__doc__, "roofline")
    parser.add_argument("--positions", type=int, default=1_000_000)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--hours", type=float, default=1.0, help="for the prefill of this run")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--folder", help="where pages are kept for the next run [default: a folder of this run alone]")
    arguments = parser.parse_args()
    if arguments.positions < 2 * PAGE or arguments.positions > (1 << 20) - 2 * NEW_TOKENS:
        sys.exit(f"--positions {arguments.positions}: from {2 * PAGE} to {(1 << 20) - 2 * NEW_TOKENS}")
    draw = random.Random(1)
    prompt = [draw.randrange(CONFIG["vocab_size"]) for _ in range(arguments.positions + TAIL)]
    dram = dram_bytes_per_s(arguments.roofline, arguments.threads)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as temporary:
        model = Model(arguments, arguments.folder or temporary)
        print(f"llama-3.2-1b's shapes, {arguments.layers} of {CONFIG['num_hidden_layers']} layers, weights of a seed")
        reached, expected, rows, prefill_memory = prefill(model, prompt, arguments.hours)
        server = model.serve()
        answer, at, found = ask(server, prompt[:reached], NEW_TOKENS)
        told = Decoded(server)
        again, steps, _ = ask(server, prompt[:reached], NEW_TOKENS, told)
        allocations = told.allocations[-1] - told.allocations[0]
        memory = memory_bytes(server)
        server.stop()
    if not answer[:1] == expected or again != answer:
        sys.exit("another answer after the prompt was resumed")
    if found < reached // PAGE * PAGE - PAGE:
        sys.exit(f"only {found} of {reached} positions were found")
    computed = sum(row["end"] - row["found"] for row in rows)
    spent = sum(row["s"] for row in rows)
    token_s = statistics.median(later - earlier for earlier, later in zip(steps, steps[1:]))
    read = weight_bytes(arguments.layers) + reached * position_bytes(arguments.layers)
    row = {
        "layers": arguments.layers,
        "positions": reached,
        "kv_bytes": reached * position_bytes(arguments.layers),
        "computed": computed,
        "prefill_s": spent,
        "last_stage_tokens_per_s": (rows[-1]["end"] - rows[-1]["found"]) / rows[-1]["s"],
        "resumed_s": at[0],
        "found": found,
        "token_s": token_s,
        "read_bytes": read,
        "dram_gb_per_s": dram / 1e9,
        "share_of_dram": read / token_s / dram,
        "prefill_pss_bytes": prefill_memory,
        "pss_bytes": memory,
        "allocations": allocations,
    }
    print(f"prefill       {computed:,} of {reached:,} positions in {spent:.0f} s")
    print(f"resumed       {found:,} positions found, first token after {at[0]:.2f} s")
    share = f"{row['share_of_dram']:.0%} of {row['dram_gb_per_s']:.1f} GB/s"
    print(f"decode        {1 / token_s:.2f} tokens/s, {read / token_s / 1e9:.1f} GB/s read, {share}")
    print(f"memory        {memory / 1e9:.2f} GB, of which keys and values are {row['kv_bytes'] / 1e9:.2f}")
    print(f"allocations   {allocations:.0f} of the workers in {NEW_TOKENS - COUNTED_FROM} steps")
    measuring.append(arguments.json, row)


if __name__ == "__main__":
    main()
