#!/bin/sh
# NUMA nodes that this machine lacks: a virtual machine with three, one of them without cores, runs the tests
# of where memory lies and a job that is bound to them. Emulated, so that any machine can: half a minute. For
# Debian and Ubuntu; needs root for qemu's packages.
set -eu
cd "$(dirname "$0")/.."
say() { echo "+ $*"; "$@"; }

say cargo build --package coordinator
tests=$(cargo test --package shm --lib --no-run --message-format=json |
    sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -n 1)
target=${CARGO_TARGET_DIR:-target}
work=$target/nodes
rm -rf "$work/guest"
mkdir -p "$work/packages" "$work/guest/proc" "$work/guest/sys" "$work/guest/dev" "$work/guest/tmp" "$work/guest/model"

install=
command -v qemu-system-x86_64 >/dev/null || install="$install qemu-system-x86"
command -v cpio >/dev/null || install="$install cpio"
if [ -n "$install" ]; then
    # shellcheck disable=SC2086
    say apt-get install --yes --no-install-recommends $install
fi

# The kernel of this system's own release; it is unpacked, not installed.
if [ ! -e "$work/packages/vmlinuz" ]; then
    if apt-cache show linux-image-amd64 >/dev/null 2>&1; then meta=linux-image-amd64; else meta=linux-image-virtual; fi
    kernel=$(apt-cache depends "$meta" | sed -n 's/.*Depends: \(linux-image-[^ ]*\)$/\1/p' | head -n 1)
    (cd "$work/packages" && say apt-get download "$kernel" busybox-static)
    for package in "$work"/packages/*.deb; do
        dpkg-deb --extract "$package" "$work/packages/unpacked"
    done
    cp "$work"/packages/unpacked/boot/vmlinuz-* "$work/packages/vmlinuz"
    cp "$work"/packages/unpacked/*/busybox "$work/packages/busybox" 2>/dev/null ||
        cp "$work"/packages/unpacked/usr/bin/busybox "$work/packages/busybox"
fi

cp "$work/packages/busybox" "$work/guest/busybox"
cp "$tests" "$work/guest/shm-tests"
cp "$target/debug/coordinator" "$work/guest/coordinator"
cp tests/fixtures/llama/*.json tests/fixtures/llama/*.safetensors "$work/guest/model/"
for binary in "$work/guest/shm-tests" "$work/guest/coordinator"; do
    ldd "$binary" | sed -n 's/[^/]*\(\/[^ ]*\) (0x.*/\1/p' | while read -r library; do
        mkdir -p "$work/guest$(dirname "$library")"
        cp --dereference --no-clobber "$library" "$work/guest$library"
    done
done
cat >"$work/guest/init" <<'INIT'
#!/busybox sh
/busybox mount -t proc proc /proc
/busybox mount -t sysfs sys /sys
/busybox mount -t devtmpfs dev /dev
/busybox mount -t tmpfs tmp /tmp
export HOME=/tmp
/shm-tests nodes --nocapture || echo "NODES: tests failed"
echo '{"custom_id": "a", "prompt": [5, 9, 11, 13], "max_tokens": 12, "ignore_eos": true}' >/tmp/in.jsonl
answer() {
    out=$1
    shift
    /coordinator --model /model --input /tmp/in.jsonl --output "/tmp/$out" --quiet "$@" || echo "NODES: $* failed"
}
answer plain.jsonl --device none
for device in none emulated; do
    for where in "--weights-nodes 2 --kv-nodes 0" "--weights-nodes 0,1,2 --kv-nodes 1"; do
        # shellcheck disable=SC2086
        answer bound.jsonl --force --device $device $where
        if /busybox cmp /tmp/plain.jsonl /tmp/bound.jsonl; then echo "NODES: $device $where: the same answer"; fi
    done
done
/coordinator doctor | /busybox grep 'nodes'
echo "NODES: end"
/busybox poweroff -f
INIT
chmod +x "$work/guest/init"
(cd "$work/guest" && find . | cpio --quiet --create --format=newc) | gzip -1 >"$work/initrd"

memory() { echo "-object memory-backend-ram,id=m$1,size=640M"; }
# shellcheck disable=SC2046
timeout 900 qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 2 -m 1920M $(memory 0) $(memory 1) $(memory 2) \
    -numa node,memdev=m0,cpus=0 -numa node,memdev=m1,cpus=1 -numa node,memdev=m2 \
    -kernel "$work/packages/vmlinuz" -initrd "$work/initrd" -append "console=ttyS0 panic=-1 quiet" \
    -nographic -no-reboot | tr -d '\r' | tee "$work/log"
grep -q "NODES: end" "$work/log" || { echo "The virtual machine did not get to its end."; exit 1; }
same=$(grep -c "NODES: .*: the same answer" "$work/log") || true
if grep -q "NODES: .*failed" "$work/log" || [ "$same" -ne 4 ]; then
    echo "Memory did not lie where it should, or answers differ."
    exit 1
fi
echo "Three NUMA nodes: memory lies where it is bound to, and answers are the same."
