#!/usr/bin/env bash
# Runs the tests of the workspace, or of what the arguments select (`scripts/test.sh -p shm`), with
# cargo-nextest where it is installed, else with cargo test.
#
# A test that this machine cannot run prints `SKIP <test>: <reason>` and returns. Both runners count it
# as passed and hide what it printed, so the output of passing tests is captured here, those lines are
# collected, and the closing line says how many there were. Exit status: the runner's.
set -uo pipefail
cd "$(dirname "$0")/.."

log=$(mktemp)
trap 'rm -f "$log"' EXIT
scope=("$@")
[ $# -gt 0 ] || scope=(--workspace)
export CARGO_TERM_COLOR=never

# run HIDE COMMAND...: all output to the log, and to the terminal without what the sed script drops.
# sed, as Debian's awk (mawk) reads a pipe in blocks: minutes of building would look like a hang.
run() {
    local hide=$1
    shift
    echo "+ $*"
    "$@" 2>&1 | tee -a "$log" | sed -u "$hide"
}

# Sources with a block of Rust in their documentation: not ```text and the like.
documents_with_examples() {
    find . -name '*.rs' -not -path './target/*' -exec awk '
        FNR == 1 { within = 0 }
        /^ *\/\/[\/!] *```/ { within = !within }
        within && /```((rust|no_run|should_panic|compile_fail)(,[a-z_]+)*)?$/ { print FILENAME }' {} +
}

# nextest repeats the output of passing tests after its summary, indented.
hide_nextest='/^     Summary \[/,$ { /^     Summary \[/!d }'
# cargo test lists it between "successes:" and "failures:", and repeats the first word.
hide_cargo='/^successes:$/,/^\(failures:$\|test result:\)/ { /^\(failures:$\|test result:\)/!d }'
# Binaries without tests say nothing. After the range, which must see its last line.
hide_cargo+='; /^running 0 tests$/d; /^test result: ok\. 0 passed; 0 failed; 0 ignored; 0 measured; 0 /d'

if cargo nextest --version > /dev/null 2>&1; then
    # Runs of processes wait for each other, so that one test for each core leaves a third of them idle.
    export NEXTEST_TEST_THREADS=${NEXTEST_TEST_THREADS:-$((($(nproc) * 3 + 1) / 2))}
    run "$hide_nextest" cargo nextest run "${scope[@]}" --no-fail-fast \
        --failure-output immediate --success-output final
    status=$?
    after=$(sed '1,/^     Summary \[/d' "$log")
    skips=$(sed -n 's/^ *\(SKIP [^:]*:.*\)/\1/p' <<< "$after" | sort -u)
    # "  SIGABRT [   0.028s] (3/5) tiny::crash crashes"
    failures=$(sed -n 's/^ *\(FAIL\|SIG[A-Z]*\|ABORT\|TIMEOUT\|XFAIL\) \[[^]]*\] *\(([^)]*) \)\{0,1\}/\1 /p' <<< "$after")
    # "Summary [..] 9 tests run: 7 passed (1 slow), 2 failed, 1 skipped": what did not pass failed.
    read -r total passed < <(sed -n 's/^     Summary \[.*\] *\([0-9]*\).* tests\{0,1\} run: \([0-9]*\) passed.*/\1 \2/p' "$log")
    # nextest runs no examples in documentation, and looking for them with rustdoc takes a minute.
    : > "$log"
    if [ $# -eq 0 ] && [ "${total:-0}" -gt 0 ] && [ -n "$(documents_with_examples)" ]; then
        run "$hide_cargo" cargo test --quiet --workspace --doc --no-fail-fast
        doc_status=$?
        [ $status -ne 0 ] || status=$doc_status
    fi
else
    echo "cargo-nextest is not installed: cargo test runs the test binaries one after the other."
    run "$hide_cargo" cargo test "${scope[@]}" --no-fail-fast -- --show-output
    status=$?
    skips=$(sed -n 's/^\(SKIP [^:]*:.*\)/\1/p' "$log" | sort -u)
    failures=
    total=0
    passed=0
fi
# "test result: ok. 3 passed; 1 failed; 0 ignored; ...", a line for each binary; none for one that crashed.
crashes=$(grep "process didn't exit successfully: .*(signal" "$log" | sed 's/^ *//')
read -r cargo_passed cargo_failed < <(awk '/^test result:/ { p += $4; f += $6 } END { print p + 0, f + 0 }' "$log")
failures=$(printf '%s\n' "$failures" "$(sed -n 's/^test \(.*\) \.\.\. FAILED$/FAIL \1/p' "$log")" "$crashes" | sed '/^$/d')
total=$((${total:-0} + cargo_passed + cargo_failed))
[ -z "$crashes" ] || total=$((total + $(wc -l <<< "$crashes")))
passed=$((${passed:-0} + cargo_passed))
failed=$((total - passed))

if [ "$total" -eq 0 ]; then
    echo "No test ran." >&2
    [ $status -ne 0 ] || status=4
    exit $status
fi
skipped=0
if [ -n "$failures" ]; then
    printf '\nfailed: %s\n' "$failed"
    sed 's/^/    /' <<< "$failures"
fi
if [ -n "$skips" ]; then
    # A test may say SKIP once for each case that it leaves out.
    skipped=$(sed 's/^SKIP //; s/\( (.*)\)\{0,1\}: .*//' <<< "$skips" | sort -u | wc -l)
    printf '\nskipped: %s\n' "$skipped"
    sed 's/^/    /' <<< "$skips"
fi
printf '\n%s passed, %s failed, %s skipped\n' $((passed - skipped)) "$failed" "$skipped"
exit $status
