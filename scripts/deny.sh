#!/usr/bin/env bash
# Checks licences, sources and bans of all dependencies by deny.toml with cargo-deny. It is built
# once, without optimization, into ${EXOPROBE_CACHE:-~/.cache/exoprobe}/cargo-deny. Advisories need a
# network at each run: `scripts/deny.sh advisories`.
set -euo pipefail
cd "$(dirname "$0")/.."

version=0.20.2
root=${EXOPROBE_CACHE:-$HOME/.cache/exoprobe}/cargo-deny/$version
if [[ ! -x $root/bin/cargo-deny ]]; then
    echo "deny: building cargo-deny $version (once, a minute or two)"
    build=$(mktemp -d)
    trap 'rm -rf "$build"' EXIT
    CARGO_TARGET_DIR=$build CARGO_PROFILE_RELEASE_OPT_LEVEL=0 CARGO_PROFILE_RELEASE_LTO=off \
        CARGO_PROFILE_RELEASE_CODEGEN_UNITS=256 \
        cargo install --quiet --locked --no-default-features --root "$root" "cargo-deny@$version"
fi
# Crates that are not there yet; it needs no network if all are.
cargo fetch --quiet --locked
checks=("$@")
offline=()
if [ ${#checks[@]} -eq 0 ]; then
    checks=(licenses bans sources)
    offline=(--offline)
fi
exec "$root/bin/cargo-deny" --locked "${offline[@]}" --log-level error check --hide-inclusion-graph "${checks[@]}"
