#!/usr/bin/env bash
# Runs shell commands in the tracing folder of a kernel of Debian's, which has its own tracer, in QEMU without KVM.
#
#   scripts/tracer-oracle.sh PACKAGE COMMANDS RESULTS
#
# PACKAGE depends on the kernel, say linux-image-6.12-cloud-amd64. COMMANDS is a script of busybox's shell, run in
# the folder where tracefs is; its output goes to the file RESULTS. Debian's kernel, QEMU and busybox are unpacked in
# ${EXOPROBE_CACHE:-~/.cache/exoprobe}, not installed.
set -euo pipefail

scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
script=tracer-oracle
# shellcheck source=scripts/cache.sh
. "$scripts/cache.sh"
# shellcheck source=scripts/apt.sh
. "$scripts/apt.sh"
# shellcheck source=scripts/newc.sh
. "$scripts/newc.sh"

(($# == 3)) || die "give PACKAGE, COMMANDS and RESULTS"
cache=${EXOPROBE_CACHE:-$HOME/.cache/exoprobe}/busybox
version=$(apt_cache show --no-all-versions busybox-static | sed -n 's/^Version: //p')
[[ -n $version ]] || die "apt knows no busybox-static; try: sudo apt-get update"

fetch() {
    local result=$1
    (cd "$result" && apt-get -qq -o APT::Sandbox::User=root download busybox-static) || return
    dpkg -x "$result"/*.deb "$result/unpacked" || return
    mv "$result/unpacked/bin/busybox" "$result/" || return
    rm -rf "$result/unpacked" "$result"/*.deb
}

cached "$cache" "$version" fetch
kernel=$("$scripts/debian-kernel.sh" "$1")
qemu=$("$scripts/qemu.sh")

# Prints the archive that the kernel runs: program $1, with the commands of file $2.
pack() {
    newc bin 8#40755 ''
    newc bin/busybox 8#100755 "$cache/$version/busybox"
    newc init 8#100755 "$1"
    newc commands 8#100644 "$2"
    newc 'TRAILER!!!' 0 ''
}

# Runs the archive of the folder $1; the output goes into its file "output". Fails unless the commands came to their end.
run() {
    local folder=$1
    QEMU_MODULE_DIR=$qemu timeout 3000 "$qemu/ld-linux-x86-64.so.2" --library-path "$qemu" "$qemu/qemu-system-x86_64" -L "$qemu" \
        -machine pc -accel tcg -cpu max -m 512 -nodefaults -vga none -display none -no-reboot \
        -kernel "$kernel" -initrd "$folder/initramfs" -append 'console=ttyS0 quiet mitigations=off nokaslr panic=-1' \
        -serial "file:$folder/console" -serial "file:$folder/output" ||
        { cat "$folder/console" >&2; die "QEMU failed"; }
    grep -q "$ended" "$folder/console" || { cat "$folder/console" >&2; die "the commands did not come to their end"; }
}

ended='the commands have ended'
folder=$(mktemp -d)
scratch+=("$folder")
cat >"$folder/init" <<INIT
#!/bin/busybox sh
/bin/busybox mkdir -p /proc /dev /tracing
/bin/busybox mount -t devtmpfs devtmpfs /dev
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t tracefs tracefs /tracing
exec >/dev/ttyS1 2>&1
/bin/busybox stty raw
cd /tracing
. /commands
cd /
echo $ended >/dev/ttyS0
/bin/busybox poweroff -f
INIT
pack "$folder/init" "$2" >"$folder/initramfs"
say "running $(wc -l <"$2") lines in $1, in QEMU without KVM (up to some minutes)"
run "$folder"
cp "$folder/output" "$3"
