#!/usr/bin/env bash
# Builds exoprobe's tiny guest into guest/out/: kernel (vmlinux, bzImage, System.map) and
# initramfs.cpio. See README.md.
#
#   guest/build.sh [VARIANT]      default: tiny; other variants go to guest/out/VARIANT/
#   guest/build.sh --packages [VARIANT]      only lists the Debian packages that it needs
#
# Results are cached by the hash of their inputs in ${EXOPROBE_CACHE:-~/.cache/exoprobe}/guest.
set -euo pipefail

guest=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
list_packages=
if [[ ${1:-} == --packages ]]; then
    list_packages=1
    shift
fi
variant=${1:-tiny}
cache=${EXOPROBE_CACHE:-$HOME/.cache/exoprobe}/guest

# A variant is a linux-source package and the fragments merged, in order, over tinyconfig. All
# but `tiny` have an out/ folder of their own.
out=$guest/out/$variant
case $variant in
tiny)
    source_package=linux-source-6.1
    fragments=(kernel.config)
    out=$guest/out
    ;;
*)
    echo "build.sh: unknown variant '$variant' (known: tiny)" >&2
    exit 2
    ;;
esac

# What the kernel build runs, and nothing more: the C toolchain and make, the generators of
# kconfig and of the bzImage, lz4 for its payload, libelf for objtool, xz for the source.
packages=("$source_package" gcc make libc6-dev binutils bc flex bison libelf-dev lz4 xz-utils)

if [[ -n $list_packages ]]; then
    printf '%s\n' "${packages[@]}"
    exit 0
fi

say() { printf 'guest: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

check_packages() {
    local package missing=()
    for package in "${packages[@]}"; do
        # shellcheck disable=SC2016 # dpkg-query's own format, not a shell variable
        [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] ||
            missing+=("$package")
    done
    ((${#missing[@]} == 0)) ||
        die "missing Debian packages; install them with: sudo apt-get install ${missing[*]}"
}

package_version() {
    # shellcheck disable=SC2016 # as above
    dpkg-query -W -f '${Package}=${Version}\n' "$@" 2>/dev/null || true
}

# The hash of stdin, short enough for a folder name.
short_hash() { sha256sum | cut -c1-32; }

# Hashes names and contents of files given relative to the guest folder.
hash_files() { (cd "$guest" && sha256sum -- "$@"); }

kernel_key() {
    {
        hash_files build.sh "${fragments[@]}"
        package_version "$source_package"
        # Their versions are compiled into the kernel (linux_banner).
        { gcc --version && ld --version; } 2>/dev/null || true
    } | short_hash
}

init_sources() {
    (cd "$guest" && find init/src init/build.rs init/Cargo.toml init/Cargo.lock -type f |
        LC_ALL=C sort)
}

initramfs_key() {
    local sources
    mapfile -t sources < <(init_sources)
    {
        hash_files build.sh "${sources[@]}"
        rustc -vV
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
            printf '\rguest: kernel: %5d steps, %3d s ' "$count" $((SECONDS - started)) >&2
        elif (((SECONDS - started) % 10 == 0)); then
            say "kernel: $count steps, $((SECONDS - started)) s"
        fi
    done
    if [[ -t 2 ]]; then echo >&2; fi
}

# Fails if an option of the fragments did not make it into the final configuration.
check_config() {
    local config=$1 line fragment lost=0
    for fragment in "${fragments[@]}"; do
        while IFS= read -r line; do
            case $line in
            CONFIG_* | '# CONFIG_'*' is not set') ;;
            *) continue ;;
            esac
            if [[ $line == \#* ]]; then
                line=${line#\# }
                line=${line%% *}
                if ! grep -q "^$line=" "$config"; then continue; fi
                line="# $line is not set"
            elif grep -qxF -- "$line" "$config"; then
                continue
            fi
            echo "not in the final configuration: $line ($fragment)"
            lost=1
        done <"$guest/$fragment"
    done
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
        cat "$guest/$fragment" >>.config || return
    done
    make olddefconfig || return
    check_config .config || return
    nice make -j"$(nproc)" vmlinux bzImage || return
    cp vmlinux System.map .config "$result/" || return
    mv "$result/.config" "$result/config" || return
    cp arch/x86/boot/bzImage "$result/"
}

build_kernel() {
    local result=$1 tree log=$cache/kernel-$variant.log pid
    check_packages
    say "kernel: building from $source_package (about two minutes); log: $log"
    tree=$(mktemp -d "${TMPDIR:-/tmp}/exoprobe-kernel.XXXXXX")
    scratch+=("$tree")
    # `set -e` does not act in a function whose status is tested; hence its many `return`s.
    (make_kernel "$tree" "$result") >"$log" 2>&1 9>&- &
    pid=$!
    progress "$pid" "$log"
    if ! wait "$pid"; then
        tail -n 30 "$log" >&2
        die "kernel: the build failed; full log: $log"
    fi
    rm -rf "$tree"
}

# --- initramfs -----------------------------------------------------------------------------

inode=0

# One entry of a "newc" archive on stdout: name, mode, content file or "", and for a device its
# major and minor number. Written here because cpio needs root to archive a device node.
newc() {
    local name=$1 mode=$2 file=$3 major=${4:-0} minor=${5:-0} size=0
    [[ -z $file ]] || size=$(stat -c %s -- "$file")
    inode=$((inode + 1))
    printf '070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x' \
        "$inode" $((mode)) 0 0 1 0 "$size" 0 0 "$major" "$minor" $((${#name} + 1)) 0
    printf '%s\0' "$name"
    pad $((110 + ${#name} + 1))
    if [[ -n $file ]]; then
        cat -- "$file"
        pad "$size"
    fi
}

# Zeros up to the next multiple of 4.
pad() { head -c $(((4 - $1 % 4) % 4)) /dev/zero; }

pack() {
    newc dev 8#40755 ''
    newc dev/console 8#20600 '' 5 1
    newc proc 8#40755 ''
    newc sys 8#40755 ''
    newc init 8#100755 "$1"
    newc 'TRAILER!!!' 0 ''
}

make_init() {
    local target=$1
    # The source is copied next to the target folder, so neither the checkout's path nor its
    # cargo configuration matters; the remaining paths are mapped away.
    cp -r "$guest/init" "$target/source" || return
    rm -rf "$target/source/target" || return
    cd "$target/source" || return
    # Static position: the binary needs no relocation at start. The baseline x86-64 has SSE2 and
    # no more: the guest kernel may not manage AVX state (README.md).
    unset CARGO_ENCODED_RUSTFLAGS
    CARGO_TARGET_DIR=$target/build RUSTFLAGS="-Crelocation-model=static \
-Ctarget-cpu=x86-64 --remap-path-prefix=$target/source=/init \
--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo" \
        cargo build --release --locked --offline --bin init --target x86_64-unknown-linux-gnu
}

build_initramfs() {
    local result=$1 target log=$cache/init.log
    command -v cargo >/dev/null || die "cargo is missing; install Rust (https://rustup.rs)"
    say "initramfs: building"
    target=$(mktemp -d "${TMPDIR:-/tmp}/exoprobe-init.XXXXXX")
    scratch+=("$target")
    if ! (make_init "$target") >"$log" 2>&1; then
        tail -n 30 "$log" >&2
        die "initramfs: the build failed; full log: $log"
    fi
    pack "$target/build/x86_64-unknown-linux-gnu/release/init" >"$result/initramfs.cpio"
    rm -rf "$target"
}

# --- cache ---------------------------------------------------------------------------------

scratch=()
cleanup() { ((${#scratch[@]} == 0)) || rm -rf -- "${scratch[@]}"; }
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Makes sure that the cache has KIND under KEY: builds in a temporary folder, then renames, so
# that a result is either whole or absent. The lock lets a second build wait for the first.
cached() {
    local kind=$1 key=$2 temporary
    if [[ -d $cache/$key ]]; then return; fi
    mkdir -p "$cache"
    exec 9>"$cache/$kind-$key.lock"
    if ! flock -n 9; then
        say "$kind: waiting for another build of the same"
        flock 9
    fi
    if [[ ! -d $cache/$key ]]; then
        temporary=$(mktemp -d "$cache/tmp.XXXXXX")
        scratch+=("$temporary")
        "build_$kind" "$temporary"
        chmod 755 "$temporary"
        mv -T "$temporary" "$cache/$key"
    fi
    rm -f "$cache/$kind-$key.lock"
    exec 9>&-
}

# Puts a cached file into out/, if it is not there already. A copy, renamed into place: whoever
# has the old one open or mapped keeps it whole, and nobody can change the cache through it.
publish() {
    local key=$1 name from temporary
    shift
    for name in "$@"; do
        from=$cache/$key/$name
        if cmp -s "$from" "$out/$name"; then continue; fi
        temporary=$(mktemp "$out/.$name.XXXXXX")
        scratch+=("$temporary")
        cp "$from" "$temporary"
        chmod 644 "$temporary"
        mv -T "$temporary" "$out/$name"
    done
}

kernel=$(kernel_key)
initramfs=$(initramfs_key)
cached kernel "$kernel"
cached initramfs "$initramfs"
mkdir -p "$out"
publish "$kernel" vmlinux bzImage System.map config
publish "$initramfs" initramfs.cpio
say "$variant: ready in $out (kernel $kernel, initramfs $initramfs)"
