#!/usr/bin/env bash
# Installs what exoprobe needs from Debian, if anything is missing: through apt when root, else it
# prints the one line to run. Rust itself must be there (rustup.rs, or Debian's cargo >= 1.90).
#
#   scripts/setup.sh [--lab]      with --lab, what the lab needs too (docs/testing.md)
set -euo pipefail
cd "$(dirname "$0")/.."

# The guest's build names its own packages, so that there is one list of them.
list=$(guest/build.sh --packages)
mapfile -t packages <<<"$list"
packages+=(curl g++ python3)
if [ "${1:-}" = --lab ]; then
    # The emulator with its terminal and its BIOSes; the boot loader and the maker of its CD.
    packages+=(bochs bochs-term bochsbios seabios isolinux syslinux-common xorriso)
fi

missing=()
for package in "${packages[@]}"; do
    status=$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null || true)
    [ "$status" = 'install ok installed' ] || missing+=("$package")
done

if [ ${#missing[@]} -gt 0 ]; then
    if [ "$(id -u)" -ne 0 ]; then
        echo "setup: missing Debian packages; run this, then try again:" >&2
        echo "  sudo apt-get update && sudo apt-get install -y --no-install-recommends ${missing[*]}" >&2
        exit 1
    fi
    echo "setup: installing ${missing[*]}"
    log=$(mktemp)
    if ! { apt-get update && DEBIAN_FRONTEND=noninteractive \
        apt-get install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
        tail -n 30 "$log" >&2
        echo "setup: apt failed; its whole output is in $log" >&2
        exit 1
    fi
    rm -f "$log"
fi

if ! command -v cargo >/dev/null; then
    echo "setup: cargo is missing: install Rust 1.90 or later from https://rustup.rs" >&2
    exit 1
fi
