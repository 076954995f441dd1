#!/usr/bin/env bash
# Archives in the format "newc", which Linux takes as an initramfs. Sourced.

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
