#!/usr/bin/env python3
"""FlexGen on a CUDA device: its own schedule and kernels, with random weights, under a cap of device memory.

    scripts/peers/flexgen_gpu.py [--flexgen FOLDER] [--model opt-30b] [--layers 48] [--vram-gib 16]
        [--prompt-len 512] [--gen-len 32] [--configs 1x50,2x50] [--percent 0 100 0 100 100 0] [--cpu-cache-compute]
        [--compress-weight] [--compress-cache] [--settings TEXT | --sweep] [--limit-s 180] [--json FILE]

FOLDER holds FlexGen's package `flexllmgen`, as scripts/peers/flexgen_gpu.sh fetches it. Its files stay as they are; what
follows is put into its modules after they are imported, and none of it is in its schedule or its kernels:

- Weights: instead of files, values drawn on the device (a normal distribution, or random 4-bit codes). Their pinned memory
  is what they need, to the page, and filled by all cores: torch's own pinned memory is rounded up to powers of two, which is
  30% more for OPT-30B.
- The relay buffers of its four copy threads hold the largest piece that is copied, not 2 GiB each.
- Torch is given tuples of slices, not lists, which it is about to refuse.
- No tokenizer and no downloads: prompts are fixed random ids without padding.

Weights stay where they are between configurations (number of batches x sequences in each), and between settings that place
them alike. As in FlexGen's own benchmark each run follows a short one, and the rates are of its own timers: its first token
is prefill, the others are decode. --cut-gen-len N runs N tokens and projects the others, as FlexGen does.

--settings: `Wg Wc Cg Cc Ag Ac [cpu] [w4] [kv4] [: CONFIGS]`, separated by `;`: the percentages of weights, KV cache and
activations on device and host; attention on the CPU; weights, KV cache in 4 bits. --sweep is a few of them that can fit OPT-30B
into 16 GiB. What share of weights is asked for matters only in steps, for FlexGen places whole tensors by their middle: up to
12% on the device are norms, 13 to 25% one of the four attention matrices (4.9 GB in 16 bits), from 26% on also half the FFN.

With cpu and several batches FlexGen overwrites the workspace of one batch with the next one's cache before it is read: its
tokens are wrong then, its times are not. The cap is that of torch's allocator: the driver's own context comes on top.

A line is printed, and one of JSON written, for each run as it ends. Runs that are too slow, that do not fit, or that fail
are such lines too."""

import argparse
import gc
import json
import math
import mmap
import os
import resource
import sys
import tempfile
import threading
import time
import traceback
import types
import zlib
from contextlib import contextmanager
from pathlib import Path

GIB = 1 << 30
# Smaller tensors are pinned as torch does it.
OWN_PINNED_BYTES = 1 << 20
# Of the host's memory, left to others.
HOST_SPARE_BYTES = 3 * GIB
# After a run should have ended by itself.
GRACE_S = 60
WEIGHT_DEVIATION = 0.02

SWEEP = [
    "0 100 0 100 100 0 cpu",
    "0 100 0 100 100 0",
    "0 100 20 80 100 0 cpu",
    "0 100 20 80 100 0",
    "20 80 0 100 100 0 cpu",
    "20 80 0 100 100 0",
]
SWEEP_4_BIT = [
    "0 100 0 100 100 0 w4 kv4",
    "0 100 100 0 100 0 w4 kv4",
    "20 80 0 100 100 0 w4 kv4",
    "30 70 0 100 100 0 w4 kv4",
]


class TooSlow(Exception):
    pass


class CopyFailed(Exception):
    pass


def truth(text):
    if text.lower() in ("1", "true", "yes"):
        return True
    if text.lower() in ("0", "false", "no"):
        return False
    raise argparse.ArgumentTypeError(f"{text}: write true or false")


def pairs(text):
    """`1x50,2x50` as [(1, 50), (2, 50)]."""
    found = [tuple(int(part) for part in pair.split("x")) for pair in text.split(",") if pair.strip()]
    if not found or any(len(pair) != 2 or min(pair) < 1 for pair in found):
        raise argparse.ArgumentTypeError(f"{text}: write batches x sequences, like 1x50,2x50")
    return found


def setting(text, configs):
    placed, _, own = text.partition(":")
    words = placed.split()
    percent = [int(word) for word in words[:6]]
    unknown = set(words[6:]) - {"cpu", "w4", "kv4"}
    if len(percent) != 6 or unknown or any(min(two) < 0 or sum(two) != 100 for two in zip(percent[::2], percent[1::2])):
        raise SystemExit(f"setting '{text.strip()}': six numbers, each two 100 together, then cpu, w4, kv4")
    return {
        "percent": percent,
        "cpu": "cpu" in words[6:],
        "w4": "w4" in words[6:],
        "kv4": "kv4" in words[6:],
        "configs": pairs(own) if own.strip() else configs,
    }


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flexgen", default=os.environ.get("FLEXGEN"), help="folder that holds the package flexllmgen")
    parser.add_argument("--model", default="opt-30b")
    parser.add_argument("--layers", type=int, help="hidden layers that are kept, all of them without it")
    parser.add_argument("--vram-gib", type=float, default=16)
    parser.add_argument("--prompt-len", type=int, default=512)
    parser.add_argument("--gen-len", type=int, default=32)
    parser.add_argument("--cut-gen-len", type=int, help="tokens that are run, the others projected (5 with --sweep)")
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--num-batches", type=int, default=1)
    parser.add_argument("--configs", type=pairs, help="instead of --num-batches and --batch, like 1x50,2x50")
    parser.add_argument("--percent", nargs=6, type=int, default=[0, 100, 0, 100, 100, 0], metavar="P")
    parser.add_argument("--cpu-cache-compute", action="store_true")
    parser.add_argument("--compress-weight", action="store_true")
    parser.add_argument("--compress-cache", action="store_true")
    parser.add_argument("--overlap", type=truth, default=True)
    parser.add_argument("--sep-layer", type=truth, default=True)
    parser.add_argument("--pin-weight", type=truth, default=True)
    parser.add_argument("--settings")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--limit-s", type=float, default=180, help="for one run, after which it ends as too slow")
    parser.add_argument("--json", help="a line is added for each run")
    asked = parser.parse_args()

    configs = asked.configs or [(asked.num_batches, asked.batch)]
    if asked.settings:
        texts = [text for text in asked.settings.split(";") if text.strip()]
    elif asked.sweep:
        texts = SWEEP_4_BIT if asked.compress_weight or asked.compress_cache else SWEEP
        asked.cut_gen_len = asked.cut_gen_len or 5
    else:
        flags = [("cpu", asked.cpu_cache_compute), ("w4", asked.compress_weight), ("kv4", asked.compress_cache)]
        texts = [" ".join([*map(str, asked.percent), *(word for word, given in flags if given)])]
    asked.settings = [setting(text, configs) for text in texts]
    if asked.cut_gen_len and not 4 <= asked.cut_gen_len <= asked.gen_len:
        raise SystemExit("--cut-gen-len: from 4 to --gen-len")
    return asked


def host_bytes(name):
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    return 0


def resident_bytes():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def power_of_two(count):
    return 1 << max(0, math.ceil(count) - 1).bit_length()


class Report:
    """A printed line and one of JSON for each run."""

    def __init__(self, path):
        self.path = path
        self.lock = threading.Lock()

    def add(self, row):
        with self.lock:
            text = [f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"
                    for name, value in row.items() if name != "costs_s"]
            print(" ".join(text).replace("\n", " "), flush=True)
            if self.path:
                with open(self.path, "a") as file:
                    file.write(json.dumps(row) + "\n")


class Pinned:
    """Host memory of exact size that the device reads directly, kept between models."""

    def __init__(self, torch):
        self.torch = torch
        self.works = True
        self.free, self.used = {}, []

    def take(self, count):
        """As many bytes, or None where memory cannot be pinned after it was allocated."""
        if self.free.get(count):
            buffer = self.free[count].pop()
        elif self.works:
            buffer = self._make(count)
        else:
            return None
        if buffer is not None:
            self.used.append(buffer)
        return buffer

    def _make(self, count):
        memory = mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        try:
            memory.madvise(mmap.MADV_HUGEPAGE)
        except (AttributeError, OSError):
            pass
        buffer = self.torch.frombuffer(memory, dtype=self.torch.uint8)
        # By all cores, so that the driver finds pages that are there.
        buffer.zero_()
        error = self.torch.cuda.cudart().cudaHostRegister(buffer.data_ptr(), count, 0)
        if int(error) != 0 or not buffer.is_pinned():
            print(f"memory is pinned by torch, for cudaHostRegister gave {error}", flush=True)
            self.works = False
            try:
                # The next kernel would report the error as its own.
                self.torch.zeros(1, device="cuda:0").add_(1)
            except RuntimeError:
                pass
            return None
        return buffer

    def give_back(self):
        for buffer in self.used:
            self.free.setdefault(buffer.numel(), []).append(buffer)
        self.used = []

    def drop_free(self):
        for buffers in self.free.values():
            for buffer in buffers:
                self.torch.cuda.cudart().cudaHostUnregister(buffer.data_ptr())
        self.free = {}

    def bytes(self):
        held = self.used + [buffer for buffers in self.free.values() for buffer in buffers]
        return sum(buffer.numel() for buffer in held)


class FlexGen:
    """FlexGen's modules, adapted, and what one process shares between models."""

    def __init__(self, relay_elements, offload):
        # Nothing of it is needed but this name.
        stub = types.ModuleType("transformers")
        stub.AutoTokenizer = None
        sys.modules["transformers"] = stub
        import torch
        from flexllmgen import compression, flex_opt, opt_config, pytorch_backend, timer, utils

        self.torch = torch
        self.opt, self.backend, self.utils = flex_opt, pytorch_backend, utils
        self.compression, self.configs, self.timers = compression, opt_config, timer.timers
        self.pinned = Pinned(torch)
        self.initialising = False
        self.deadline, self.failure = None, None
        self._adapt_indices()
        self._adapt_decompression()
        self._adapt_weights()
        pytorch_backend.GB = relay_elements

        gpu, cpu = pytorch_backend.TorchDevice("cuda:0"), pytorch_backend.TorchDevice("cpu")
        disk = pytorch_backend.TorchDisk(offload)
        mixed = pytorch_backend.TorchMixedDevice([gpu, cpu, disk])
        self.env = utils.ExecutionEnv(gpu=gpu, cpu=cpu, disk=disk, mixed=mixed)
        self.copy_threads = set(disk.copy_threads)
        threading.excepthook = self._copy_thread_failed
        self.model_class = self._model_class()
        self.weights, self.homes = None, None

    def _adapt_indices(self):
        original = self.compression.get_compressed_indices

        def as_tuples(tensor, indices, shape):
            of_data, of_scale = original(tensor, indices, shape)
            return tuple(of_data), tuple(of_scale)

        self.compression.get_compressed_indices = as_tuples

    def _adapt_decompression(self):
        device = self.compression.TorchCompressedDevice
        original, wrapped = device.decompress, self.backend.TorchTensor

        def decompress(this, tensor):
            config = tensor.data[2]
            dim, size = config.group_dim, config.group_size
            shape = list(tensor.shape)
            if shape[dim] % size == 0:
                return original(this, tensor)
            kept, shape[dim] = shape[dim], math.ceil(shape[dim] / size) * size
            whole = original(this, wrapped(tuple(shape), tensor.dtype, tensor.data, tensor.device))
            return whole.narrow(dim, 0, kept).contiguous()

        device.decompress = decompress

    def _adapt_weights(self):
        # No path holds it, so that every weight is asked of a file; and no file is looked for.
        self.opt.DUMMY_WEIGHT = "\0"
        self.opt.download_opt_weights = lambda *_: None
        tensor_class, device_class = self.backend.TorchTensor, self.backend.TorchDevice
        tensor_class.load_from_np_file = lambda tensor, name: self._fill(tensor, name)
        original = device_class.allocate
        types_of = self.utils.np_dtype_to_torch_dtype

        def allocate(device, shape, dtype, pin_memory=None, name=None):
            on_host = device.device_type == self.backend.DeviceType.CPU
            if self.initialising and on_host and pin_memory in (None, True):
                kind = types_of[dtype]
                count = math.prod(shape) * self.torch.empty((), dtype=kind).element_size()
                buffer = self.pinned.take(count) if count >= OWN_PINNED_BYTES else None
                if buffer is not None:
                    return tensor_class.create_from_torch(buffer.view(kind).view(tuple(shape)), device, name=name)
            return original(device, shape, dtype, pin_memory=pin_memory, name=name)

        device_class.allocate = allocate

    def _fill(self, tensor, name):
        """Values that keep the activations of all layers in range, the same wherever the tensor lies."""
        seed = zlib.crc32(name.rpartition("-np")[2].encode())
        source = self.torch.Generator(device=self.env.gpu.dev).manual_seed(seed)
        if tensor.device.device_type == self.backend.DeviceType.COMPRESSED:
            codes, scales, config = tensor.data
            self._draw(codes.data, lambda part: part.random_(0, 256, generator=source))
            steps, least = scales.data.split(1, dim=config.group_dim + 1)
            steps.fill_((2**config.num_bits - 1) / (6 * WEIGHT_DEVIATION))
            least.fill_(-3 * WEIGHT_DEVIATION)
        elif name.endswith(".bias"):
            tensor.data.zero_()
        elif name.endswith("layer_norm.weight"):
            tensor.data.fill_(1)
        else:
            self._draw(tensor.data, lambda part: part.normal_(0, WEIGHT_DEVIATION, generator=source))

    def _draw(self, data, draw):
        """On the device, piece by piece, as one core would take minutes for the weights of a large model."""
        flat = data.view(-1)
        piece = 1 << 26
        for begin in range(0, flat.numel(), piece):
            part = flat[begin : begin + piece]
            if data.device == self.env.gpu.dev:
                draw(part)
            else:
                part.copy_(draw(self.torch.empty_like(part, device=self.env.gpu.dev)), non_blocking=True)

    def _copy_thread_failed(self, what):
        """A copy thread has ended: its copy counts as done, so that nobody waits for it, another takes its place, and the
        run ends."""
        if what.thread not in self.copy_threads:
            threading.__excepthook__(what)
            return
        self.failure = f"copy thread: {what.exc_type.__name__}: {what.exc_value}"
        disk = self.env.disk
        thread = threading.Thread(target=self.backend.copy_worker_func, args=(disk.copy_queue, 0))
        disk.copy_threads[disk.copy_threads.index(what.thread)] = thread
        self.copy_threads.add(thread)
        try:
            disk.copy_queue.task_done()
        except ValueError:
            # It had not begun a copy: another would end the same way.
            self.copy_threads.discard(thread)
        thread.start()

    def _model_class(self):
        shared = self

        class Model(self.opt.OptLM):
            def init_all_weights(self):
                if shared.homes is None:
                    super().init_all_weights()
                else:
                    self.weight_home = shared.homes

            def delete_all_weights(self):
                pass

            def compute_layer(self, i, j, k):
                if shared.failure:
                    raise CopyFailed(shared.failure)
                if shared.deadline and time.monotonic() > shared.deadline:
                    raise TooSlow
                super().compute_layer(i, j, k)

        return Model

    def policy(self, asked, chosen, batches, batch):
        config = self.compression.CompressionConfig
        return self.opt.Policy(
            gpu_batch_size=batch, num_gpu_batches=batches,
            w_gpu_percent=chosen["percent"][0], w_cpu_percent=chosen["percent"][1],
            cache_gpu_percent=chosen["percent"][2], cache_cpu_percent=chosen["percent"][3],
            act_gpu_percent=chosen["percent"][4], act_cpu_percent=chosen["percent"][5],
            overlap=asked.overlap, sep_layer=asked.sep_layer, pin_weight=asked.pin_weight,
            cpu_cache_compute=chosen["cpu"], attn_sparsity=1.0,
            compress_weight=chosen["w4"],
            comp_weight_config=config(num_bits=4, group_size=64, group_dim=0, symmetric=False),
            compress_cache=chosen["kv4"],
            comp_cache_config=config(num_bits=4, group_size=64, group_dim=2, symmetric=False))

    def model(self, config, policy):
        """A model and the seconds its weights took: 0 if they were there."""
        wanted = (policy.w_gpu_percent, policy.w_cpu_percent, policy.compress_weight, policy.sep_layer, policy.pin_weight)
        if wanted == self.weights:
            return self.model_class(config, self.env, "_DUMMY_", policy), 0.0
        self.drop_weights(keep=self.weights is not None and self.weights[2] == policy.compress_weight)
        begin = time.monotonic()
        self.initialising = True
        try:
            model = self.model_class(config, self.env, "_DUMMY_", policy)
            self.torch.cuda.synchronize()
        finally:
            self.initialising = False
        self.pinned.drop_free()
        self.weights, self.homes = wanted, model.weight_home
        return model, time.monotonic() - begin

    def drop_weights(self, keep=False):
        self.weights, self.homes = None, None
        self.pinned.give_back()
        if not keep:
            self.pinned.drop_free()
        gc.collect()
        self.torch.cuda.empty_cache()

    def weight_bytes(self):
        """Of host and device."""
        count = {"host": 0, "device": 0}

        def add(value):
            if isinstance(value, self.utils.ValueHolder):
                value = value.val
            if isinstance(value, self.backend.TorchTensor):
                if value.device.device_type == self.backend.DeviceType.COMPRESSED:
                    add(value.data[:2])
                else:
                    count["device" if value.device is self.env.gpu else "host"] += int(value.bytes)
            elif isinstance(value, (list, tuple)):
                for each in value:
                    add(each)

        add(self.homes)
        return count["host"], count["device"]

    def settle(self):
        """After a run, also one that ended half-way."""
        self.env.disk.synchronize()
        self.torch.cuda.synchronize()
        self.env.cpu.del_attention_compute_workspace()
        self.env.cpu.compressed_device.data_decompress_workspace = None
        self.failure, self.deadline = None, None
        gc.collect()
        self.torch.cuda.empty_cache()


def copy_rate(torch):
    """Bytes a second of a plain pinned copy to the device."""
    count, copies = 256 << 20, 20
    source = torch.empty(count, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(count, dtype=torch.uint8, device="cuda:0")
    target.copy_(source, non_blocking=True)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(copies):
        target.copy_(source, non_blocking=True)
    torch.cuda.synchronize()
    return count * copies / (time.perf_counter() - begin)


def host_need(config, policy, asked):
    """Bytes of the host that a run needs beside the weights: its KV cache and the buffers around it."""
    tokens = asked.prompt_len + asked.gen_len - 1
    layer = tokens * policy.gpu_batch_size * config.input_dim
    share = policy.cache_cpu_percent / 100
    # Four bits, and two 16-bit numbers for each 64.
    each = 0.5 + 4 / 64 if policy.compress_cache else 2
    cache = 2 * layer * each * share * config.num_hidden_layers * policy.num_gpu_batches
    if policy.cpu_cache_compute:
        # The workspace, and K and V once more as attention wants them.
        around = 4 * layer * 4
    else:
        around = 4 * power_of_two(layer * each * share)
    return cache + around


@contextmanager
def watched(seconds, ended):
    """Ends the process if what runs inside does not come back."""
    timer = threading.Timer(seconds, ended)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def prompts(count, length, vocabulary, draw):
    return [[int(token) for token in row] for row in draw.integers(4, vocabulary, (count, length))]


def run(flex, asked, chosen, batches, batch, config, common):
    """One run, as a row."""
    import numpy

    torch = flex.torch
    row = dict(common)
    policy = flex.policy(asked, chosen, batches, batch)
    sequences = batches * batch
    step = "weights"
    try:
        if flex.weights is None:
            share = 0.5 + 4 / 64 if chosen["w4"] else 2
            need = config.model_bytes() / 2 * share * policy.w_cpu_percent / 100
            if need > host_bytes("MemAvailable") - HOST_SPARE_BYTES:
                return row | {"status": "host memory", "host_need_gib": need / GIB}
        model, row["init_s"] = flex.model(config, policy)
        row["weights_host_bytes"], row["weights_device_bytes"] = flex.weight_bytes()
        need = host_need(config, policy, asked)
        if need > host_bytes("MemAvailable") - HOST_SPARE_BYTES:
            return row | {"status": "host memory", "host_need_gib": need / GIB,
                          "host_available_gib": host_bytes("MemAvailable") / GIB}

        draw = numpy.random.default_rng(1)
        short, whole = (prompts(sequences, length, config.vocab_size, draw) for length in (32, asked.prompt_len))
        torch.cuda.reset_peak_memory_stats()
        flex.deadline = time.monotonic() + asked.limit_s
        flex.timers("generate").reset()
        step = "warm-up"
        begin = time.monotonic()
        model.generate(short, max_new_tokens=1)
        row["warmup_s"] = time.monotonic() - begin
        flex.timers("generate").reset()
        step = "run"
        output = model.generate(whole, max_new_tokens=asked.gen_len, cut_gen_len=asked.cut_gen_len)
        costs = list(flex.timers("generate").costs)
        row |= rates(flex, asked, sequences, costs)
        made = output[:, asked.prompt_len : asked.prompt_len + len(costs)]
        row["tokens_crc"] = zlib.crc32(numpy.ascontiguousarray(made).tobytes())
        row["distinct_tokens"] = len(numpy.unique(made))
    except TooSlow:
        costs = list(flex.timers("generate").costs)
        row |= {"status": "too slow", "during": step, "tokens_done": len(costs), "costs_s": costs}
    except torch.OutOfMemoryError as error:
        row |= {"status": "device memory", "during": step, "error": str(error)[:200]}
    except Exception as error:
        traceback.print_exc()
        row |= {"status": "failed", "during": step, "error": f"{type(error).__name__}: {error}"[:400]}
    if step == "weights":
        flex.drop_weights()
    row["peak_device_bytes"] = torch.cuda.max_memory_allocated()
    row["peak_device_reserved_bytes"] = torch.cuda.max_memory_reserved()
    by_torch = getattr(torch.cuda, "host_memory_stats", dict)()
    row["pinned_bytes"] = flex.pinned.bytes() + by_torch.get("allocated_bytes.current", 0)
    row["peak_resident_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    row["resident_bytes"] = resident_bytes()
    return row


def rates(flex, asked, sequences, costs):
    prefill, decode = costs[0], sum(costs[1:])
    if asked.cut_gen_len:
        decode = float(flex.utils.project_decode_latency(costs, asked.prompt_len, asked.gen_len))
    return {
        "status": "ok",
        "projected": bool(asked.cut_gen_len),
        "prefill_s": prefill,
        "decode_s": decode,
        "prefill_tokens_per_s": sequences * asked.prompt_len / prefill,
        "decode_tokens_per_s": sequences * (asked.gen_len - 1) / decode if decode else 0.0,
        "tokens_per_s": sequences * asked.gen_len / (prefill + decode),
        "costs_s": costs,
    }


def main():
    asked = arguments()
    beside = Path(__file__).resolve().parent
    folder = Path(asked.flexgen) if asked.flexgen else beside
    if not (folder / "flexllmgen" / "flex_opt.py").exists():
        raise SystemExit(f"{folder}: no FlexGen there; scripts/peers/flexgen_gpu.sh fetches it")
    began = time.monotonic()
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("torch finds no CUDA device")
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, asked.vram_gib * GIB / total), 0)
    report = Report(asked.json)
    h2d = copy_rate(torch)
    torch.cuda.empty_cache()

    largest = max(batch for chosen in asked.settings for _, batch in chosen["configs"])
    with tempfile.TemporaryDirectory() as offload:
        sys.path.insert(0, str(folder))
        from flexllmgen.opt_config import get_opt_config

        config = get_opt_config(asked.model, **({"num_hidden_layers": asked.layers} if asked.layers else {}))
        flex = FlexGen(power_of_two(largest * asked.prompt_len * config.input_dim), offload)
        report.add({
            "device": torch.cuda.get_device_name(0), "device_bytes": total, "vram_gib": asked.vram_gib,
            "h2d_bytes_per_s": h2d, "torch": torch.__version__, "threads": torch.get_num_threads(),
            "host_bytes": host_bytes("MemTotal"), "host_available_bytes": host_bytes("MemAvailable"),
            "start_s": time.monotonic() - began,
        })
        try:
            every(flex, asked, config, report)
        finally:
            flex.env.close_copy_threads()


def every(flex, asked, config, report):
    for chosen in asked.settings:
        for batches, batch in chosen["configs"]:
            for repeat in range(asked.repeat):
                common = {
                    "model": asked.model, "layers": config.num_hidden_layers, "config": f"{batches}x{batch}",
                    "percent": " ".join(map(str, chosen["percent"])), "cpu": chosen["cpu"], "w4": chosen["w4"],
                    "kv4": chosen["kv4"], "prompt_len": asked.prompt_len, "gen_len": asked.gen_len, "repeat": repeat,
                }

                def ended(row=common):
                    report.add(row | {"status": "hung", "costs_s": list(flex.timers("generate").costs)})
                    os._exit(3)

                # The weights come before the run's own limit.
                with watched(2 * asked.limit_s + GRACE_S, ended):
                    row = run(flex, asked, chosen, batches, batch, config, common)
                    report.add(row)
                    flex.settle()
                if row["status"] in ("too slow", "host memory", "device memory"):
                    break


if __name__ == "__main__":
    main()
