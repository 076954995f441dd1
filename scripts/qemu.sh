#!/usr/bin/env bash
# Fetches Debian's QEMU for x86-64, with the libraries and the firmware that it needs for a machine without
# graphics, and prints the folder: all files are side by side, so that it runs wherever the folder is put, as
#
#   FOLDER/ld-linux-x86-64.so.2 --library-path FOLDER FOLDER/qemu-system-x86_64 -L FOLDER ...
#
# and without KVM with QEMU_MODULE_DIR=FOLDER in its environment.
#
# Packages are unpacked, not installed, in ${EXOPROBE_CACHE:-~/.cache/exoprobe}/qemu.
set -euo pipefail

scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
script=qemu
# shellcheck source=scripts/cache.sh
. "$scripts/cache.sh"
# shellcheck source=scripts/apt.sh
. "$scripts/apt.sh"

cache=${EXOPROBE_CACHE:-$HOME/.cache/exoprobe}/qemu
program=qemu-system-x86_64
# The emulator that stands in for KVM, a module of QEMU.
emulator=accel-tcg-x86_64.so
# Those that `-machine pc -nodefaults -vga none -kernel` loads.
firmware=(bios-256k.bin kvmvapic.bin linuxboot_dma.bin)

version=$(apt_cache show --no-all-versions qemu-system-x86 | sed -n 's/^Version: //p')
[[ -n $version ]] || die "apt knows no qemu-system-x86; try: sudo apt-get update"
# Without the epoch, whose colon would end the folder in a library path.
key=${version#*:}_$(short_hash <"$scripts/qemu.sh")

# The packages: QEMU's own, installed or not, and those of its libraries that this system has not.
packages() {
    printf '%s\n' qemu-system-x86 qemu-system-common qemu-system-data seabios
    apt-get -s install --no-install-recommends qemu-system-x86 | sed -n 's/^Inst \([^ ]*\) .*/\1/p'
}

# Fails if the loader misses a library of the program $1; prints the others' paths.
libraries() {
    local found
    found=$(LD_LIBRARY_PATH=$2/usr/lib/x86_64-linux-gnu:$2/lib/x86_64-linux-gnu ldd "$1")
    if grep -q 'not found' <<<"$found"; then
        die "libraries are missing: $(grep 'not found' <<<"$found")"
    fi
    grep -o '/[^ ]*' <<<"$found"
}

fetch() {
    local result=$1 tree=$1/unpacked wanted file
    say "fetching QEMU $version"
    packages | LC_ALL=C sort -u >"$result/packages"
    mapfile -t wanted <"$result/packages"
    # apt drops its rights for a download, unless the folder is closed to its user; either will do.
    (cd "$result" && apt-get -qq -o APT::Sandbox::User=root download "${wanted[@]}") || return
    for file in "$result"/*.deb; do
        dpkg -x "$file" "$tree" || return
    done
    libraries "$tree/usr/bin/$program" "$tree" >"$result/libraries" || return
    while read -r file; do
        cp -L "$file" "$result/" || return
    done <"$result/libraries"
    for file in "${firmware[@]}"; do
        # The firmware of the package seabios is a link from QEMU's own folder.
        cp "$(find "$tree/usr/share" -type f -name "$file" | head -n 1)" "$result/" || return
    done
    cp "$tree/usr/bin/$program" "$tree/usr/lib/x86_64-linux-gnu/qemu/$emulator" "$result/" || return
    rm -rf "$tree" "$result"/*.deb "$result/packages" "$result/libraries"
}

cached "$cache" "$key" fetch
echo "$cache/$key"
