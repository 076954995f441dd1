#!/usr/bin/env bash
# Fetches a kernel that Debian built, and prints the path of its bzImage. Beside it is modules.cpio, an
# archive of the modules that virtio devices need, in /modules: appended to an initramfs, it is part of it.
# Modules that are built into the kernel are left out.
#
#   scripts/debian-kernel.sh PACKAGE      a package that depends on the kernel, say linux-image-cloud-amd64
#
# The kernel's package is unpacked, not installed, in ${EXOPROBE_CACHE:-~/.cache/exoprobe}/debian-kernel.
set -euo pipefail

scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
script=debian-kernel
# shellcheck source=scripts/cache.sh
. "$scripts/cache.sh"
# shellcheck source=scripts/newc.sh
. "$scripts/newc.sh"

(($# == 1)) || die "give the name of a package, for example linux-image-cloud-amd64"
cache=${EXOPROBE_CACHE:-$HOME/.cache/exoprobe}/debian-kernel
modules=(virtio virtio_ring virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci virtio_blk
    virtio-rng)

# The package that has the kernel, and its version.
depends=$(apt-cache depends --important "$1")
package=$(sed -n '/^ *Depends: linux-image-[0-9]/{s/^ *Depends: //p;q}' <<<"$depends")
[[ -n $package ]] || die "apt knows no kernel of $1; try: sudo apt-get update"
version=$(apt-cache show --no-all-versions "$package" | sed -n 's/^Version: //p')
[[ -n $version ]] || die "apt knows no version of $package; try: sudo apt-get update"
key=${package}_${version}_$(cat "$scripts/debian-kernel.sh" "$scripts/newc.sh" | short_hash)

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
    # apt drops its rights for a download, unless the folder is closed to its user; either will do.
    (cd "$result" && apt-get -qq -o APT::Sandbox::User=root download "$package") || return
    dpkg -x "$result"/*.deb "$result/unpacked" || return
    mv "$result"/unpacked/boot/vmlinuz-* "$result/bzImage" || return
    pack_modules "$result/unpacked/lib/modules" >"$result/modules.cpio" || return
    rm -rf "$result/unpacked" "$result"/*.deb
}

cached "$cache" "$key" fetch
echo "$cache/$key/bzImage"
