#!/bin/sh
# docs/pictures/report.png: the page of a run on the emulated device, as a browser shows it. Needs
# Chromium (Debian: chromium), or its name in BROWSER.
set -eu
cd "$(dirname "$0")/.."
browser=${BROWSER:-chromium}
command -v "$browser" >/dev/null 2>&1 || {
    echo "report_picture.sh: $browser is not there; install it, or set BROWSER" >&2
    exit 1
}
model=$(scripts/model.sh | tail -n 1)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cargo build --release --package coordinator
coordinator=${CARGO_TARGET_DIR:-target}/release/coordinator
"$coordinator" --model "$model" --device emulated --policy two-split --batches 2x8 --prompt-len 128 --gen-len 64 --report "$work/r.json"
"$coordinator" report "$work/r.json" --html "$work/page.html"
"$browser" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --hide-scrollbars --force-device-scale-factor=1.5 \
    --user-data-dir="$work/profile" --window-size=1080,3300 --screenshot="$work/page.png" "file://$work/page.html"
mkdir -p docs/pictures
mv "$work/page.png" docs/pictures/report.png
ls -l docs/pictures/report.png
