#!/usr/bin/env bash
# Fails if a comment line of Rust code is over 100 columns, which rustfmt does not check.
set -euo pipefail
export LC_ALL=C.UTF-8
cd "$(dirname "$0")/.."

if git grep --untracked -nP '^(?=\s*//).{101,}$' -- '*.rs'; then
    echo "comment-width: the comment lines above are over 100 columns: break them" >&2
    exit 1
fi
