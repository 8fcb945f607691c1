#!/usr/bin/env python3
"""tandem.generate on 1,000 prompts: scripts/thousand_prompts.py MODEL

A Python reads answers as they are finished and gets a Ctrl-C after 200 of them. What was on disk
then is told by a second call, which computes the others. Needs the package `tandem`."""

import json
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import tandem

PROMPTS = 1000
INTERRUPTED_AFTER = 200
OPTIONS = {"max_tokens": 4}


def prompts():
    return [f"{number} and {number + 1} are" for number in range(PROMPTS)]


def first_call(model, folder):
    """What another Python does until its Ctrl-C."""
    for answer in tandem.generate(model, prompts(), folder=folder, **OPTIONS):
        print(answer.index, flush=True)


def main():
    if sys.argv[1] == "--first":
        # Whoever runs this in the background may have had Ctrl-C ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        return first_call(*sys.argv[2:])
    model = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--first", model, folder]
        pipe = subprocess.PIPE
        child = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)
        read = 0
        for _ in child.stdout:
            read += 1
            if read == INTERRUPTED_AFTER:
                assert child.poll() is None
                child.send_signal(signal.SIGINT)
        said = child.stderr.read()
        assert child.wait() != 0 and "KeyboardInterrupt" in said, said
        lines = Path(folder, "output.jsonl").read_text().splitlines()
        whole = [line for line in map(json.loads, lines) if line["response"]]
        kept = {line["custom_id"]: line["response"]["body"]["choices"][0]["text"] for line in whole}
        assert INTERRUPTED_AFTER <= len(kept) < PROMPTS, len(kept)
        found = {}
        for answer in tandem.generate(model, prompts(), folder=folder, **OPTIONS):
            assert answer.error is None and answer.custom_id not in found, answer
            found[answer.custom_id] = answer.text
        assert len(found) == PROMPTS
        assert all(found[name] == text for name, text in kept.items())
    print(f"1,000 prompts: {read} answers before Ctrl-C, {len(kept)} on disk, all after going on")


if __name__ == "__main__":
    main()
