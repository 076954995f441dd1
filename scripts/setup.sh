#!/usr/bin/env bash
# Installs what exoprobe needs from Debian, if anything is missing: through apt when root, else it
# prints the one line to run. Rust itself must be there (rustup.rs), and space on the disk: both are
# checked first, before anything is installed or built.
#
#   scripts/setup.sh                      what the tiny guest and the product need
#   scripts/setup.sh --guest VARIANT      what that variant of the guest needs too (guest/build.sh)
#   scripts/setup.sh --lab                what the lab and the tests of networks need too (docs/testing.md)
#   scripts/setup.sh --bpftrace           the real bpftrace, which the tests of script/ compare with
#   scripts/setup.sh --debian             what the disk image of Debian needs too (scripts/debian-image.sh)
set -euo pipefail
cd "$(dirname "$0")/.."

# GiB for builds and caches (measured: docs/testing.md). The guest alone, and with the lab.
space=6
variants=(tiny)
packages=(curl g++ python3 python3-venv)
while [ $# -gt 0 ]; do
    case $1 in
    --lab)
        # An emulator (scripts/bochs.sh builds the other) and their BIOSes; the boot loader and the maker of the CD.
        space=15
        packages+=(bochs bochs-term bochsbios seabios isolinux syslinux-common xorriso)
        # The network stack that guests are tested with, and the tool for tap interfaces.
        packages+=(passt iproute2)
        # Programs over the kernel's own trace files. scripts/trace-readers.sh fetches libraries.
        packages+=(trace-cmd linux-perf)
        # The proxy of docs/security.md, its certificates' maker, and the judge of packaging/.
        packages+=(stunnel4 openssl systemd)
        shift
        ;;
    --bpftrace)
        # The other side of script/tests/differential, and the tools that script/tests/tools.rs reads.
        packages+=(bpftrace)
        shift
        ;;
    --debian)
        # Its packages' maker, and what that needs to work without root.
        packages+=(mmdebstrap uidmap fakeroot e2fsprogs)
        shift
        ;;
    --guest)
        variants+=("${2:?give a variant of guest/build.sh}")
        shift 2
        ;;
    *)
        echo "setup: unknown argument '$1' (known: --lab, --bpftrace, --debian, --guest VARIANT)" >&2
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

# Rust, as old as Cargo.toml allows at most.
rust=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
if ! command -v cargo >/dev/null; then
    echo "setup: cargo is missing: install Rust $rust or later from https://rustup.rs" >&2
    exit 1
fi
found=$(cargo --version | cut -d' ' -f2)
if [ "$(printf '%s\n' "$rust" "$found" | sort -V | head -n 1)" != "$rust" ]; then
    echo "setup: Rust $found is too old: $rust or later is needed; run: rustup update stable" >&2
    echo "setup: Debian's own cargo may be older: https://rustup.rs has the current one" >&2
    exit 1
fi

# What builds have written already counts as space.
mkdir -p target
free=$(df --output=avail -k target | tail -n 1)
if [ "$free" -lt $((space << 20)) ] &&
    [ $((free + $(du -sk target | cut -f1))) -lt $((space << 20)) ]; then
    echo "setup: no space: builds need about $space GiB in $PWD/target, $((free >> 20)) GiB are free" >&2
    echo "setup: free some, or clone to a larger disk" >&2
    exit 1
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
        if grep -qE 'Could not resolve|Temporary failure|Could not connect|Connection (failed|refused|timed out)|Unable to connect' "$log"; then
            echo "setup: no network for Debian's packages: connect, or set http_proxy, and try again" >&2
        fi
        echo "setup: apt failed; its whole output is in $log" >&2
        exit 1
    fi
    rm -f "$log"
fi
