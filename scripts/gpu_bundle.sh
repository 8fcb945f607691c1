#!/bin/sh
# `make test-gpu` and `make bench-gpu`: packs what needs a GPU into out/gpu-bundle and out/gpu-bundle.tar.gz,
# then runs it here. Copied to another machine, the bundle needs nothing there but NVIDIA's driver:
#   tar xzf gpu-bundle.tar.gz && gpu-bundle/run.sh test && gpu-bundle/run.sh bench
# PACK_ONLY=1 packs and does not run.
set -eu
what=${1:?test or bench}
cd "$(dirname "$0")/.."
size_bytes_max=$((60 << 20))

cargo build --release --package coordinator
coordinator=${CARGO_TARGET_DIR:-target}/release/coordinator
bundle=out/gpu-bundle
rm -rf "$bundle" "$bundle.tar.gz"
mkdir -p "$bundle/lib" "$bundle/fixtures"
strip -o "$bundle/coordinator" "$coordinator" 2> /dev/null || cp "$coordinator" "$bundle/coordinator"
# What a bare machine may lack beside the C library.
ldd "$coordinator" | awk '/lib(hwloc|udev|gcc_s)\./ && $3 ~ /^\// { print $3 }' | while read -r library; do
    cp -L "$library" "$bundle/lib/"
done
for model in llama opt; do
    mkdir "$bundle/fixtures/$model"
    for file in config.json generation_config.json golden.json model.safetensors tokenizer.json tokenizer_config.json; do
        [ ! -f "tests/fixtures/$model/$file" ] || cp "tests/fixtures/$model/$file" "$bundle/fixtures/$model/"
    done
done
cp scripts/gpu_run.sh "$bundle/run.sh"
cp scripts/peers/flexgen_gpu.py "$bundle/"
chmod +x "$bundle/run.sh"
git rev-parse HEAD > "$bundle/commit" 2> /dev/null || echo unknown > "$bundle/commit"
tar czf "$bundle.tar.gz" -C out gpu-bundle
size_bytes=$(wc -c < "$bundle.tar.gz")
echo "$bundle.tar.gz has $size_bytes bytes."
if [ "$size_bytes" -ge $size_bytes_max ]; then
    echo "gpu_bundle.sh: more than $size_bytes_max bytes; a bundle is to travel easily." >&2
    exit 1
fi
[ -n "${PACK_ONLY:-}" ] || "$bundle/run.sh" "$what"
