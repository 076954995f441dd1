#!/usr/bin/env bash
# Makes a Python environment (venv) with pinned packages from PyPI, and prints its folder.
#
#   scripts/python.sh REQUIREMENTS        a file of tests/python/: every package with its version
#
# It is in ${EXOPROBE_CACHE:-~/.cache/exoprobe}/python, by the hash of the file and of Python's version.
set -euo pipefail

scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
script=python
# shellcheck source=scripts/cache.sh
. "$scripts/cache.sh"

(($# == 1)) || die "give a file of requirements, for example tests/python/schemathesis.txt"
requirements=$(realpath "$1")
[[ -f $requirements ]] || die "$1 is not there"
check_packages python3-venv
cache=${EXOPROBE_CACHE:-$HOME/.cache/exoprobe}/python
key=$({ cat "$requirements"; python3 --version; } | short_hash)

# The programs in bin/ name the folder that they were installed in: run them as `bin/python bin/PROGRAM`.
make_venv() {
    local result=$1 log=$cache/$key.log
    say "installing ${requirements##*/} (log: $log)"
    python3 -m venv "$result" >"$log" 2>&1 &&
        "$result/bin/python" -m pip install --disable-pip-version-check --no-deps \
            --only-binary :all: --requirement "$requirements" >>"$log" 2>&1 &&
        "$result/bin/python" -m pip check >>"$log" 2>&1 &&
        rm -f "$log" && return
    tail -n 20 "$log" >&2
    die "the packages could not be installed; full log: $log"
}

cached "$cache" "$key" make_venv
echo "$cache/$key"
