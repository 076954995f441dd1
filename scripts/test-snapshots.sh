#!/usr/bin/env bash
# Prints the folder where the tests keep snapshots of guests right after boot, and makes it.
#
# Its name is the hash of all that a snapshot depends on: the crates that a guest boots with, the guests' files and
# their folder (a snapshot names its kernel's file, whose symbols and types a restored guest has), the tests'
# configuration of them, and this machine since its boot (its KVM, and the rate of its clock). Folders of other hashes
# go once they were not used for two days.
set -euo pipefail

scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
script=test-snapshots
# shellcheck source=scripts/cache.sh
. "$scripts/cache.sh"
cd "$scripts/.."
cache=${EXOPROBE_CACHE:-$HOME/.cache/exoprobe}/snapshots

guest=${EXOPROBE_GUEST:-guest}
key=$({
    find guest-api introspect probes vmm tests/src tests/tests/support Cargo.lock Cargo.toml "$guest/cmdline" -type f -print0
    find -L "$guest/out" -maxdepth 2 -type f \( -name vmlinux -o -name bzImage -o -name initramfs.cpio \) -print0
} | LC_ALL=C sort -z | xargs -0 sha256sum)
key+=$(cd "$guest/out" && pwd -P)
key+=$(uname -r; cat /proc/sys/kernel/random/boot_id; grep -m 2 -E '^(model name|flags)' /proc/cpuinfo)
key+=$(grep -sH . /sys/module/kvm*/srcversion /sys/module/kvm*/parameters/* || true)
folder=$cache/$(short_hash <<<"$key")

mkdir -p "$folder"
touch "$folder"
find "$cache" -mindepth 1 -maxdepth 1 -mtime +1 -exec rm -rf {} +
# Left by a run that was killed.
find "$folder" -mindepth 1 -maxdepth 1 -name '.tmp*' -mmin +1440 -exec rm -rf {} +
printf '%s\n' "$folder"
