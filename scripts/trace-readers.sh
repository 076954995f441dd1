#!/usr/bin/env bash
# Builds the programs of tests/c/, which read traces and formats by libraries of Debian, and prints their folder:
#
#   FOLDER/kernelshark TRACE.DAT          by KernelShark's library, without its windows
#   FOLDER/formats FORMAT...              by libtraceevent
#
# Packages are unpacked, not installed, in ${EXOPROBE_CACHE:-~/.cache/exoprobe}/trace-readers: apt's package of
# KernelShark's library comes with all of Qt.
set -euo pipefail

scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
script=trace-readers
# shellcheck source=scripts/cache.sh
. "$scripts/cache.sh"
# shellcheck source=scripts/apt.sh
. "$scripts/apt.sh"

sources=$scripts/../tests/c
packages=(libkshark2 libkshark-dev libtracecmd1 libtracefs1 libtraceevent1 libtraceevent-dev libjson-c5 libjson-c-dev)
cache=${EXOPROBE_CACHE:-$HOME/.cache/exoprobe}/trace-readers
versions=$(apt_cache show --no-all-versions "${packages[@]}" | sed -n 's/^Version: //p')
(($(wc -l <<<"$versions") == ${#packages[@]})) || die "apt knows not all of ${packages[*]}; try: sudo apt-get update"
key=$({ echo "$versions"; cat "${BASH_SOURCE[0]}" "$sources"/*.c; } | short_hash)

build() {
    local result=$1 tree=$1/unpacked file
    say "fetching ${packages[*]}"
    # apt drops its rights for a download, unless the folder is closed to its user; either will do.
    (cd "$result" && apt-get -qq -o APT::Sandbox::User=root download "${packages[@]}") || return
    for file in "$result"/*.deb; do
        dpkg -x "$file" "$tree" && rm "$file" || return
    done
    mkdir "$result/lib" || return
    find "$tree" -name '*.so.*' ! -name 'libkshark-*' -exec cp -P -t "$result/lib" {} + || return
    # The libraries are beside the programs, wherever the folder is; those of the libraries, too (DT_RPATH).
    # shellcheck disable=SC2016 # for the loader, not a shell variable
    compile() {
        gcc -O1 -Wall -Wextra -Werror -o "$result/$1" "$sources/$1.c" -isystem "$tree/usr/include" \
            -L "$result/lib" -Wl,-rpath,'$ORIGIN/lib' -Wl,--disable-new-dtags "${@:2}"
    }
    compile kernelshark -l:libkshark.so.2 -l:libtracecmd.so.1 -l:libtracefs.so.1 -l:libtraceevent.so.1 -l:libjson-c.so.5 &&
        compile formats -l:libtraceevent.so.1 || return
    rm -rf "$tree"
}

check_packages gcc
cached "$cache" "$key" build
echo "$cache/$key"
