#!/usr/bin/env bash
# Builds exoprobe's tiny guest into guest/out/: kernel (vmlinux, bzImage, System.map, ...) and
# initramfs.cpio. See README.md.
#
#   guest/build.sh [VARIANT]      default: tiny; other variants go to guest/out/VARIANT/
#   guest/build.sh --packages [VARIANT]      only lists the Debian packages that it needs
#
# Results are cached by the hash of their inputs in ${EXOPROBE_CACHE:-~/.cache/exoprobe}/{kernel,guest}.
set -euo pipefail

guest=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
scripts=$guest/../scripts
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
    fragments=(kernel.config debug-info.config)
    out=$guest/out
    ;;
tiny-6.12)
    source_package=linux-source-6.12
    fragments=(kernel.config debug-info.config linux-6.12.config)
    ;;
kprobe-events)
    source_package=linux-source-6.1
    fragments=(kernel.config kprobe-events.config)
    ;;
*)
    echo "build.sh: unknown variant '$variant' (known: tiny, tiny-6.12, kprobe-events)" >&2
    exit 2
    ;;
esac
fragments=("${fragments[@]/#/$guest/}")

if [[ -n $list_packages ]]; then
    exec "$scripts/kernel.sh" --packages "$source_package" "${fragments[@]}"
fi

script=guest
# shellcheck source=scripts/cache.sh
. "$scripts/cache.sh"
# shellcheck source=scripts/newc.sh
. "$scripts/newc.sh"

init_sources() {
    (cd "$guest" && find init/src init/build.rs init/Cargo.toml init/Cargo.lock -type f |
        LC_ALL=C sort)
}

# Modules of the kernel in folder $1, which go into the initramfs.
modules_of() { find "$1" -path '*/modules/*.ko' | LC_ALL=C sort; }

initramfs_key() {
    local sources
    mapfile -t sources < <(init_sources)
    {
        (cd "$guest" && sha256sum -- build.sh ../scripts/newc.sh "${sources[@]}")
        rustc -vV
        modules_of "$1" | while IFS= read -r module; do sha256sum <"$module"; done
    } | short_hash
}

# --- initramfs -----------------------------------------------------------------------------

# The archive with program $1 as its init and the modules of the kernel in folder $2.
pack() {
    local module modules
    newc dev 8#40755 ''
    newc dev/console 8#20600 '' 5 1
    newc proc 8#40755 ''
    newc sys 8#40755 ''
    newc init 8#100755 "$1"
    mapfile -t modules < <(modules_of "$2")
    ((${#modules[@]} == 0)) || newc modules 8#40755 ''
    for module in "${modules[@]}"; do newc "modules/${module##*/}" 8#100644 "$module"; done
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
    local kernel=$1 result=$2 target log=$cache/init.log
    command -v cargo >/dev/null || die "cargo is missing; install Rust (https://rustup.rs)"
    say "initramfs: building"
    target=$(mktemp -d "${TMPDIR:-/tmp}/exoprobe-init.XXXXXX")
    scratch+=("$target")
    if ! (make_init "$target") >"$log" 2>&1; then
        tail -n 30 "$log" >&2
        die "initramfs: the build failed; full log: $log"
    fi
    pack "$target/build/x86_64-unknown-linux-gnu/release/init" "$kernel" >"$result/initramfs.cpio"
    rm -rf "$target"
}

# Puts a built file into out/, if it is not there already. A copy, renamed into place: whoever
# has the old one open or mapped keeps it whole, and nobody can change the cache through it.
publish() {
    local folder=$1 name from temporary
    shift
    for name in "$@"; do
        from=$folder/$name
        if cmp -s "$from" "$out/$name"; then continue; fi
        mkdir -p "$(dirname "$out/$name")"
        temporary=$(mktemp "$out/.publish.XXXXXX")
        scratch+=("$temporary")
        cp "$from" "$temporary"
        chmod 644 "$temporary"
        mv -T "$temporary" "$out/$name"
    done
}

kernel=$("$scripts/kernel.sh" "$variant" "$source_package" "${fragments[@]}")
initramfs=$(initramfs_key "$kernel")
cached "$cache" "$initramfs" build_initramfs "$kernel"
mkdir -p "$out"
mapfile -t built < <(find "$kernel" -type f -printf '%P\n')
publish "$kernel" "${built[@]}"
publish "$cache/$initramfs" initramfs.cpio
say "$variant: ready in $out (kernel ${kernel##*/}, initramfs $initramfs)"
