#!/usr/bin/env bash
# What the build scripts share: messages, scratch folders, and a cache of whole results by the hash
# of their inputs, in ${EXOPROBE_CACHE:-~/.cache/exoprobe}. Sourced with `script` set to a name.

say() { printf '%s: %s\n' "$script" "$*" >&2; }
die() { say "$*"; exit 1; }

# The hash of stdin, short enough for a folder name.
short_hash() { sha256sum | cut -c1-32; }

package_version() {
    # shellcheck disable=SC2016 # dpkg-query's own format, not a shell variable
    dpkg-query -W -f '${Package}=${Version}\n' "$@" 2>/dev/null || true
}

check_packages() {
    local package missing=()
    for package in "$@"; do
        # shellcheck disable=SC2016 # as above
        [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] ||
            missing+=("$package")
    done
    ((${#missing[@]} == 0)) ||
        die "missing Debian packages; install them with: sudo apt-get install ${missing[*]}"
}

scratch=()
worker=
cleanup() {
    # A job of this shell leads no group of its own: its children are found by their parent.
    if [[ -n $worker ]] && kill -0 "$worker" 2>/dev/null; then
        pkill -TERM -P "$worker" || true
        wait "$worker" 2>/dev/null || true
    fi
    ((${#scratch[@]} == 0)) || rm -rf -- "${scratch[@]}"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# cached FOLDER KEY BUILD...: makes sure that FOLDER has KEY: runs BUILD... with a temporary folder as
# its last argument, then renames that, so that a result is either whole or absent. The lock lets a
# second build wait for the first.
cached() {
    local cache=$1 key=$2 temporary
    shift 2
    if [[ -d $cache/$key ]]; then return; fi
    mkdir -p "$cache"
    exec 9>"$cache/$key.lock"
    if ! flock -n 9; then
        say "waiting for another build of the same"
        flock 9
    fi
    if [[ ! -d $cache/$key ]]; then
        # What a build left that was killed.
        find "$cache" -maxdepth 1 -name 'tmp.*' -mmin +1440 -exec rm -rf {} +
        temporary=$(mktemp -d "$cache/tmp.XXXXXX")
        scratch+=("$temporary")
        "$@" "$temporary"
        chmod 755 "$temporary"
        mv -T "$temporary" "$cache/$key"
    fi
    rm -f "$cache/$key.lock"
    exec 9>&-
}
