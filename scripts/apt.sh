#!/usr/bin/env bash
# Sourced: asks apt about packages. Images of containers set apt to keep no index of its lists, so that each question
# reads them all, for a second or two; this index is in ${EXOPROBE_CACHE:-~/.cache/exoprobe}/apt. apt makes it anew
# when its lists have changed.

# As apt-cache.
apt_cache() {
    local index=${EXOPROBE_CACHE:-$HOME/.cache/exoprobe}/apt
    mkdir -p "$index"
    apt-cache -o "Dir::Cache::pkgcache=$index/packages.bin" -o "Dir::Cache::srcpkgcache=$index/lists.bin" "$@"
}
