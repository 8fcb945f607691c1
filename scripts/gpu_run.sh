#!/bin/sh
# Runs what needs a GPU, stage after stage, and ends with a table of all of them and the same as JSON.
#
#   run.sh test     correctness: golden tokens, placement invariance, no leak over many runs
#   run.sh bench    the same, then the benchmarks in the order in which they matter
#
# Lies in the GPU bundle beside `coordinator`, `fixtures` and `lib`; needs a POSIX shell, awk, timeout and
# NVIDIA's driver. A stage that cannot run has a row that says why. Exit status: 1 if a stage failed, else 0.
# Every stage ends within STAGE_S seconds (590), and the first rows are those that matter most: a machine for a
# quarter of an hour can do RUNS=10 SPLITS="q:out scores:wv gate:" run.sh bench. Other settings:
#   DEVICE=0 MODEL=opt-30b LAYERS=48 VRAM=16GiB PROMPT_LEN=512 GEN_LEN=32   the benchmarks' case
#   RUNS=100         runs in the search for leaks
#   SPLITS="a:b .."  intervals of the placement test instead of all
#   RATES="--copy 1MiB --matrix 64"  sizes of the plain rates
#   KERNELS=text     only kernels whose names contain it
#   FLEXGEN=folder   FlexGen's package, to run its own code with the machine's PyTorch
#   OUT=folder       where reports, logs and results.json go (out, beside this script)
set -u
what=${1:-test}
home=$(cd "$(dirname "$0")" && pwd)
out=${OUT:-$home/out}
coordinator=${COORDINATOR:-$home/coordinator}
fixtures=${FIXTURES:-$home/fixtures}
device=cuda:${DEVICE:-0}
stage_s=${STAGE_S:-590}
layers=${LAYERS:-48}
vram=${VRAM:-16GiB}
prompt_len=${PROMPT_LEN:-512}
gen_len=${GEN_LEN:-32}
case "$what" in
    test | bench) ;;
    *) echo "run.sh: write run.sh test or run.sh bench" >&2; exit 2 ;;
esac
mkdir -p "$out"
rows=$out/rows.tsv
: > "$rows"
# Behind the system's own: these are only for machines that lack them.
[ ! -d "$home/lib" ] || export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$home/lib"
# Profiles of another machine must not decide here, nor these later elsewhere.
export XDG_CACHE_HOME="${XDG_CACHE_HOME:-$out/cache}"

# A stage of many runs begins none in its last part.
stage_runs_s=$((stage_s - (stage_s > 120 ? 60 : stage_s / 2)))

# row STAGE STATUS TEXT: STATUS is ok, failed or skipped.
row() {
    printf '%s\t%s\t%s\n' "$1" "$2" "$3" >> "$rows"
    printf '%-34s %-8s %s\n' "$1" "$2" "$3"
}

# field FILE NAME: a number or text of a report, whose objects have a field a line; the first of its name.
field() { awk -v name="\"$2\":" '$1 == name { v = $0; sub(/^[^:]*: */, "", v); sub(/,$/, "", v); gsub(/"/, "", v); print v; exit }' "$1"; }

# said FILE: the last line of a log, for a row.
said() { awk 'NF { line = $0 } END { print line == "" ? "it said nothing" : line }' "$1" | tr '\t' ' ' | cut -c1-300; }

# limited LOG COMMAND...: within what is left of the stage; 124 when it ran out of time.
limited() {
    log=$1
    shift
    timeout -k 10 "$stage_s" "$@" > "$log" 2>&1
}

# failed STAGE STATUS LOG: the row of a command that did not succeed.
failed() {
    case "$2" in
        124 | 137) row "$1" failed "out of time: it took more than $stage_s s" ;;
        *) row "$1" failed "$(said "$3")" ;;
    esac
}

# --- Correctness -----------------------------------------------------------------------------------------

# golden_list MODEL NAME COUNT: the first lists of golden.json under a name, one a line, without spaces.
golden_list() {
    awk -v name="\"$2\":" -v count="$3" '
        $1 == name { inside = 1; next }
        inside && /^ *\]/ { exit }
        inside && found < count { gsub(/[ \t]/, ""); sub(/,$/, ""); print; found++ }' "$fixtures/$1/golden.json"
}

# requests MODEL COUNT TOKENS FILE
requests() {
    golden_list "$1" prompts "$2" |
        awk -v tokens="$3" '{ printf "{\"prompt\": %s, \"max_tokens\": %d, \"ignore_eos\": true}\n", $0, tokens }' > "$4"
}

# answers FILE: the token ids of an output, one list a line.
answers() { grep -o '"token_ids": *\[[^]]*\]' "$1" | sed 's/^[^[]*//; s/ //g'; }

# answer LOG MODEL OUTPUT ARGUMENTS...: f32, so that tokens must be transformers' own.
answer() {
    log=$1 model=$2 output=$3
    shift 3
    limited "$log" "$coordinator" --model "$fixtures/$model" --input "$out/$model.jsonl" --output "$output" \
        --force --quiet --dtype f32 --batches 2x2 "$@"
}

golden() {
    for model in llama opt; do
        requests $model 4 8 "$out/$model.jsonl"
        golden_list $model tokens 4 | awk -F, '{ line = $1; for (i = 2; i <= 8; i++) line = line "," $i; sub(/\]$/, "", line); print line "]" }' > "$out/$model.expected"
        for policy in gpu-only cpu-only; do
            answer "$out/log" $model "$out/answers.jsonl" --device "$device" --policy $policy
            status=$?
            [ $status -eq 0 ] || { failed "golden tokens" $status "$out/log"; return; }
            answers "$out/answers.jsonl" > "$out/answers"
            cmp -s "$out/answers" "$out/$model.expected" || { row "golden tokens" failed "$model $policy: other tokens than transformers'"; return; }
        done
    done
    row "golden tokens" ok "llama and opt in f32 equal transformers' tokens, all on the device and all on the CPU"
}

intervals() {
    ops="norm0 q k v scores softmax wv out norm1 gate up down"
    [ -z "${SPLITS:-}" ] || { echo "$SPLITS"; return; }
    for first in $ops; do
        inside=
        for last in $ops; do
            [ -z "$inside" ] || printf '%s:%s ' "$first" "$last"
            [ "$first" != "$last" ] || inside=1
        done
        printf '%s: ' "$first"
    done
}

placement() {
    [ -f "$out/llama.expected" ] || { row "placement invariance" skipped "the golden tokens did not come about"; return; }
    begun=$(date +%s) count=0
    for split in $(intervals); do
        if [ $(($(date +%s) - begun)) -gt $stage_runs_s ]; then
            row "placement invariance" failed "out of time after $count intervals, all of them equal"
            return
        fi
        answer "$out/log" llama "$out/answers.jsonl" --device "$device" --split "$split"
        status=$?
        [ $status -eq 0 ] || { failed "placement invariance" $status "$out/log"; return; }
        answers "$out/answers.jsonl" > "$out/answers"
        cmp -s "$out/answers" "$out/llama.expected" || { row "placement invariance" failed "--split $split gives other tokens"; return; }
        count=$((count + 1))
    done
    row "placement invariance" ok "$count intervals of a layer give the same tokens"
}

# Weights from a drive in every step: through host memory, and straight to the device where cuFile can.
direct_reads() {
    [ -f "$out/llama.expected" ] || { row "direct reads" skipped "the golden tokens did not come about"; return; }
    for direct in off on; do
        answer "$out/log" llama "$out/answers.jsonl" --device "$device" --policy gpu-only --nvme "$out/drive" \
            --nvme-ops all --nvme-direct $direct --report "$out/direct-$direct.json"
        status=$?
        # Refused before anything is planned: what lacks is no failure of this program's.
        [ $status -ne 2 ] || { row "direct reads" skipped "$(said "$out/log" | sed 's/^coordinator: //')"; return; }
        [ $status -eq 0 ] || { failed "direct reads" $status "$out/log"; return; }
        answers "$out/answers.jsonl" > "$out/answers"
        cmp -s "$out/answers" "$out/llama.expected" || { row "direct reads" failed "--nvme-direct $direct gives other tokens"; return; }
    done
    row "direct reads" ok "the same tokens, read by $(field "$out/direct-on.json" how)"
}

free_bytes() { "$coordinator" device-rates "${DEVICE:-0}" --memory > "$out/memory.json" 2> "$out/log" && field "$out/memory.json" free_bytes; }

leaks() {
    runs=${RUNS:-100}
    [ -f "$out/llama.jsonl" ] || { row "no leak" skipped "the golden tokens did not come about"; return; }
    # The first run may leave what the driver keeps: compiled kernels.
    answer "$out/log" llama "$out/answers.jsonl" --device "$device" --policy gpu-only || { failed "no leak" $? "$out/log"; return; }
    before=$(free_bytes)
    begun=$(date +%s) finished=0
    while [ "$finished" -lt "$runs" ]; do
        if [ $(($(date +%s) - begun)) -gt $stage_runs_s ]; then
            row "no leak" failed "out of time after $finished runs"
            return
        fi
        answer "$out/log" llama "$out/answers.jsonl" --device "$device" --policy gpu-only || { failed "no leak" $? "$out/log"; return; }
        finished=$((finished + 1))
    done
    after=$(free_bytes)
    # Another program may have come or gone; what this one leaks would show in every run.
    if [ -z "$before" ] || [ -z "$after" ]; then
        row "no leak" failed "the device does not say how much memory is free: $(said "$out/log")"
    elif [ "$after" -ge $((before - runs * 65536)) ]; then
        row "no leak" ok "$runs runs; free before $before bytes, after $after"
    else
        row "no leak" failed "$runs runs; free before $before bytes, after $after"
    fi
}

# Reads and writes beyond what is allocated, then races within blocks.
sanitizer() {
    if ! command -v compute-sanitizer > /dev/null 2>&1; then
        row "compute-sanitizer" skipped "it is not on this machine; it comes with the CUDA toolkit"
        return
    fi
    for tool in memcheck racecheck; do
        limited "$out/sanitizer-$tool.log" compute-sanitizer --tool $tool --error-exitcode 9 --target-processes all "$coordinator" \
            --model "$fixtures/llama" --input "$out/llama.jsonl" --output "$out/answers.jsonl" --force --quiet \
            --device "$device" --policy gpu-only
        status=$?
        [ $status -eq 0 ] || { failed "compute-sanitizer" $status "$out/sanitizer-$tool.log"; return; }
    done
    row "compute-sanitizer" ok "memcheck and racecheck are clean"
}

# --- Benchmarks --------------------------------------------------------------------------------------------

plain_rates() {
    # shellcheck disable=SC2086 # RATES is a list of options
    limited "$out/rates.json" "$coordinator" device-rates "${DEVICE:-0}" ${RATES:-}
    status=$?
    [ $status -eq 0 ] || { failed "plain rates" $status "$out/rates.json"; rm -f "$out/rates.json"; return; }
    row "plain rates" ok "$(awk -v h="$(field "$out/rates.json" h2d_bytes_per_s)" -v d="$(field "$out/rates.json" d2h_bytes_per_s)" -v f="$(field "$out/rates.json" bf16_flops)" 'BEGIN { printf "cuMemcpyHtoDAsync %.2f GB/s, DtoH %.2f GB/s, bf16 matrices %.1f TFLOP/s", h / 1e9, d / 1e9, f / 1e12 }'), own kernel $(awk -v f="$(field "$out/rates.json" own_bf16_flops)" 'BEGIN { printf "%.1f", f / 1e12 }')"
}

# Copies of a few rows beside a device that computes, in one process and in two: whether one would do
# (TANDEM_COPIES=gpu).
small_copies() {
    limited "$out/small_copies.json" "$coordinator" device-rates "${DEVICE:-0}" --small-copies ${SMALL_COPIES:+--matrix "$SMALL_COPIES"}
    status=$?
    [ $status -eq 0 ] || { failed "small copies" $status "$out/small_copies.json"; return; }
    row "small copies" ok "medians of 4 KiB to the device: $(awk '
        /"(alone|one_process|two_processes)": /  { place = $1; gsub(/[":]/, "", place) }
        /"median_us"/ { number = $2; sub(/,/, "", number); if (!(place in seen)) { seen[place] = 1; printf "%s %.1f us  ", place, number } }' "$out/small_copies.json")"
}

# This program's own kernels: a table of their shares of the rate of copies within the device, whose operands
# are in no cache, and of the bf16 matrix rate.
kernel_shares() {
    [ -f "$out/rates.json" ] || { row "kernels" skipped "the plain rates did not come about"; return; }
    limited "$out/kernels.jsonl" "$coordinator" device-rates "${DEVICE:-0}" --kernels "${KERNELS:-}"
    status=$?
    [ $status -eq 0 ] || { failed "kernels" $status "$out/kernels.jsonl"; return; }
    awk -v copy="$(field "$out/rates.json" device_bytes_per_s)" -v flops="$(field "$out/rates.json" bf16_flops)" '
        function number(name) { match($0, "\"" name "\":[-+.e0-9]+"); return substr($0, RSTART + length(name) + 3, RLENGTH - length(name) - 3) }
        BEGIN { printf "%-52s %6s %11s %10s %10s\n", "kernel", "rows", "us", "of memory", "of matrix" }
        { match($0, "\"what\":\"[^\"]*"); printf "%-52s %6d %11.1f %9.0f%% %9.1f%%\n", substr($0, RSTART + 8, RLENGTH - 8), number("rows"), number("us"), 100e9 * number("gb_per_s") / copy, 100e12 * number("tflops") / flops }' \
        "$out/kernels.jsonl" > "$out/kernels.txt"
    cat "$out/kernels.txt"
    row "kernels" ok "$(wc -l < "$out/kernels.jsonl") shapes, in kernels.txt"
}

# needed_gib COMPRESS BATCHES: host memory that a run of OPT-30B takes: weights of 1.15 GiB a layer and KV of 28
# KiB a layer and position, both a quarter and a little in 4 bits, and room for the rest.
needed_gib() {
    case "${MODEL:-opt-30b}" in
        opt-30b)
            echo "$2" | awk -F x -v layers="$layers" -v positions=$((prompt_len + gen_len)) -v compress="$1" '{
                gib = layers * (1.15 + $1 * $2 * positions * 28672 / 1073741824)
                if (compress == "w4kv4") gib *= 0.3
                print int(gib + 6)
            }' ;;
        *) echo 4 ;;
    esac
}

# bench STAGE NAME BATCHES COMPRESS ARGUMENTS...
bench() {
    stage=$1 name=$2 batches=$3 compress=$4
    shift 4
    has=$(awk '$1 == "MemAvailable:" { print int($2 / 1048576) }' /proc/meminfo)
    needs=$(needed_gib "$compress" "$batches")
    if [ "$has" -lt "$needs" ]; then
        row "$stage" skipped "not enough memory: about $needs GiB are needed and $has GiB are available"
        return
    fi
    limited "$out/$name.log" "$coordinator" --model "${MODEL:-opt-30b}" --dummy-weights --layers "$layers" \
        --device "$device" --vram "$vram" --batches "$batches" --prompt-len "$prompt_len" --gen-len "$gen_len" \
        --compress "$compress" --report "$out/$name.json" "$@"
    status=$?
    [ $status -eq 0 ] || { failed "$stage" $status "$out/$name.log"; return; }
    row "$stage" ok "$(numbers "$out/$name.json")"
}

# numbers REPORT: prefill, decode, throughput, busy lanes, overlap, prediction.
numbers() {
    awk '
        function value() { v = $0; sub(/^[^:]*: */, "", v); sub(/,$/, "", v); gsub(/"/, "", v); return v }
        /^  "policy":/ { policy = value() }
        /^  "prefill_s":/ { prefill = value() } /^  "decode_s":/ { decode = value() } /^  "total_s":/ { total = value() }
        /^  "total_tokens_per_s":/ { rate = value() } /^  "overlap":/ { overlap = value() }
        /^  "predicted": \{/ { in_predicted = 1 } /^  "lanes": \{/ { in_lanes = 1 } /^  \}/ { in_predicted = in_lanes = 0 }
        in_predicted && /"decode_s":/ { foretold = value() }
        in_predicted && /"prefill_s":/ { foretold_prefill = value() }
        in_lanes && /^    "/ { lane = $1; gsub(/[":]/, "", lane) }
        in_lanes && /"busy_s":/ { busy[lane] = value(); order[++count] = lane }
        END {
            printf "%s: prefill %.2f s, decode %.2f s, %.2f tokens/s", policy, prefill, decode, rate
            if (foretold + 0 > 0) printf "; predicted %.2f s (%+.1f%%) and %.2f s (%+.1f%%)", foretold_prefill, 100 * (foretold_prefill / prefill - 1), foretold, 100 * (foretold / decode - 1)
            if (overlap != "null") printf "; overlap %.1f%%", 100 * overlap
            printf "; busy"
            for (i = 1; i <= count; i++) printf " %s %.0f%%", order[i], 100 * busy[order[i]] / (total > 0 ? total : 1)
        }' "$1"
}

# h2d STAGE NAME: a run's own rate of pinned copies beside the plain loop's.
h2d() {
    [ -f "$out/$2.json" ] && [ -f "$out/rates.json" ] || { row "$1" skipped "the run that it is taken from, or the plain rate, did not come about"; return; }
    row "$1" ok "$(awk -v plain="$(field "$out/rates.json" h2d_bytes_per_s)" '
        function value() { v = $0; sub(/^[^:]*: */, "", v); sub(/,$/, "", v); return v }
        /"streamed_weight_bytes":/ || /"streamed_kv_bytes":/ { bytes += value() }
        /"h2d.weights":/ { inside = 1 } inside && /"busy_s":/ { busy = value(); inside = 0 }
        END { if (busy > 0) printf "%.2f GB/s, %.1f%% of the plain loop", bytes / busy / 1e9, 100 * bytes / busy / plain; else printf "nothing was streamed" }' "$out/$2.json")"
}

# Two operations a weight and prompt token; attention and head are left out, which makes the share smaller.
prefill_share() {
    [ -f "$out/1x50.json" ] && [ -f "$out/rates.json" ] || { row "prefill share" skipped "the 1x50 run or the plain rates did not come about"; return; }
    row "prefill share" ok "$(awk -v flops="$(field "$out/rates.json" bf16_flops)" -v link="$(field "$out/rates.json" h2d_bytes_per_s)" -v layers="$layers" '
        function value() { v = $0; sub(/^[^:]*: */, "", v); sub(/,$/, "", v); return v }
        /^  "prefill_s":/ { seconds = value() } /^  "prefill_tokens":/ { tokens = value() }
        /"weights":/ && !weights { weights = value() }
        END {
            matrix = 100 * 2 * tokens * (weights / 2) / seconds / flops; wire = 100 * weights / seconds / link
            printf "%.1f%% of the bf16 matrix rate, %.1f%% of the link; the limit is the %s", matrix, wire, (matrix > wire ? "matrix rate" : "link")
        }' "$out/1x50.json")"
}

# against STAGE NAME OTHER: throughput of a run over that of another.
against() {
    [ -f "$out/$2.json" ] && [ -f "$out/$3.json" ] || { row "$1" skipped "one of the two runs did not come about"; return; }
    row "$1" ok "$(awk -v a="$(field "$out/$2.json" total_tokens_per_s)" -v b="$(field "$out/$3.json" total_tokens_per_s)" 'BEGIN { printf "%.2fx", (b > 0 ? a / b : 0) }')"
}

# FlexGen's public code in the same case, under the same cap of device memory.
public_flexgen() {
    stage="FlexGen, its own code"
    if [ -z "${FLEXGEN:-}" ]; then
        row "$stage" skipped "set FLEXGEN to a folder with its package, as scripts/peers/flexgen_gpu.sh fetches it; its schedule is the row above"
        return
    fi
    if ! python3 -c 'import torch; raise SystemExit(not torch.cuda.is_available())' > "$out/log" 2>&1; then
        row "$stage" skipped "Python's torch is not here or finds no device; FlexGen's schedule is the row above"
        return
    fi
    gib=$(echo "$vram" | awk '{ print $0 + 0 }')
    limited "$out/flexgen-own.log" env PYTHONDONTWRITEBYTECODE=1 python3 "$home/flexgen_gpu.py" --flexgen "$FLEXGEN" \
        --layers "$layers" --vram-gib "$gib" --prompt-len "$prompt_len" --gen-len "$gen_len" --cut-gen-len 10 \
        --settings "${FLEXGEN_SETTINGS:-0 100 20 80 100 0: 1x50}" --json "$out/flexgen-own.jsonl"
    status=$?
    [ $status -eq 0 ] || { failed "$stage" $status "$out/flexgen-own.log"; return; }
    row "$stage" ok "$(awk '
        function number(name) { if (!match($0, "\"" name "\": *[-+.e0-9]+")) return 0; v = substr($0, RSTART, RLENGTH); sub(/^.*: */, "", v); return v + 0 }
        /"status": *"ok"/ && number("tokens_per_s") > best { best = number("tokens_per_s"); prefill = number("prefill_s"); decode = number("decode_s") }
        END { if (best > 0) printf "prefill %.2f s, decode %.2f s, %.2f tokens/s; decode projected from its first tokens", prefill, decode, best; else print "no setting ran to its end" }' "$out/flexgen-own.jsonl")"
}

# The 1x50 run over FlexGen's own code.
against_public() {
    [ -f "$out/1x50.json" ] && [ -f "$out/flexgen-own.jsonl" ] || { row "1x50 over FlexGen's own code" skipped "one of the two runs did not come about"; return; }
    row "1x50 over FlexGen's own code" ok "$(awk -v a="$(field "$out/1x50.json" total_tokens_per_s)" '
        match($0, /"tokens_per_s": *[-+.e0-9]+/) { v = substr($0, RSTART, RLENGTH); sub(/^.*: */, "", v); if (v + 0 > best) best = v + 0 }
        END { printf "%.2fx", (best > 0 ? a / best : 0) }' "$out/flexgen-own.jsonl")"
}

stages_test="golden placement direct_reads leaks sanitizer"
name_of() {
    case "$1" in
        direct_reads) echo "direct reads" ;;
        golden) echo "golden tokens" ;; placement) echo "placement invariance" ;; leaks) echo "no leak" ;;
        sanitizer) echo "compute-sanitizer" ;; plain_rates) echo "plain rates" ;; prefill_share) echo "prefill share" ;;
        small_copies) echo "small copies" ;;
        public_flexgen) echo "FlexGen, its own code" ;; *) echo "$1" ;;
    esac
}
bench_all() {
    bench "1x50" 1x50 1x50 none --policy auto
    bench "FlexGen's schedule 1x50" flexgen-1x50 1x50 none --policy flexgen
    bench "compressed 4x60" w4-4x60 4x60 w4kv4 --policy auto
    public_flexgen
    plain_rates
    kernel_shares
    small_copies
    bench "gpu-only 1x50" gpu-only 1x50 none --policy gpu-only
    h2d "pinned H2D alone" gpu-only
    h2d "pinned H2D beside the CPU worker" 1x50
    prefill_share
    bench "1x100" 1x100 1x100 none --policy auto
    bench "2x50" 2x50 2x50 none --policy auto
    bench "FlexGen's schedule 2x50" flexgen-2x50 2x50 none --policy flexgen
    bench "FlexGen's schedule compressed 4x60" flexgen-4x60 4x60 w4kv4 --policy flexgen
    against "1x50 over FlexGen's schedule" 1x50 flexgen-1x50
    against_public
    against "2x50 over FlexGen's schedule" 2x50 flexgen-2x50
    against "4x60 over FlexGen's schedule" w4-4x60 flexgen-4x60
    for policy in two-split one-split lia flexgen:spread cpu-only; do
        bench "$policy 1x50" "policy-$(echo $policy | tr : -)" 1x50 none --policy $policy
    done
}
bench_names="1x50|FlexGen's schedule 1x50|compressed 4x60|FlexGen, its own code|plain rates|kernels|small copies|gpu-only 1x50|pinned H2D alone|pinned H2D beside the CPU worker|prefill share|1x100|2x50|FlexGen's schedule 2x50|FlexGen's schedule compressed 4x60|1x50 over FlexGen's schedule|1x50 over FlexGen's own code|2x50 over FlexGen's schedule|4x60 over FlexGen's schedule|two-split 1x50|one-split 1x50|lia 1x50|flexgen:spread 1x50|cpu-only 1x50"

# Why nothing can run, or nothing.
missing=
if ! "$coordinator" device-rates "${DEVICE:-0}" --memory > "$out/memory.json" 2> "$out/log"; then
    missing=$(said "$out/log" | sed 's/^coordinator: //')
fi
"$coordinator" doctor > "$out/doctor.txt" 2>&1 || true
grep -E '^ *cuda:|CUDA driver' "$out/doctor.txt" || true
if [ -n "$missing" ]; then
    for stage in $stages_test; do row "$(name_of $stage)" skipped "$missing"; done
    if [ "$what" = bench ]; then
        echo "$bench_names" | tr '|' '\n' > "$out/names"
        while read -r name; do row "$name" skipped "$missing"; done < "$out/names"
    fi
else
    for stage in $stages_test; do $stage; done
    [ "$what" = test ] || bench_all
fi

echo
# A device that is none labels its figures itself: its name is in the first line.
awk -F '\t' -v what="$what" -v name="$(awk '/cuda:[0-9]/ { $1 = $1; print; exit }' "$out/doctor.txt")" '
    BEGIN { print "GPU " what ": " (name == "" ? "no device" : name); printf "%-34s %-8s %s\n", "stage", "status", "what" }
    { printf "%-34s %-8s %s\n", $1, $2, $3; count[$2]++ }
    END { printf "%d ok, %d failed, %d skipped\n", count["ok"], count["failed"], count["skipped"] }' "$rows"
awk -F '\t' 'function text(t) { gsub(/\\/, "\\\\", t); gsub(/"/, "\\\"", t); return "\"" t "\"" }
    BEGIN { printf "{\"stages\": [" }
    { printf "%s\n  {\"stage\": %s, \"status\": %s, \"what\": %s}", (NR > 1 ? "," : ""), text($1), text($2), text($3) }
    END { print "\n]}" }' "$rows" > "$out/results.json"
echo "Reports, logs and results.json are in $out."
! grep -q "	failed	" "$rows"
