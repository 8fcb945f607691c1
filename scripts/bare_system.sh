#!/bin/sh
# The wheel in a fresh Debian with Python alone: scripts/bare_system.sh WHEEL MODEL. Needs root and debootstrap, which it
# installs; mounts live in a namespace of their own and go with it. SUITE names another release than this one's.
set -eu

wheel=$(realpath "$1")
model=$(realpath "$2")
command -v debootstrap > /dev/null || {
    echo "+ apt-get install debootstrap"
    apt-get update -q > /dev/null && apt-get install -q -y --no-install-recommends debootstrap > /dev/null
}
suite=${SUITE:-$(. /etc/os-release && echo "$VERSION_CODENAME")}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
system=$work/system
echo "+ debootstrap --variant=minbase --include=python3,python3-venv $suite"
debootstrap --variant=minbase --include=python3,python3-venv "$suite" "$system" > "$work/log" 2>&1 || {
    tail -n 20 "$work/log" >&2
    exit 1
}
cp "$wheel" "$system/"
cp "$model" "$system/model.gguf"
printf '{"prompt": "The capital of France is", "max_tokens": 8}\n' > "$system/in.jsonl"
cat > "$system/try.sh" <<'TRY'
set -eu
if command -v cargo || ls /usr/lib/*/libhwloc* 2> /dev/null; then
    echo "There is more here than Python." >&2
    exit 1
fi
begin=$(date +%s)
python3 -m venv /venv
/venv/bin/pip install --quiet --no-index /*.whl
/venv/bin/tandem --model /model.gguf --input /in.jsonl --output /out.jsonl --quiet
echo "$(($(date +%s) - begin)) s from an empty environment to the first answer"
cat /out.jsonl
grep -q Paris /out.jsonl
ldd /venv/bin/coordinator
ldd --version | head -n 1
/venv/bin/python -m tandem doctor | head -n 8
TRY
unshare --mount sh -eu -c '
    mount --make-rprivate /
    mount -t proc proc "$1/proc"
    mount --rbind /sys "$1/sys"
    chroot "$1" env -i PATH=/usr/bin:/bin:/usr/sbin:/sbin HOME=/ sh /try.sh
' sh "$system"
echo "a fresh $suite with Python alone: as expected"
