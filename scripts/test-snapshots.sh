#!/usr/bin/env bash
# Prints the folder where the tests keep snapshots of guests right after boot, and makes it.
#
# Its name is the hash of all that a snapshot depends on: the crates that a guest boots with, the guests' files, the
# tests' configuration of them, and this machine. Folders of other hashes go once they were not used for two days.
set -euo pipefail

scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
script=test-snapshots
# shellcheck source=scripts/cache.sh
. "$scripts/cache.sh"
cd "$scripts/.."
cache=${EXOPROBE_CACHE:-$HOME/.cache/exoprobe}/snapshots

key=$({
    find guest-api introspect probes vmm tests/src tests/tests/support Cargo.lock Cargo.toml guest/cmdline -type f -print0
    find -L guest/out -maxdepth 2 -type f \( -name vmlinux -o -name bzImage -o -name initramfs.cpio \) -print0
} | LC_ALL=C sort -z | xargs -0 sha256sum)
key+=$(uname -r; grep -m 2 -E '^(model name|flags)' /proc/cpuinfo)
folder=$cache/$(short_hash <<<"$key")

mkdir -p "$folder"
touch "$folder"
find "$cache" -mindepth 1 -maxdepth 1 -mtime +1 -exec rm -rf {} +
printf '%s\n' "$folder"
