#!/usr/bin/env bash
# Builds a Linux kernel from Debian's source package, and prints the folder that then has its vmlinux,
# bzImage, System.map and config.
#
#   scripts/kernel.sh NAME SOURCE_PACKAGE FRAGMENT...   fragments are merged, in order, over tinyconfig
#   scripts/kernel.sh --packages SOURCE_PACKAGE         only lists the Debian packages that it needs
#
# Results are cached by the hash of their inputs in ${EXOPROBE_CACHE:-~/.cache/exoprobe}/kernel.
set -euo pipefail

# What the kernel build runs, and nothing more: the C toolchain and make, the generators of
# kconfig and of the bzImage, lz4 for its payload, libelf for objtool, xz for the source.
packages=(gcc make libc6-dev binutils bc flex bison libelf-dev lz4 xz-utils)

if [[ ${1:-} == --packages ]]; then
    printf '%s\n' "$2" "${packages[@]}"
    exit 0
fi

scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
script=kernel
# shellcheck source=scripts/cache.sh
. "$scripts/cache.sh"

name=$1
source_package=$2
shift 2
fragments=()
for fragment in "$@"; do fragments+=("$(realpath "$fragment")"); done
cache=${EXOPROBE_CACHE:-$HOME/.cache/exoprobe}/kernel

kernel_key() {
    {
        cat "$scripts/kernel.sh" "$scripts/cache.sh" "${fragments[@]}"
        package_version "$source_package"
        # Their versions are compiled into the kernel (linux_banner).
        { gcc --version && ld --version; } 2>/dev/null || true
    } | short_hash
}

# Prints the number of lines like "  CC  file.o" while process $1 runs: every second on a
# terminal, every ten seconds elsewhere.
progress() {
    local pid=$1 log=$2 started=$SECONDS count
    while kill -0 "$pid" 2>/dev/null; do
        sleep 1
        count=$(grep -cE '^  [A-Z]+ ' "$log" || true)
        if [[ -t 2 ]]; then
            printf '\r%s: %5d steps, %3d s ' "$name" "$count" $((SECONDS - started)) >&2
        elif (((SECONDS - started) % 10 == 0)); then
            say "$name: $count steps, $((SECONDS - started)) s"
        fi
    done
    if [[ -t 2 ]]; then echo >&2; fi
}

# The options of all fragments, a line each; of an option that several have, the last one's.
wanted_options() {
    awk '/^CONFIG_/ { name = $0; sub(/=.*/, "", name); line[name] = $0 }
         /^# CONFIG_.* is not set$/ { line[$2] = $0 }
         END { for (name in line) print line[name] }' "${fragments[@]}" | LC_ALL=C sort
}

# Fails if an option of the fragments did not make it into the final configuration.
check_config() {
    local config=$1 line name lost=0
    while IFS= read -r line; do
        if [[ $line == \#* ]]; then
            read -r _ name _ <<<"$line"
            if ! grep -q "^$name=" "$config"; then continue; fi
        elif grep -qxF -- "$line" "$config"; then
            continue
        fi
        echo "not in the final configuration: $line"
        lost=1
    done < <(wanted_options)
    return "$lost"
}

make_kernel() {
    local tree=$1 result=$2 fragment
    # A reproducible kernel: no time, user, host or path of this build in it.
    export KBUILD_BUILD_TIMESTAMP='1970-01-01 00:00:00 UTC' KBUILD_BUILD_USER=exoprobe
    export KBUILD_BUILD_HOST=exoprobe KBUILD_BUILD_VERSION=1 LC_ALL=C
    unset MAKEFLAGS MFLAGS CROSS_COMPILE ARCH KCFLAGS KAFLAGS KCONFIG_CONFIG
    tar -C "$tree" -xf "/usr/src/$source_package.tar.xz" || return
    cd "$tree/$source_package" || return
    make tinyconfig || return
    for fragment in "${fragments[@]}"; do
        cat "$fragment" >>.config || return
    done
    make olddefconfig || return
    check_config .config || return
    nice make -j"$(nproc)" vmlinux bzImage || return
    cp vmlinux System.map .config "$result/" || return
    mv "$result/.config" "$result/config" || return
    cp arch/x86/boot/bzImage "$result/"
}

build_kernel() {
    local result=$1 tree log=$cache/$name.log pid
    check_packages "$source_package" "${packages[@]}"
    say "$name: building from $source_package (some minutes); log: $log"
    tree=$(mktemp -d "${TMPDIR:-/tmp}/exoprobe-kernel.XXXXXX")
    scratch+=("$tree")
    # `set -e` does not act in a function whose status is tested; hence its many `return`s.
    (make_kernel "$tree" "$result") >"$log" 2>&1 9>&- &
    pid=$!
    worker=$pid
    progress "$pid" "$log"
    if ! wait "$pid"; then
        tail -n 30 "$log" >&2
        die "$name: the build failed; full log: $log"
    fi
    worker=
    rm -rf "$tree"
}

key=$(kernel_key)
cached "$cache" "$key" build_kernel
echo "$cache/$key"
