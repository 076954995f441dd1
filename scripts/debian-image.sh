#!/usr/bin/env bash
# Builds a disk image of Debian 12 with systemd, and prints the path of its folder: disk.raw (ext4, no partitions),
# vmlinuz and initrd.img, which Debian's own packages put into its /boot. Root has no password there.
#
# Needs no root: mmdebstrap unpacks in a namespace of its own, and fakeroot remembers the files' owners. Takes some two
# minutes; the result is kept in ${EXOPROBE_CACHE:-~/.cache/exoprobe}/debian-image, as it was when it was built: remove that
# folder to have the packages of today.
set -euo pipefail

scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
script=debian-image
# shellcheck source=scripts/cache.sh
. "$scripts/cache.sh"

(($# == 0)) || die "it takes no arguments"
cache=${EXOPROBE_CACHE:-$HOME/.cache/exoprobe}/debian-image
packages=linux-image-cloud-amd64,systemd-sysv,udev,dbus,zstd,iproute2,curl
# Of the disk, in MiB: sparse, about half of it is used.
size=1024
check_packages mmdebstrap fakeroot e2fsprogs
key=$(short_hash <"$scripts/debian-image.sh")

# The network comes up by DHCP, or as `ip=` on the kernel's command line says (systemd-network-generator, whose files
# come first).
customize() {
    cat <<'CUSTOMIZE'
set -eu
cd "$1"
chroot . passwd --quiet --delete root
echo debian >etc/hostname
echo '/dev/vda / ext4 defaults 0 1' >etc/fstab
printf '[Match]\nType=ether\n[Network]\nDHCP=yes\n' >etc/systemd/network/95-ethernet.network
chroot . systemctl --quiet enable systemd-networkd systemd-network-generator
CUSTOMIZE
}

# A folder from the archive $1, and the file system from that, as one program: of its owners only this fakeroot knows.
make_disk() {
    local tar=$1 result=$2
    mkdir "$result/root" || return
    # shellcheck disable=SC2016 # for the shell below
    fakeroot sh -euc '
        tar -C "$2/root" --numeric-owner -xf "$1"
        cp "$2"/root/boot/vmlinuz-* "$2/vmlinuz"
        cp "$2"/root/boot/initrd.img-* "$2/initrd.img"
        truncate --size "$3M" "$2/disk.raw"
        mke2fs -q -t ext4 -L debian -d "$2/root" "$2/disk.raw"
    ' sh "$tar" "$result" "$size" || return
    chmod 644 "$result/vmlinuz" "$result/initrd.img" || return
    # Files without the right to be read stay in folders without the right to be removed.
    chmod -R u+rwX "$result/root" || return
    rm -rf "$result/root" "$tar"
}

build() {
    local result=$1
    say "building Debian 12 (two minutes or so)"
    customize >"$result/customize" || return
    mmdebstrap --quiet --variant=minbase --include="$packages" \
        --customize-hook="sh $result/customize \"\$1\"" \
        bookworm - >"$result/root.tar" || die "mmdebstrap failed; it has said why"
    rm "$result/customize"
    make_disk "$result/root.tar" "$result"
}

cached "$cache" "$key" build
echo "$cache/$key"
