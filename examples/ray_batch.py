#!/usr/bin/env python3
"""Answers a file of prompts on all machines of a Ray cluster, one coordinator to an actor:

    examples/ray_batch.py --model ./SmolLM2 --actors 3 prompts.jsonl answers/
    examples/ray_batch.py --model ./SmolLM2 --actors 3 --format parquet prompts.parquet answers/

The input is JSON Lines or Parquet, a file or a folder, with the columns id and prompt (a text, token
ids, or messages) and any others, which are kept. The output is a folder of files of the same
format, or of --format, with the columns text, token_ids, finish_reason, prompt_tokens,
completion_tokens and error. An answer depends on its row alone: however rows are dealt, the answers
are those of one machine.

Needed: pip install 'tandem-llm[ray]' on every machine, and the model at the same path on each.
"""

import argparse
from pathlib import Path

import ray

import tandem.ray


def options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("input", help="a file or a folder of .jsonl or .parquet")
    parser.add_argument("output", help="a folder, which is made")
    parser.add_argument("--model", required=True, help="as on each machine")
    parser.add_argument("--actors", type=int, default=1, help="coordinators, each with a model")
    parser.add_argument("--cpus", type=float, default=1, help="of an actor, as Ray counts them")
    parser.add_argument("--gpus", type=float, default=0, help="likewise; one is --device cuda:0")
    parser.add_argument("--rows", type=int, default=64, help="rows of a batch of Ray Data")
    parser.add_argument("--max-tokens", type=int, default=16)
    parser.add_argument("--chat", action="store_true", help="a text is a message of a user")
    parser.add_argument("--device", default="auto", help="as of coordinator serve")
    parser.add_argument("--threads", type=int, help="of a coordinator [default: --cpus]")
    parser.add_argument("--slots", type=int, help="as of coordinator serve")
    parser.add_argument("--format", choices=("jsonl", "parquet"), help="of the output")
    return parser.parse_args()


def main():
    given = options()
    is_parquet = ".parquet" in given.input or any(Path(given.input).glob("*.parquet"))
    rows = ray.data.read_parquet(given.input) if is_parquet else ray.data.read_json(given.input)
    # A file is a block, which would go to one actor.
    answered = rows.repartition(target_num_rows_per_block=given.rows).map_batches(
        tandem.ray.Generate,
        fn_constructor_kwargs={
            "model": given.model,
            "chat": given.chat,
            "fields": {"max_tokens": given.max_tokens},
            "device": given.device,
            # Several actors on a machine, or a limit that is none of CPUs, are not seen otherwise.
            "cpu_threads": given.threads or max(1, int(given.cpus)),
            "slots": given.slots,
        },
        batch_size=given.rows,
        compute=ray.data.ActorPoolStrategy(size=given.actors),
        num_cpus=given.cpus,
        num_gpus=given.gpus,
    )
    if given.format == "parquet" or (given.format is None and is_parquet):
        answered.write_parquet(given.output)
    else:
        answered.write_json(given.output)


if __name__ == "__main__":
    main()
