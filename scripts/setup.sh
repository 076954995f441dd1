#!/usr/bin/env bash
# Installs what exoprobe needs from Debian, if anything is missing: through apt when root, else it
# prints the one line to run. Rust itself must be there (rustup.rs, or Debian's cargo >= 1.90).
#
#   scripts/setup.sh                      what the tiny guest and the product need
#   scripts/setup.sh --guest VARIANT      what that variant of the guest needs too (guest/build.sh)
#   scripts/setup.sh --lab                what the lab needs too (docs/testing.md)
set -euo pipefail
cd "$(dirname "$0")/.."

variants=(tiny)
packages=(curl g++ python3 python3-venv)
while [ $# -gt 0 ]; do
    case $1 in
    --lab)
        # The emulator with its terminal and its BIOSes; the boot loader and the maker of its CD.
        packages+=(bochs bochs-term bochsbios seabios isolinux syslinux-common xorriso)
        shift
        ;;
    --guest)
        variants+=("${2:?give a variant of guest/build.sh}")
        shift 2
        ;;
    *)
        echo "setup: unknown argument '$1' (known: --lab, --guest VARIANT)" >&2
        exit 2
        ;;
    esac
done
# The guest's build names its own packages, so that there is one list of them.
for variant in "${variants[@]}"; do
    list=$(guest/build.sh --packages "$variant")
    mapfile -t -O "${#packages[@]}" packages <<<"$list"
done
mapfile -t packages < <(printf '%s\n' "${packages[@]}" | LC_ALL=C sort -u)

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
