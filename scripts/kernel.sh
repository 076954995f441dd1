#!/usr/bin/env bash
# Builds a Linux kernel from Debian's source package, and prints the folder that then has its vmlinux,
# bzImage, System.map and config, and modules/ with its modules.
#
#   scripts/kernel.sh NAME SOURCE_PACKAGE FRAGMENT...   fragments are merged, in order, over tinyconfig
#   scripts/kernel.sh --packages SOURCE_PACKAGE FRAGMENT...   only lists the Debian packages that it needs
#
# Of the options that are modules (`=m`), those are built that a fragment names with a line of the form
# `# module: drivers/tty/ttynull.ko`; the others only change what the kernel has for them.
#
# A fragment may have CONFIG_HZ=N beside CONFIG_HZ_100=y: N ticks a second, fewer than x86 offers.
#
# vmlinux has all symbols and no DWARF. Of a kernel with DWARF (CONFIG_DEBUG_INFO_*), the folder also has
# vmlinux.debug, with it; vmlinux.btf, its types alone, as the kernel has them in memory if it does
# (CONFIG_DEBUG_INFO_BTF); and pahole.txt, what pahole says of some of them.
#
# Results are cached by the hash of their inputs in ${EXOPROBE_CACHE:-~/.cache/exoprobe}/kernel.
set -euo pipefail

# What the kernel build runs, and nothing more: the C toolchain and make, the generators of
# kconfig and of the bzImage, lz4 for its payload, libelf for objtool, xz for the source.
packages=(gcc make libc6-dev binutils bc flex bison libelf-dev lz4 xz-utils)
# And for its types, pahole.
types=()
# Those that pahole.txt shows.
shown_types=task_struct,file,sk_buff

# Adds what these fragments need to the packages.
need_packages() {
    if grep -qs '^CONFIG_DEBUG_INFO_DWARF.*=y' -- "$@"; then types=(pahole); fi
    packages+=("${types[@]}")
}

if [[ ${1:-} == --packages ]]; then
    source_package=$2
    shift 2
    need_packages "$@"
    printf '%s\n' "$source_package" "${packages[@]}"
    exit 0
fi

scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
script=kernel
# shellcheck source=scripts/cache.sh
. "$scripts/cache.sh"
# shellcheck source=scripts/kernel-headers.sh
. "$scripts/kernel-headers.sh"

name=$1
source_package=$2
shift 2
fragments=()
for fragment in "$@"; do fragments+=("$(realpath "$fragment")"); done
need_packages "${fragments[@]}"
cache=${EXOPROBE_CACHE:-$HOME/.cache/exoprobe}/kernel

kernel_key() {
    {
        cat "$scripts/kernel.sh" "$scripts/kernel-headers.sh" "$scripts/cache.sh" "${fragments[@]}"
        package_version "$source_package" "${types[@]}"
        # Their versions are compiled into the kernel (linux_banner).
        { gcc --version && ld --version; } 2>/dev/null || true
    } | short_hash
}

# Of the source, what no kernel here is built from: half its files. Those of make and of kconfig are read all the same,
# and stay.
left_out=(
    '*/'{Documentation,tools/perf,tools/testing}'/*/*'
    '*/arch/'{alpha,arc,arm,arm64,csky,hexagon,ia64,loongarch,m68k,microblaze,mips,nios2}'/*.[chS]'
    '*/arch/'{openrisc,parisc,powerpc,riscv,s390,sh,sparc,xtensa}'/*.[chS]'
    '*/arch/*.dts*'
    '*/drivers/'{gpu,infiniband,media,staging,net/ethernet,net/wireless}'/*.[chS]'
    '*/sound/*.[chS]'
)

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

# In the kernel's tree: has HZ_100 mean the CONFIG_HZ of the fragments. Linux takes 12 ticks a second and more
# (include/linux/jiffies.h); of its architectures, MIPS offers 24, for machines that are emulated.
slow_ticks() {
    local hz
    hz=$(sed -n 's/^CONFIG_HZ=//p' "${fragments[@]}" | tail -n 1)
    [[ -z $hz ]] || sed -i "s/default 100 if HZ_100/default $hz if HZ_100/" kernel/Kconfig.hz
}

make_kernel() {
    local tree=$1 result=$2 fragment
    # A reproducible kernel: no time, user, host or path of this build in it.
    export KBUILD_BUILD_TIMESTAMP='1970-01-01 00:00:00 UTC' KBUILD_BUILD_USER=exoprobe
    export KBUILD_BUILD_HOST=exoprobe KBUILD_BUILD_VERSION=1 LC_ALL=C
    unset MAKEFLAGS MFLAGS CROSS_COMPILE ARCH KCONFIG_CONFIG
    # In DWARF, and the build IDs that depend on it, the tree is where Debian's users unpack theirs.
    local map=-fdebug-prefix-map=$tree=/usr/src
    # Functions of the boot are compiled for size, with memory cleared by `rep stosb`: 2 s of a boot
    # where KVM emulates it byte by byte.
    export KCFLAGS="$map -mstringop-strategy=libcall" KAFLAGS=$map
    tar -C "$tree" "${left_out[@]/#/--exclude=}" -xf "/usr/src/$source_package.tar.xz" || return
    cd "$tree/$source_package" || return
    slow_ticks || return
    make tinyconfig || return
    for fragment in "${fragments[@]}"; do
        cat "$fragment" >>.config || return
    done
    make olddefconfig || return
    check_config .config || return
    precompile_headers || return
    make_with_headers vmlinux bzImage || return
    cp vmlinux System.map .config "$result/" || return
    mv "$result/.config" "$result/config" || return
    cp arch/x86/boot/bzImage "$result/" || return
    make_modules "$result" || return
    if grep -q '^CONFIG_DEBUG_INFO=y' .config; then part_debug_info "$result" || return; fi
}

# In the kernel's tree: the modules that fragments name, without DWARF, into RESULT/modules.
make_modules() {
    local result=$1 module modules
    mapfile -t modules < <(sed -n 's/^# module: //p' "${fragments[@]}")
    ((${#modules[@]} > 0)) || return 0
    nice make -j"$(nproc)" "${modules[@]}" || return
    mkdir "$result/modules" || return
    for module in "${modules[@]}"; do
        objcopy --strip-debug "$module" "$result/modules/${module##*/}" || return
    done
}

# Makes two files of a vmlinux with DWARF, and two more of its types.
part_debug_info() {
    local result=$1
    local whole=$result/vmlinux.debug btf=$result/vmlinux.btf
    mv "$result/vmlinux" "$whole" || return
    if grep -q '^CONFIG_DEBUG_INFO_BTF=y' "$result/config"; then
        objcopy --strip-debug --dump-section .BTF="$btf" "$whole" "$result/vmlinux" || return
    else
        objcopy --strip-debug "$whole" "$result/vmlinux" || return
        pahole --btf_encode_detached="$btf" "$whole" || return
    fi
    pahole -F dwarf -C "$shown_types" "$whole" >"$result/pahole.txt"
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
