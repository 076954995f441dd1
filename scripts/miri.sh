#!/usr/bin/env bash
# Runs the unit tests of memory that threads share with the guest or each other under Miri. Miri reports data races, and
# pointers that are not valid or not allowed to access their memory, even if a test's result is right.
#
#   scripts/miri.sh                      run them
#   scripts/miri.sh setup                install what they need
#
# Rustup installs the nightly Rust that Miri needs, of a fixed date. The standard library that is built
# for Miri is in ${EXOPROBE_CACHE:-~/.cache/exoprobe}/miri, the build of the tests in target/miri. Threads take turns by
# seeds: the same sources give the same result, so sources that passed in this checkout are not run again.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck disable=SC2034 # cache.sh reads it
script=miri
# shellcheck source=scripts/cache.sh
. scripts/cache.sh

case ${1-} in
"" | setup) ;;
*) die "unknown argument '$1' (known: setup)" ;;
esac

nightly=nightly-2026-10-30
# Code with raw pointers, and what several threads do to the same words.
guest=(memory::tests:: hidden::tests:: kvm::kick::tests::)
probes=(detour::ring::tests::a_vcpu_that_writes_while_the_host_reads_loses_no_record
    detour::pool::tests::threads_that_claim_and_release_in_hidden_memory_never_share_an_instance
    events::ring::tests::nothing_is_lost_or_torn_between_two_threads)

install_miri() {
    local log
    log=$(mktemp)
    say "installing Rust's $nightly with Miri"
    if ! rustup toolchain install "$nightly" --profile minimal --component miri,rust-src \
        --no-self-update >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        die "no $nightly: is there a network (else set https_proxy), and space? All of rustup's output is in $log"
    fi
    rm -f "$log"
}

command -v rustup >/dev/null ||
    die "rustup is missing; Miri needs Rust's $nightly, which it installs: https://rustup.rs"
installed=$(rustup component list --toolchain "$nightly" --installed 2>/dev/null || true)
[[ $installed == *miri* && $installed == *rust-src* ]] || install_miri

build_library() { MIRI_SYSROOT=$1 cargo "+$nightly" miri setup --quiet; }
cache=${EXOPROBE_CACHE:-$HOME/.cache/exoprobe}/miri
cached "$cache" "$nightly" build_library
[[ ${1-} != setup ]] || exit 0
export MIRI_SYSROOT=$cache/$nightly

# Lints are those of the stable compiler (`make lint`).
export RUSTFLAGS=-Awarnings
# Runs a crate's tests whose names have one of the texts; each text must find a test.
under_miri() {
    local crate=$1 output test
    shift
    output=$(timeout --foreground 900 cargo "+$nightly" miri test --locked -p "$crate" --all-features --lib -- "$@" 2>&1) || {
        printf '%s\n' "$output" >&2
        die "$crate: Miri found a fault, or a test takes longer than 900 s"
    }
    for test in "$@"; do
        [[ $output == *"test $test"* ]] || die "$crate has no test $test"
    done
    echo "miri: $crate: no fault"
}
run_tests() {
    # Isolation off: the host's memory is mapped.
    MIRIFLAGS=-Zmiri-disable-isolation under_miri exoprobe-guest "${guest[@]}"
    # Other threads go on at other places with each seed.
    MIRIFLAGS='-Zmiri-disable-isolation -Zmiri-many-seeds=0..4' under_miri exoprobe-probes "${probes[@]}"
}
passed=target/miri/passed
key=$(find guest-api introspect probes Cargo.toml Cargo.lock scripts/miri.sh -type f -print0 |
    LC_ALL=C sort -z | xargs -0 sha256sum | short_hash)
[[ ! -d $passed/$key ]] || echo "miri: these sources passed before (to run them again, remove $passed/$key)"
cached "$passed" "$key" run_tests
