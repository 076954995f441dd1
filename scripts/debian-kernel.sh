#!/usr/bin/env bash
# Fetches a kernel that Debian built, and prints the path of its bzImage.
#
#   scripts/debian-kernel.sh PACKAGE      a package that depends on the kernel, say linux-image-cloud-amd64
#
# The kernel's package is unpacked, not installed, in ${EXOPROBE_CACHE:-~/.cache/exoprobe}/debian-kernel.
set -euo pipefail

scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
script=debian-kernel
# shellcheck source=scripts/cache.sh
. "$scripts/cache.sh"

(($# == 1)) || die "give the name of a package, for example linux-image-cloud-amd64"
cache=${EXOPROBE_CACHE:-$HOME/.cache/exoprobe}/debian-kernel

# apt's own name and version of the package that has the kernel.
package=$(apt-cache depends --important "$1" | sed -n 's/^ *Depends: \(linux-image-[0-9]\)/\1/p' | head -n 1)
[[ -n $package ]] || die "apt knows no kernel of $1; try: sudo apt-get update"

fetch() {
    local result=$1
    say "fetching $package"
    # apt drops its rights for a download, unless the folder is closed to its user; either will do.
    (cd "$result" && apt-get -qq -o APT::Sandbox::User=root download "$package") || return
    dpkg -x "$result"/*.deb "$result/unpacked" || return
    mv "$result"/unpacked/boot/vmlinuz-* "$result/bzImage" || return
    rm -rf "$result/unpacked" "$result"/*.deb
}

cached "$cache" "$package" fetch
echo "$cache/$package/bzImage"
