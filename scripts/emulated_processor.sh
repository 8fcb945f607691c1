#!/bin/sh
# Tests of the CPU kernels on a processor that this machine lacks, which Bochs emulates: AVX-512, VNNI, AVX512-BF16.
#     scripts/emulated_processor.sh MODEL [TEST...]
# MODEL is one of `bochs --help cpu`: corei7_skylake_x, tigerlake (VNNI), sapphire_rapids (AVX512-BF16). TEST is a test
# program of kernels/tests (all by default; `operations` has most), `kernels` for the unit tests, or the path of a program.
#   BOCHS           the emulator, `bochs` by default (docs/kernels.md, "Emulated processors")
#   FILTER          run only tests whose names contain one of these words
#   ARGS            arguments of the programs, instead of those of tests
#   TANDEM_KERNELS  test only this variant
#   AMX=1           leave AMX enabled, for a Bochs that has XFD
# Packages of Debian or Ubuntu with a kernel and tools for the guest are unpacked below target/emulated, not installed.
set -eu
cd "$(dirname "$0")/.."
say() { echo "+ $*"; "$@"; }
fail() { echo "emulated_processor.sh: $*" >&2; exit 1; }

model=${1:?name a processor model of Bochs, for example sapphire_rapids}
shift
bochs=${BOCHS:-bochs}
command -v "$bochs" >/dev/null || fail "no $bochs; set BOCHS to the program of Bochs (docs/kernels.md, \"Emulated processors\")"
"$bochs" --help cpu 2>&1 | grep -qw "$model" || fail "$bochs emulates no $model; \`$bochs --help cpu\` lists its models"
work=$(realpath -m "${CARGO_TARGET_DIR:-target}/emulated")
packages=$work/packages
guest=$work/$model/guest
rm -rf "${work:?}/$model"
mkdir -p "$packages" "$guest/proc" "$guest/dev" "$guest/tmp" "$guest/tests" "$guest$PWD/model/tests/fixtures" "$work/$model/disc"

for program in "$@"; do
    case $program in */*) cp "$program" "$guest/tests/" ;; esac
done
cargo_tests() { cargo test --package kernels --lib --tests --no-run --message-format=json; }
names=$(for test in "$@"; do case $test in */*) ;; *) echo "$test" ;; esac; done)
if [ $# -eq 0 ] || [ -n "$names" ]; then
    echo "+ cargo test --package kernels --lib --tests --no-run"
    built=$(cargo_tests | sed -n 's/.*"target":{[^}]*"name":"\([^"]*\)".*"executable":"\([^"]*\)".*/\1 \2/p')
    [ -n "$built" ] || fail "the tests of kernels do not build"
    for name in ${names:-$(echo "$built" | cut -d ' ' -f 1)}; do
        path=$(echo "$built" | sed -n "s/^$name //p")
        [ -n "$path" ] || fail "kernels has no test program $name"
        cp "$path" "$guest/tests/$name"
    done
fi
cp model/tests/fixtures/rope.json "$guest$PWD/model/tests/fixtures/"

if [ ! -e "$packages/complete" ]; then
    for meta in linux-image-cloud-amd64 linux-image-virtual linux-image-amd64; do
        kernel=$(apt-cache depends "$meta" 2>/dev/null | sed -n 's/.*Depends: \(linux-image-[^ ]*\)$/\1/p' | head -n 1)
        [ -z "$kernel" ] || break
    done
    [ -n "$kernel" ] || fail "apt knows no package of a Linux kernel; run \`apt-get update\`"
    (cd "$packages" && say apt-get download "$kernel" busybox-static isolinux syslinux-common genisoimage)
    for package in "$packages"/*.deb; do
        dpkg-deb --extract "$package" "$packages/unpacked"
        rm "$package"
    done
    touch "$packages/complete"
fi
unpacked() { find "$packages/unpacked" -type f -path "*/$1" | head -n 1; }

busybox=$(unpacked bin/busybox)
cp "$busybox" "$guest/busybox"
for program in "$guest"/tests/*; do
    strip "$program" 2>/dev/null || true
    ldd "$program" | sed -n 's/[^/]*\(\/[^ ]*\) (0x.*/\1/p' | while read -r library; do
        mkdir -p "$guest$(dirname "$library")"
        [ -e "$guest$library" ] || cp --dereference "$library" "$guest$library"
    done
done
# One thread of tests, as the emulated machine has one core.
arguments=${ARGS-"--test-threads=1 --show-output ${FILTER:-}"}
cat >"$guest/init" <<INIT
#!/busybox sh
/busybox mount -t proc proc /proc
/busybox mount -t devtmpfs dev /dev
/busybox mount -t tmpfs tmp /tmp
/busybox stty -F /dev/ttyS0 -onlcr
/busybox grep -m 1 '^model name' /proc/cpuinfo
for program in /tests/*; do
    echo "EMULATED run \${program#/tests/}"
    TANDEM_KERNELS='${TANDEM_KERNELS:-}' \$program $arguments
    echo "EMULATED status \$? of \${program#/tests/}"
done
echo "EMULATED end"
/busybox sleep 2 # Until the serial line has sent everything.
/busybox poweroff -f
INIT
chmod +x "$guest/init"
disc=$work/$model/disc
(cd "$guest" && find . | "$busybox" cpio -o -H newc) >"$disc/initrd" 2>/dev/null
cp "$(unpacked 'boot/vmlinuz-*')" "$disc/vmlinuz"
cp "$(unpacked isolinux.bin)" "$(unpacked bios/ldlinux.c32)" "$disc/"
# Time is counted in instructions, 100 million a second, and what only makes an emulated boot longer is left out.
# `fsrm`: Bochs starts with fast strings disabled, and Linux then copies short strings by a loop that never ends.
# `amx_tile`: without XFD, which Bochs 3.0 lacks, Linux enables half of AMX, which the processor refuses.
clear=fsrm
[ -n "${AMX:-}" ] || clear=$clear,amx_tile,amx_bf16,amx_int8
fast="nokaslr mitigations=off no_timer_check tsc=reliable init_on_alloc=0"
cat >"$disc/isolinux.cfg" <<BOOT
DEFAULT tests
LABEL tests
 KERNEL vmlinuz
 INITRD initrd
 APPEND console=ttyS0 quiet panic=-1 rdinit=/init clearcpuid=$clear tsc_early_khz=100000 $fast
BOOT
"$(unpacked bin/genisoimage)" -quiet -o "$work/$model/disc.iso" -b isolinux.bin -c boot.cat -no-emul-boot -boot-load-size 4 \
    -boot-info-table "$disc"
cat >"$work/$model/bochsrc" <<CONFIG
config_interface: textconfig
display_library: nogui
megs: ${MEMORY_MIB:-2048}
romimage: file=\$BXSHARE/BIOS-bochs-latest, options=fastboot
vgaromimage: file=\$BXSHARE/VGABIOS-lgpl-latest.bin
cpu: model=$model, count=1, ips=100000000, reset_on_triple_fault=0
clock: sync=none, time0=utc
boot: cdrom
ata0-master: type=cdrom, path=$work/$model/disc.iso, status=inserted
com1: enabled=1, mode=file, dev=$work/$model/serial
log: $work/$model/bochs.log
panic: action=fatal
error: action=report
info: action=ignore
CONFIG
: >"$work/$model/serial"
echo "+ $bochs -q -f $work/$model/bochsrc"
"$bochs" -q -f "$work/$model/bochsrc" >"$work/$model/output" 2>&1 </dev/null &
running=$!
trap 'kill $running 2>/dev/null || true' EXIT
tail --follow --lines=+1 --pid=$running "$work/$model/serial" | tr -d '\r'
if ! grep -q "^EMULATED end" "$work/$model/serial"; then
    fail "the emulated machine did not get to its end; see $work/$model/bochs.log and output"
fi
trap - EXIT
if failed=$(grep "^EMULATED status [1-9]" "$work/$model/serial"); then
    fail "$failed"
fi
