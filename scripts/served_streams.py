"""A served model, and streams that say when each of their tokens came."""

import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor


class Server:
    """`coordinator serve`, on the CPU alone unless it is said, from when it is ready until it is killed."""

    def __init__(self, coordinator, model, *options, on=("--device", "none", "--policy", "cpu-only")):
        command = [coordinator, "serve", "--model", model, "--port", "0", *on]
        began = time.monotonic()
        self.process = subprocess.Popen(
            [*map(str, command), *map(str, options)], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        )
        for line in self.process.stderr:
            if " at http://" in line:
                self.address = line.split(" at ", 1)[1].strip()
                break
        else:
            sys.exit("the server did not start")
        self.loaded_s = time.monotonic() - began
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def worker(self):
        """The process id of the worker, whichever of the server's threads started it."""
        for task in os.listdir(f"/proc/{self.process.pid}/task"):
            with open(f"/proc/{self.process.pid}/task/{task}/children", encoding="ascii") as file:
                for pid in file.read().split():
                    with open(f"/proc/{pid}/cmdline", encoding="utf-8") as name:
                        if "worker" in name.read():
                            return int(pid)
        sys.exit("the server has no worker")

    def stream(self, prompt, new, seed, told, timeout_s=300, usages=None):
        """The tokens of an answer; `told` gets the time of each, and `usages` what the answer says of its usage."""
        body = {"prompt": prompt, "max_tokens": new, "ignore_eos": True, "stream": True, "seed": seed, "temperature": 0.8}
        body["stream_options"] = {"include_usage": usages is not None}
        data = json.dumps(body).encode()
        request = urllib.request.Request(f"{self.address}/v1/completions", data, {"Content-Type": "application/json"})
        tokens = []
        with urllib.request.urlopen(request, timeout=timeout_s) as reply:
            for line in reply:
                if line.startswith(b"data: {"):
                    event = json.loads(line[6:])
                    if "error" in event:
                        sys.exit(f"a stream broke: {event}")
                    for choice in event["choices"]:
                        tokens += choice["token_ids"]
                    if event["choices"]:
                        told.append(time.monotonic())
                    elif usages is not None:
                        usages.append(event["usage"])
        return tokens

    def streams(self, prompts, new, tolds):
        """All of them at a time."""
        with ThreadPoolExecutor(len(prompts)) as pool:
            ask = lambda number: self.stream(prompts[number], new, number, tolds[number])  # noqa: E731
            return list(pool.map(ask, range(len(prompts))))

    def stop(self):
        """Ends as it is asked to, with what it has to write."""
        self.process.terminate()
        self.process.wait()

    def end(self):
        self.process.kill()
        self.process.wait()
