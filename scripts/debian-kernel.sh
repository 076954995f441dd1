#!/usr/bin/env bash
# Fetches a kernel that Debian built, and prints the path of its bzImage. Beside it is modules.cpio, an
# archive of modules in /modules, those that virtio devices need, and those that Debian's tools probe
# (XFS, md): appended to an initramfs, it is part of it.
# Modules that are built into the kernel are left out. With them is tests/livepatch/, built for the kernel.
#
#   scripts/debian-kernel.sh PACKAGE      a package that depends on the kernel, say linux-image-cloud-amd64
#
# The kernel's package and its headers are unpacked, not installed, in ${EXOPROBE_CACHE:-~/.cache/exoprobe}/debian-kernel.
set -euo pipefail

scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
script=debian-kernel
# shellcheck source=scripts/cache.sh
. "$scripts/cache.sh"
# shellcheck source=scripts/apt.sh
. "$scripts/apt.sh"
# shellcheck source=scripts/newc.sh
. "$scripts/newc.sh"

(($# == 1)) || die "give the name of a package, for example linux-image-cloud-amd64"
cache=${EXOPROBE_CACHE:-$HOME/.cache/exoprobe}/debian-kernel
modules=(virtio virtio_ring virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci virtio_blk
    virtio-rng crc32c_generic libcrc32c xfs md-mod exoprobe_live)

# The package that has the kernel, and its version.
depends=$(apt_cache depends --important "$1")
package=$(sed -n '/^ *Depends: linux-image-[0-9]/{s/^ *Depends: //p;q}' <<<"$depends")
[[ -n $package ]] || die "apt knows no kernel of $1; try: sudo apt-get update"
version=$(apt_cache show --no-all-versions "$package" | sed -n 's/^Version: //p')
[[ -n $version ]] || die "apt knows no version of $package; try: sudo apt-get update"
live_patch=$scripts/../tests/livepatch
key=${package}_${version}_$(cat "$scripts/debian-kernel.sh" "$scripts/newc.sh" "$live_patch"/* | short_hash)

# Downloads packages and unpacks them into folder $1.
unpack() {
    local folder=$1 file
    shift
    # apt drops its rights for a download, unless the folder is closed to its user; either will do.
    (cd "$folder" && apt-get -qq -o APT::Sandbox::User=root download "$@") || return
    for file in "$folder"/*.deb; do
        dpkg -x "$file" "$folder" && rm "$file" || return
    done
}

# Builds the live patch for the kernel, in folder $1, and moves it to folder $2.
build_live_patch() {
    local tree=$1 headers=${package/linux-image/linux-headers} needed
    mapfile -t needed < <(apt_cache depends --important "$headers" |
        sed -nE 's/^ *Depends: (linux-(headers|kbuild)-)/\1/p')
    mkdir "$tree" && unpack "$tree" "$headers" "${needed[@]}" || return
    sed -i "s|/usr/src/|$tree/usr/src/|" "$tree/usr/src/$headers/Makefile" || return
    cp -r "$live_patch" "$tree/live" || return
    make -s -C "$tree/usr/src/$headers" M="$tree/live" modules >"$tree/log" 2>&1 ||
        { cat "$tree/log" >&2 && return 1; }
    strip --strip-debug "$tree/live/exoprobe_live.ko" && mv "$tree/live/exoprobe_live.ko" "$2"
}

# The archive of the modules below folder $1.
pack_modules() {
    local name file
    newc modules 8#40755 ''
    for name in "${modules[@]}"; do
        file=$(find "$1" -name "$name.ko" -o -name "$name.ko.xz")
        if [[ -z $file ]]; then
            grep -q "/$name.ko$" "$1"/*/modules.builtin || die "$package has no module $name"
            continue
        fi
        if [[ $file == *.xz ]]; then
            xz -d "$file"
            file=${file%.xz}
        fi
        newc "modules/$name.ko" 8#100644 "$file"
    done
    newc 'TRAILER!!!' 0 ''
}

fetch() {
    local result=$1
    say "fetching $package $version"
    mkdir "$result/unpacked" && unpack "$result/unpacked" "$package" || return
    mv "$result"/unpacked/boot/vmlinuz-* "$result/bzImage" || return
    build_live_patch "$result/headers" "$result/unpacked/lib/modules" || return
    pack_modules "$result/unpacked/lib/modules" >"$result/modules.cpio" || return
    rm -rf "$result/unpacked" "$result/headers"
}

cached "$cache" "$key" fetch
echo "$cache/$key/bzImage"
