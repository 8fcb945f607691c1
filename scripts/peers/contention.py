"""Whether the machine was this program's own while something was measured."""

import os
import resource
import threading
import time

# Below the first, and with less of twice the products, both threads are on one core.
SPIN_NS, SCALING = (80, 1000), 0.75
# Between the checks around a run, the fastest over the slowest.
MOVED = {"dram_gb_per_s": 0.25, "peak_gflop_per_s": 0.15}
# Of the time of all cores. A host that takes back freed memory takes a third of it for half a second; a hundredth or two,
# as programs pay that map much, is less than what runs differ by.
STOLEN = 0.05
# Of the time of all cores, what other programs of this machine may take.
OTHERS = 0.05
SAMPLE_S = 0.05


def contention(checks):
    """Why what ran between these checks of `roofline --check` says nothing, or None."""
    for values in checks:
        spin = values["spin_ns"]
        if spin is None:
            continue
        if spin > SPIN_NS[1] or spin < SPIN_NS[0] and values["scaling"] < SCALING:
            return f"round trip of the cores {spin:.0f} ns"
    for name, allowed in MOVED.items():
        figures = [values[name] for values in checks]
        if max(figures) > (1 + allowed) * min(figures):
            return f"{name} moved from {min(figures):.1f} to {max(figures):.1f}"
    return None


class Stolen:
    """Time of the cores that the host gave to somebody else, between entering and leaving."""

    def __enter__(self):
        self.samples = [(time.monotonic(), stolen_s())]
        self.ended = threading.Event()
        self.watch = threading.Thread(target=self._watch, daemon=True)
        self.watch.start()
        return self

    def _watch(self):
        while not self.ended.wait(SAMPLE_S):
            self.samples.append((time.monotonic(), stolen_s()))

    def __exit__(self, *_):
        self.ended.set()
        self.watch.join()
        self.samples.append((time.monotonic(), stolen_s()))

    def share(self, last_s=float("inf")):
        """Of the time of all cores in the last `last_s` seconds."""
        end, after_s = self.samples[-1]
        begin, before_s = next(sample for sample in self.samples if end - sample[0] <= last_s + SAMPLE_S)
        return (after_s - before_s) / ((end - begin) * os.cpu_count())

    def contention(self, last_s=float("inf")):
        """Why what ran in the last `last_s` seconds says nothing, or None."""
        share = self.share(last_s)
        return f"the host took {share:.1%} of the cores' time" if share > STOLEN else None


class Others:
    """Time of the cores that other programs of this machine took, between entering and leaving: all that were busy, without
    this program's children, which must all have ended in between, and theirs."""

    def __enter__(self):
        self.began = time.monotonic(), busy_s(), children_s()
        return self

    def __exit__(self, *_):
        began, busy, children = self.began
        lasted = (time.monotonic() - began) * os.cpu_count()
        self.share = max(0.0, busy_s() - busy - (children_s() - children)) / lasted

    def contention(self):
        """Why what ran says nothing, or None."""
        return f"other programs took {self.share:.1%} of the cores' time" if self.share > OTHERS else None


def busy_s():
    """Seconds of all cores since the machine started that were neither idle nor the host's; 0 where nothing tells."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            user, nice, system, _, _, irq, softirq = map(int, file.readline().split()[1:8])
            return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return 0.0


def children_s():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def stolen_s():
    """Seconds since the machine started. See proc_stat(5); 0 where the system does not tell."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            return int(file.readline().split()[8]) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return 0.0
