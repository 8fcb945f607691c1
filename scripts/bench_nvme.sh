#!/bin/sh
# `make bench-nvme`, about 20 minutes: weights on drives, each figure beside its goal. It writes up to 24 GB and removes
# them at its end.
# 1. room: eight true OPT-30B layers under --dram 3GiB from two directories: the tokens of the run from DRAM, memory
#    within its limit, nothing of the weights in the page cache.
# 2. rate: sequential reads in turn with fio (where it is installed), the same file, request and depth.
# 3. unequal: two drives of which one is four times as fast, by the kernel's throttle of loop devices (root only), else
#    by the readers' own rate: shares and finish times, iteration by iteration.
# 4. lane: how much of a steady decode step the drive is busy where it is the longest lane.
# 5. table: throughput over the batch from DRAM, from one drive and from two, and which batch memory allows, after
#    Park and Egger's fig. 17.
# 6. experts: four true layers of Qwen3-30B-A3B, reading the experts that rows are routed to against all of a layer.
# NVME_DIRS="d0 d1" are the directories, on two drives (target/bench-nvme/0 and 1). ONLY=room, rate, unequal, lane,
# table or experts runs one; ROUNDS (9) with fio, TABLE_ROUNDS (1) of the tables; MODEL and LAYERS (opt-6.7b, 4) are the
# case of 3 to 5.
set -eu
cd "$(dirname "$0")/.."

say() { echo "+ $*"; "$@"; }

target=${CARGO_TARGET_DIR:-target}
dirs=${NVME_DIRS:-"$target/bench-nvme/0 $target/bench-nvme/1"}
least_gb=30
for dir in $dirs; do
    mkdir -p "$dir"
    free_gb=$(($(df --output=avail -B1 "$dir" | tail -n 1) / 1000000000))
    if [ "$free_gb" -lt "$least_gb" ]; then
        echo "$dir has $free_gb GB free, and this takes $least_gb; free space there, or name directories on" \
            "other drives: NVME_DIRS=\"/mnt/nvme0/bench /mnt/nvme1/bench\"" >&2
        exit 1
    fi
done
say cargo build --release --package coordinator
say cargo build --release --package weight_store --example read_rate
mkdir -p out
rm -f out/nvme.jsonl
# shellcheck disable=SC2086
say python3 scripts/nvme_rows.py --coordinator "$target/release/coordinator" \
    --read-rate "$target/release/examples/read_rate" --rounds "${ROUNDS:-9}" ${ONLY:+--only "$ONLY"} \
    --table-rounds "${TABLE_ROUNDS:-1}" --model "${MODEL:-opt-6.7b}" --layers "${LAYERS:-4}" --json out/nvme.jsonl $dirs
