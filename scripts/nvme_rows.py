#!/usr/bin/env python3
"""Weights on drives, each figure beside its goal; scripts/bench_nvme.sh says what the parts are and calls it.

    scripts/nvme_rows.py --coordinator FILE --read-rate FILE [--only PART] [--rounds 9] [--table-rounds 1]
        [--model opt-6.7b] [--layers 4] [--json FILE] DIR DIR

The directories should lie on different drives; what is written there is removed at the end. Whatever else uses the drives or
the cores is in the figures; `others` is its share of the cores' time beside each run."""

import contextlib
import json
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import measuring
import nvme_drives

PARTS = ["room", "rate", "unequal", "lane", "table", "experts"]
GIB = 1 << 30
ROOM = ["--model", "opt-30b", "--dummy-weights", "--layers", "8", "--batches", "1x2"]
ROOM_LIMIT_GIB = 3
BATCHES = ["1x8", "1x16", "1x32", "1x64", "2x32"]
LENGTHS = ["--prompt-len", "32", "--gen-len", "8"]
EXPERTS = ["--model", "qwen3-30b-a3b", "--dummy-weights", "--layers", "4", "--device", "none"]
EXPERT_OPS = ["--nvme-ops", "expert_gate,expert_up,expert_down"]
EXPERT_BATCHES = [1, 8, 64]
# Three matrices of 128 experts, 768 wide, in bf16, of each layer.
EXPERT_LAYERS_MB = 4 * 3 * 128 * 768 * 2048 * 2 / 1e6
EXPERT_CACHE = ["--expert-cache", "2GiB"]
# Bytes a second of the two drives of unequal speed.
UNEQUAL = [200_000_000, 50_000_000]


def cores_ms():
    """Time of all cores that was worked, and that was this process's or its children's."""
    fields = [int(field) for field in Path("/proc/stat").read_text(encoding="utf-8").split("\n", 1)[0].split()[1:]]
    all_ms = (sum(fields[:8]) - fields[3] - fields[4]) * 1000 / os.sysconf("SC_CLK_TCK")
    mine = resource.getrusage(resource.RUSAGE_CHILDREN)
    return all_ms, (mine.ru_utime + mine.ru_stime) * 1000, sum(fields[:8]) * 1000 / os.sysconf("SC_CLK_TCK")


class Bench:
    """Where things are, and runs."""

    def __init__(self, arguments, folder):
        self.arguments, self.folder = arguments, Path(folder)
        self.environment = {**os.environ, "XDG_CACHE_HOME": str(self.folder / "cache")}

    def keep(self, row):
        if self.arguments.json:
            with open(self.arguments.json, "a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")

    def call(self, words, **environment):
        command = [self.arguments.coordinator, *map(str, words)]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env={**self.environment, **environment}
        )
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr}")
        return done

    def run(self, words, **environment):
        """The report of a run, with the share of the cores' time that others took."""
        report = self.folder / "report.json"
        before = cores_ms()
        self.call([*words, "--report", report, "--quiet"], **environment)
        all_ms, mine_ms, passed_ms = (then - now for then, now in zip(cores_ms(), before))
        read = json.loads(report.read_text(encoding="utf-8"))
        return {**read, "others": round(max(0.0, all_ms - mine_ms) / max(passed_ms, 1.0), 3)}

    def answers(self, words, name, **environment):
        """The report of a run of eight-token answers, and their token ids."""
        requests, output = self.folder / "in.jsonl", self.folder / name
        prompts = [[2] + [11 + (7 * row + 13 * place) % 50000 for place in range(31)] for row in range(2)]
        lines = [json.dumps({"prompt": prompt, "max_tokens": 8, "ignore_eos": True}) for prompt in prompts]
        requests.write_text("\n".join(lines) + "\n", encoding="utf-8")
        report = self.run([*words, "--input", requests, "--output", output, "--force"], **environment)
        rows = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
        return report, [row["response"]["body"]["choices"][0]["token_ids"] for row in rows]


def nvme(directories):
    return [word for directory in directories for word in ("--nvme", directory)]


def stagings(directories):
    paths = [path for directory in directories for path in Path(directory).iterdir()]
    return [path for path in paths if (path / "index.json").exists()]


def clear(directories):
    for path in stagings(directories):
        shutil.rmtree(path)


def room(bench):
    directories = bench.arguments.directories[:2]
    limit = ["--dram", f"{ROOM_LIMIT_GIB}GiB", *nvme(directories)]
    report, tokens = bench.answers([*ROOM, *limit], "drives.jsonl")
    files = [path / "weights.bin" for path in stagings(directories)]
    pages = sum(nvme_drives.resident_pages(path) for path in files)
    staged_gib = sum(path.stat().st_size for path in files) / GIB
    _, expected = bench.answers(ROOM, "dram.jsonl")
    peak_gib = report["peak_pss_bytes"]["sum"] / GIB
    step_gib = sum(storage["step_bytes"] for storage in report["storages"].values()) / GIB
    print(f"room: OPT-30B, 8 layers, {staged_gib:.2f} GiB staged, {step_gib:.2f} GiB read in every step")
    print(f"  tokens of the run from DRAM     {'the same' if tokens == expected else 'OTHERS':>10}   goal the same")
    print(f"  peak PSS of all processes, GiB  {peak_gib:10.3f}   goal at most {ROOM_LIMIT_GIB}")
    print(f"  resident pages of the weights   {pages:10d}   goal 0")
    bench.keep({"part": "room", "same": tokens == expected, "peak_gib": peak_gib, "pages": pages, "step_gib": step_gib})
    clear(directories)


def rate(bench):
    arguments = bench.arguments
    pairs = nvme_drives.rate(arguments.read_rate, arguments.directories[0], arguments.rounds)
    medians = [statistics.median(column) for column in zip(*pairs)]
    print(f"  medians, GB/s                   {', '.join(f'{median:.3f}' for median in medians):>10}")
    if len(medians) > 1:
        ratio = nvme_drives.median_ratio(pairs)
        print(f"  ours over fio, median of pairs  {ratio:10.3f}   goal at least 0.95")
    bench.keep({"part": "rate", "rounds": pairs})


def unequal(bench):
    """Shares and finish times of two drives that the kernel holds to unequal rates, or else the readers themselves."""
    arguments = bench.arguments
    with contextlib.ExitStack() as stack:
        try:
            drives = stack.enter_context(nvme_drives.Throttle(arguments.directories[0], 2 << 30, UNEQUAL))
        except OSError as reason:
            print(f"unequal: the kernel cannot slow a drive down here ({reason}), so the readers do")
            drives = None
        if drives:
            balanced(bench, drives, "two loop devices under the kernel's throttle", {})
            slow, fast = (next(Path(drive).glob("*/weights.bin")) for drive in reversed(drives))
            rates = [nvme_drives.measured_rate(path) for path in (fast, slow)]
            print(f"  plain reads past the page cache, MB/s: {rates[0]:.0f}, {rates[1]:.0f}")
            clear(drives)
            return
    directories = arguments.directories[:2]
    faults = ";".join(f"rate={bytes_per_s}" for bytes_per_s in UNEQUAL)
    balanced(bench, directories, "readers that hold themselves to a rate", {"TANDEM_NVME_FAULTS": faults})
    clear(directories)


def balanced(bench, drives, what, environment):
    words = ["--model", bench.arguments.model, "--dummy-weights", "--layers", "1", "--batches", "1x2"]
    cache = bench.folder / "cache" / "tandem"
    shutil.rmtree(cache, ignore_errors=True)
    words += ["--nvme-ops", "all", *nvme(drives)]
    _, tokens = bench.answers(words, "unequal.jsonl", **environment)
    (kept,) = cache.glob("nvme-*.json")
    largest = json.loads(kept.read_text(encoding="utf-8"))["weights"][0]
    trajectory = largest["trajectory"]
    _, expected = bench.answers(words[: words.index("--nvme-ops")], "dram.jsonl")
    limits = ", ".join(f"{bytes_per_s / 1e6:.0f}" for bytes_per_s in UNEQUAL)
    print(f"unequal: {what}, {limits} MB/s; {', '.join(largest['ops'])} of {largest['size_bytes'] / 1e6:.0f} MB")
    for number, iteration in enumerate(trajectory["iterations"]):
        sizes, times = iteration["sizes"], [time or 0.0 for time in iteration["times_s"]]
        average = sum(times) / len(times)
        off = max(abs(time / average - 1) for time in times)
        shares = ", ".join(f"{size / sum(sizes):.1%}" for size in sizes)
        ends = ", ".join(f"{time * 1000:.0f}" for time in times)
        print(f"  iteration {number + 1}: shares {shares}; end after {ends} ms; {off:.1%} from their average")
    settled = "settled" if trajectory["is_balanced"] else "not settled"
    print(f"  {settled} after {len(trajectory['iterations'])} iterations      goal 12, within 5%")
    print(f"  tokens of the run from DRAM     {'the same' if tokens == expected else 'OTHERS':>10}   goal the same")
    bench.keep({"part": "unequal", "what": what, "trajectory": trajectory, "same": tokens == expected})


def lane(bench):
    """Of steady decode steps, the share in which the only drive's lane is busy."""
    directories = bench.arguments.directories[:1]
    trace = bench.folder / "trace.json"
    words = ["--model", bench.arguments.model, "--dummy-weights", "--layers", str(bench.arguments.layers)]
    words += ["--batches", "1x8", "--prompt-len", "32", "--gen-len", "16", "--nvme-ops", "all"]
    report = bench.run([*words, "--trace", trace, *nvme(directories)])
    events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    names = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"] == "thread_name"}
    spans = [event for event in events if event["ph"] == "X" and event["cat"] == "decode"]
    busy_us = {}
    last = max(event["args"]["step"] for event in spans)
    # The first steps fill the slots, and the last has nothing to read ahead.
    steps = range(min(event["args"]["step"] for event in spans) + 2, last)
    ends = {}
    for event in spans:
        name, step = names[event["pid"], event["tid"]], event["args"]["step"]
        if name == "nvme0.read":
            ends[step] = max(ends.get(step, 0.0), event["ts"] + event["dur"])
        if step in steps:
            busy_us[name] = busy_us.get(name, 0.0) + event["dur"]
    period_us = ends[steps[-1]] - ends[steps[0] - 1]
    share = busy_us["nvme0.read"] / period_us
    longest = max(busy_us, key=busy_us.get)
    shown = ", ".join(f"{name} {us / period_us:.1%}" for name, us in sorted(busy_us.items(), key=lambda one: -one[1]))
    print(f"lane: {len(steps)} decode steps of {period_us / len(steps) / 1000:.0f} ms, the longest lane is {longest}")
    print(f"  busy: {shown}")
    print(f"  nvme0.read busy                 {share:10.1%}   goal at least 95%")
    bench.keep({"part": "lane", "share": share, "longest": longest, "steps": len(steps), "others": report["others"]})
    clear(directories)


def largest_batch(bench, words):
    """The largest batch that fits, from the refusal of one that cannot."""
    command = [bench.arguments.coordinator, *map(str, words), "--batches", "1x65535", *LENGTHS, "--quiet"]
    said = subprocess.run(command, capture_output=True, text=True, check=False, env=bench.environment).stderr
    fitting = re.search(r"--batches 1x(\d+) fits", said)
    if fitting is None and "not even one sequence fits" not in said:
        sys.exit(f"{' '.join(command)}: {said}")
    return int(fitting.group(1)) if fitting else 0


def table(bench):
    """Throughput of decode over the batch, after Park and Egger's fig. 17."""
    arguments = bench.arguments
    model = ["--model", arguments.model, "--dummy-weights", "--layers", str(arguments.layers)]
    on = lambda count: ["--nvme-ops", "all", *nvme(arguments.directories[:count])]
    homes = {"DRAM": [], "1 drive": on(1), "2 drives": on(2)}
    print(f"table: {arguments.model}, {arguments.layers} layers, {' '.join(LENGTHS)}; decode, tokens/s")
    print(f"  {'':24}" + "".join(batches.rjust(9) for batches in BATCHES))
    for compress in ("none", "w4"):
        cells = {(home, batches): [] for home in homes for batches in BATCHES}
        for _ in range(arguments.table_rounds):
            # In turn, so that what else the machine does falls on all of them alike.
            for batches in BATCHES:
                for home, words in homes.items():
                    form = [*model, "--compress", compress, *words, "--batches", batches]
                    report = bench.run([*form, *LENGTHS])
                    cells[home, batches].append(report["decode_tokens_per_s"])
                    row = {"part": "table", "compress": compress, "home": home, "batches": batches}
                    bench.keep({**row, "tokens_per_s": cells[home, batches][-1], "others": report["others"]})
        for home in homes:
            rates = [statistics.median(cells[home, batches]) for batches in BATCHES]
            print(f"  {compress + ', ' + home:24}" + "".join(f"{rate:9.1f}" for rate in rates))
        clear(arguments.directories)
    bounds(bench, model, arguments.directories[:2])


def bounds(bench, model, directories):
    """The largest batches under limits of memory, from DRAM alone and with drives."""
    print("  largest batch under --dram      " + "".join(f"{gib:>8g} GiB" for gib in (1, 1.5, 2, 3, 4)))
    for compress in ("none", "w4"):
        for home, words in {"DRAM": [], "drives": nvme(directories)}.items():
            form = [*model, "--compress", compress, *words]
            sizes = [largest_batch(bench, [*form, "--dram", f"{int(gib * 1024)}MiB"]) for gib in (1, 1.5, 2, 3, 4)]
            print(f"  {compress + ', ' + home:32}" + "".join(f"{size or '-':>12}" for size in sizes))
            bench.keep({"part": "bounds", "compress": compress, "home": home, "largest": sizes})


def experts(bench):
    """Decode of a mixture of experts on one drive: the experts that rows are routed to against all of each layer."""
    directories = bench.arguments.directories[:1]
    ways = {
        "all": ["--nvme-experts", "all"],
        "routed": ["--nvme-experts", "routed"],
        "routed, cache": ["--nvme-experts", "routed", *EXPERT_CACHE],
    }
    words = [*EXPERTS, *EXPERT_OPS, *nvme(directories), "--prompt-len", "16", "--gen-len", "12"]
    print("experts: 4 layers of Qwen3-30B-A3B, bf16, on one drive; decode")
    print("  batch  way              tokens/s  MB a step  drive MB/s  of the drive's time")
    for batch in EXPERT_BATCHES:
        rows = {way: [] for way in ways}
        for _ in range(bench.arguments.table_rounds):
            drive_mb_s = 0.0
            for way, own in ways.items():
                report = bench.run([*words, *own, "--batches", f"1x{batch}"])
                if way == "all":
                    # Long reads with many requests in flight, in the same round.
                    (storage,) = report["storages"].values()
                    drive_mb_s = storage["read_bytes"] / storage["busy_s"] / 1e6
                routing = report["routing"]
                of_step = routing["missing_per_step"] or routing["used_per_step"]
                read = of_step / routing["experts"] if way != "all" else 1.0
                step_mb = read * EXPERT_LAYERS_MB
                tokens_per_s = report["decode_tokens_per_s"]
                share = step_mb / drive_mb_s * tokens_per_s / batch
                rows[way].append((tokens_per_s, step_mb, drive_mb_s, share))
                row = {"part": "experts", "batch": batch, "way": way, "tokens_per_s": tokens_per_s}
                bench.keep({**row, "step_mb": step_mb, "drive_mb_s": drive_mb_s, "others": report["others"]})
        for way, of_way in rows.items():
            tokens_per_s, step_mb, drive_mb_s, share = (statistics.median(column) for column in zip(*of_way))
            print(f"  {batch:5}  {way:16} {tokens_per_s:8.2f} {step_mb:10.0f} {drive_mb_s:11.0f} {share:12.2f}   goal 0.9")
    clear(directories)


def main():
    parser = measuring.parser(__doc__, rounds=9)
    parser.add_argument("--read-rate", required=True)
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--table-rounds", type=int, default=1)
    parser.add_argument("--model", default="opt-6.7b")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("directories", nargs="+")
    arguments = parser.parse_args()
    if len(arguments.directories) < 2:
        parser.error("two directories are needed")
    # Folders of its own: what else is staged on the drives is left alone.
    own = [Path(directory, "tandem-bench") for directory in arguments.directories]
    arguments.directories = [str(directory) for directory in own]
    for directory in own:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
    try:
        with tempfile.TemporaryDirectory() as folder:
            bench = Bench(arguments, folder)
            for part in PARTS:
                if arguments.only in (None, part):
                    globals()[part](bench)
    finally:
        for directory in own:
            shutil.rmtree(directory)


if __name__ == "__main__":
    main()
