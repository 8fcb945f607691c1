#!/bin/sh
# Makes a folder from which pkg-config has hwloc linked into a program, so that it needs no library
# but C's: scripts/static_hwloc.sh FOLDER
#
# libhwloc.a is the one of the system's package. What it asks of libudev, of which Debian has no
# static form, are properties of disks, and only where there is a udev: the libudev.a that is made
# here says that there is none, and hwloc then reads the same from /run/udev. This program asks for
# no disks.
set -eu

folder=$1
mkdir -p "$folder/pkgconfig"
folder=$(cd "$folder" && pwd)
unset PKG_CONFIG_PATH
library=$(pkg-config --variable=libdir hwloc)/libhwloc.a
if [ ! -f "$library" ]; then
    echo "$library is missing; scripts/install_deps.sh installs it." >&2
    exit 1
fi
cp "$library" "$folder/libhwloc.a"

cat > "$folder/udev.c" <<'C'
/* There is no udev here. */
void *udev_new(void) { return 0; }
void *udev_unref(void *udev) { (void)udev; return 0; }
void *udev_device_new_from_subsystem_sysname(void *udev, const char *subsystem, const char *name) {
    (void)udev; (void)subsystem; (void)name;
    return 0;
}
const char *udev_device_get_property_value(void *device, const char *key) {
    (void)device; (void)key;
    return 0;
}
void *udev_device_unref(void *device) { (void)device; return 0; }
C
"${CC:-cc}" -O1 -fPIC -c "$folder/udev.c" -o "$folder/udev.o"
rm -f "$folder/libudev.a"
"${AR:-ar}" rcs "$folder/libudev.a" "$folder/udev.o"

cat > "$folder/pkgconfig/hwloc.pc" <<PC
Name: hwloc
Description: hwloc, linked into the program
Version: $(pkg-config --modversion hwloc)
Cflags: $(pkg-config --cflags hwloc)
Libs: -L$folder -lhwloc -ludev -lm -lpthread -ldl
PC
echo "$folder/pkgconfig"
