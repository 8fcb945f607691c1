#!/bin/sh
# `make test-python`: the wheel where no Rust is at hand.
#     a fresh environment   installs it, answers with SmolLM2 by `python -m tandem` and by tandem.generate (1,000
#                           prompts, with a Ctrl-C in between), and runs the package's own tests on the program
#                           that the wheel brought
#     BARE=1                a fresh Debian by debootstrap with Python alone: the same answers, and what `ldd` says
# Prints the wheel's size, the libraries that the program needs and the newest symbols of the C library.
set -eu
cd "$(dirname "$0")/.."

say() { echo "+ $*"; "$@"; }

scripts/wheel.sh
wheel=$(ls -t dist/tandem_llm-*.whl | head -n 1)
model=$(scripts/model.sh | tail -n 1)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

say python3 -m venv "$work/venv"
say "$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-index "$wheel"
program=$work/venv/bin/coordinator
echo "$(du -h "$wheel" | cut -f 1) $(basename "$wheel"), the program $(du -h "$program" | cut -f 1)"
echo "the newest symbols: $(objdump -T "$program" | grep -o 'GLIBC_[0-9.]*' | sort -V | tail -n 1)"
ldd "$program"
if ldd "$program" | grep -v 'linux-vdso\|/lib\(c\|m\|gcc_s\|dl\|pthread\|rt\)\.so\|/ld-linux'; then
    echo "The program needs more than the C library." >&2
    exit 1
fi
[ -z "$(objdump -h "$program" | grep debug_info)" ] || { echo "The program is not stripped." >&2; exit 1; }

printf '{"prompt": "The capital of France is", "max_tokens": 8}\n' > "$work/in.jsonl"
cat > "$work/ask.py" <<'PYTHON'
import sys, tandem
(answer,) = tandem.generate(sys.argv[1], ["The capital of France is"], max_tokens=8)
assert answer.error is None and "Paris" in answer.text, answer
print(f"tandem.generate: {answer.text!r}")
PYTHON
# No Rust, no program of this repository: a PATH that has nothing but the system's own.
bare() { env -i PATH=/usr/bin:/bin HOME="$work" "$@"; }
say bare "$work/venv/bin/python" -m tandem --model "$model" --input "$work/in.jsonl" --output "$work/out.jsonl" --quiet
grep -q Paris "$work/out.jsonl"
say bare "$work/venv/bin/tandem" --version
say bare "$work/venv/bin/python" "$work/ask.py" "$model"
say "$work/venv/bin/python" scripts/thousand_prompts.py "$model"

# The tests import the package that was installed, and not the one beside them.
mkdir "$work/python"
cp -r python/tests "$work/python/tests"
cp README.md "$work/"
mkdir "$work/tests"
cp -r tests/fixtures "$work/tests/fixtures"
(cd "$work/python" && say env -u PYTHONPATH TANDEM_COORDINATOR="$program" "$work/venv/bin/python" -m unittest discover -s tests -t .)

if [ -n "${BARE:-}" ]; then
    scripts/bare_system.sh "$wheel" "$model"
fi
echo "all as expected"
