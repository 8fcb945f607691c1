"""Drives themselves, for nvme_rows.py: what of a file is in the page cache, reads in turn with fio, and two loop devices
that the kernel holds to unequal rates."""

import ctypes
import json
import mmap
import os
import shutil
import statistics
import subprocess
from pathlib import Path

PAGE_BYTES = mmap.PAGESIZE
MIB = 1 << 20
SIZE_BYTES = 2 << 30
REQUEST_BYTES, DEPTH = MIB, 16
SECONDS = 2
# Long enough for what a throttle lets pass at once not to count.
CHECKED_MIB = 96


def resident_pages(path):
    """Pages of a file that are in the page cache."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    size_bytes = os.path.getsize(path)
    pages = (ctypes.c_ubyte * -(-size_bytes // PAGE_BYTES))()
    with open(path, "rb") as file:
        address = libc.mmap(None, size_bytes, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
        if address == ctypes.c_void_p(-1).value:
            raise OSError(ctypes.get_errno(), f"mmap {path}")
        failed = libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size_bytes), pages)
        libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(size_bytes))
    if failed:
        raise OSError(ctypes.get_errno(), f"mincore {path}")
    return sum(page & 1 for page in pages)


def tandem_rate(read_rate, directory, seconds):
    """GB/s of the reader, the median of its rounds."""
    command = [read_rate, "--dir", directory, "--size", str(SIZE_BYTES), "--rounds", "1000", "--seconds", str(seconds)]
    command += ["--request", str(REQUEST_BYTES), "--depth", str(DEPTH)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    how = next(line for line in said.splitlines() if "O_DIRECT" in line or "page cache" in line)
    return float(said.rsplit("median ", 1)[1].split()[0]), how


def fio_rate(path, seconds):
    """GB/s of fio over the same bytes, request and depth."""
    command = ["fio", "--name=read", f"--filename={path}", "--readonly", "--rw=read", "--direct=1", "--ioengine=io_uring"]
    command += [f"--bs={REQUEST_BYTES}", f"--iodepth={DEPTH}", f"--size={os.path.getsize(path)}", "--time_based"]
    command += [f"--runtime={seconds}", "--output-format=json"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return json.loads(said[said.index("{") :])["jobs"][0]["read"]["bw_bytes"] / 1e9


def rate(read_rate, directory, rounds):
    """Rounds of both in turn, as GB/s; `None` without fio."""
    if shutil.which("fio") is None:
        print("rate: fio is not installed, so nothing is compared; what the reader does alone:")
    folder = Path(directory, "rate")
    folder.mkdir(exist_ok=True)
    _, how = tandem_rate(read_rate, str(folder), 0)
    (staging,) = [path for path in folder.iterdir() if path.is_dir()]
    print(f"rate: {how}, {SIZE_BYTES >> 20} MiB, requests of {REQUEST_BYTES >> 10} KiB, {DEPTH} in flight")
    pairs = []
    for number in range(rounds):
        both = [lambda: tandem_rate(read_rate, str(folder), SECONDS)[0]]
        if shutil.which("fio"):
            both.append(lambda: fio_rate(staging / "weights.bin", SECONDS))
        # Who begins takes turns.
        order = range(len(both)) if number % 2 == 0 else reversed(range(len(both)))
        rates = {which: both[which]() for which in order}
        pairs.append([rates[which] for which in range(len(both))])
        print(f"  round {number + 1}: " + ", ".join(f"{name} {gbs:.3f}" for name, gbs in zip(["ours", "fio"], pairs[-1])))
    shutil.rmtree(folder)
    return pairs


class Throttle:
    """Two file systems on loop devices, which the kernel reads no faster than `rates`, bytes a second each, for this process
    and its children. Raises OSError, with the reason, where that is not possible."""

    def __init__(self, directory, size_bytes, rates):
        self.directory, self.size_bytes, self.rates = Path(directory), size_bytes, rates
        self.mounted, self.loops, self.group, self.before = [], [], None, None

    def call(self, *command):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise OSError(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
        return done.stdout.strip()

    def __enter__(self):
        if os.geteuid() != 0:
            raise OSError("only root may make loop devices")
        try:
            for number, _ in enumerate(self.rates):
                self.drive(number)
            self.slow_down()
        except BaseException:
            self.__exit__()
            raise
        return [str(path) for path in self.mounted]

    def drive(self, number):
        image, folder = self.directory / f"loop{number}.img", self.directory / f"loop{number}"
        with open(image, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, self.size_bytes)
        # Past the page cache below too, or the second read of a block would come from memory.
        loop = self.call("losetup", "--find", "--show", "--direct-io=on", image)
        self.loops.append(loop)
        self.call("mkfs.ext4", "-q", "-F", loop)
        folder.mkdir(exist_ok=True)
        self.call("mount", loop, folder)
        self.mounted.append(folder)

    def slow_down(self):
        """By io.max of cgroup v2, or by blkio of v1 where that has the devices."""
        lines = [f"{os.stat(loop).st_rdev >> 8}:{os.stat(loop).st_rdev & 0xff}" for loop in self.loops]
        v1, v2 = Path("/sys/fs/cgroup/blkio"), Path("/sys/fs/cgroup")
        if (v1 / "blkio.throttle.read_bps_device").exists():
            self.group, file, form = v1 / "tandem-bench", "blkio.throttle.read_bps_device", "{} {}"
            own = next(line for line in Path("/proc/self/cgroup").read_text().splitlines() if ":blkio:" in line)
            self.before = v1 / own.split(":", 2)[2].lstrip("/")
        elif "io" in (v2 / "cgroup.controllers").read_text().split():
            (v2 / "cgroup.subtree_control").write_text("+io")
            self.group, file, form = v2 / "tandem-bench", "io.max", "{} rbps={}"
            own = next(line for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
            self.before = v2 / own[3:].lstrip("/")
        else:
            raise OSError("no control group has the block devices")
        self.group.mkdir(exist_ok=True)
        for line, bytes_per_s in zip(lines, self.rates):
            (self.group / file).write_text(form.format(line, bytes_per_s))
        (self.group / "cgroup.procs").write_text(str(os.getpid()))

    def __exit__(self, *_):
        if self.before is not None and self.group.exists():
            (self.before / "cgroup.procs").write_text(str(os.getpid()))
            self.group.rmdir()
        for folder in self.mounted:
            subprocess.run(["umount", folder], check=False)
            folder.rmdir()
        for loop in self.loops:
            subprocess.run(["losetup", "--detach", loop], check=False)
        for image in self.directory.glob("loop*.img"):
            image.unlink()


def measured_rate(path):
    """MB/s of a plain read past the page cache, to see whether a throttle works."""
    command = ["dd", f"if={path}", "of=/dev/null", f"bs={MIB}", f"count={CHECKED_MIB}", "iflag=direct"]
    said = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "LC_ALL": "C"}).stderr
    seconds = float(said.rsplit(" copied, ", 1)[1].split()[0])
    return CHECKED_MIB * MIB / seconds / 1e6


def median_ratio(pairs):
    return statistics.median(ours / other for ours, other in pairs)
