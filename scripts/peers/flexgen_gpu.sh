#!/bin/sh
# FlexGen on a CUDA device, beside `coordinator --device cuda:0`:
#     scripts/peers/flexgen_gpu.sh [arguments of scripts/peers/flexgen_gpu.py]
# Fetches FlexGen at one commit into .cache/flexgen and runs it there, its files unchanged. FLEXGEN=folder names one that
# holds its package already. PYTHON (python3) needs torch with CUDA, numpy, attrs and tqdm; transformers is not needed.
set -eu

url=https://github.com/FMInference/FlexLLMGen
commit=004ffef82b46e8dc8685c55d0cdda650bdaf1269

scripts=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}

if [ -z "${FLEXGEN:-}" ]; then
    FLEXGEN=$(cd "$scripts/../.." && pwd)/.cache/flexgen
    if [ "$(git -C "$FLEXGEN" rev-parse --verify --quiet HEAD 2>/dev/null)" != "$commit" ]; then
        echo "+ git clone $url ($commit)"
        rm -rf "$FLEXGEN"
        git clone --quiet --filter=blob:none --no-checkout "$url" "$FLEXGEN"
        git -C "$FLEXGEN" checkout --quiet --detach "$commit"
    fi
fi
exec "$python" "$scripts/flexgen_gpu.py" --flexgen "$FLEXGEN" "$@"
