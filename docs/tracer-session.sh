#!/usr/bin/env bash
# The session of the tracer's first description (kprobe-based event tracer, "Usage examples"), on the host against a
# guest. Kernels of 6.1 have do_sys_openat2 in place of do_sys_open, new events are disabled until they are enabled
# (since 2.6.33), and enabled ones are not cleared: beside these, the lines between `$` and the end are its own.
# Needs what `make demo` builds, and the right to mount (root, or fusermount3). With EXOPROBE_SOCKET the service there is
# asked, else a guest is booted.
set -euo pipefail
cd "$(dirname "$0")/.."
given=${EXOPROBE_SOCKET-}
source scripts/guest.bash
if [ -n "$given" ]; then socket=$given; else boot; fi
mount_tracefs

# run COMMAND: shows it, and runs it where the mount is in the place of the kernel's folder.
run() {
    echo "\$ $1"
    eval "${1//\/sys\/kernel\/debug\/tracing/$tracing}"
}

run 'echo p:myprobe do_sys_openat2 a0 a1 a2 a3 > /sys/kernel/debug/tracing/kprobe_events'
run 'echo r:myretprobe do_sys_openat2 rv ra >> /sys/kernel/debug/tracing/kprobe_events'
run 'cat /sys/kernel/debug/tracing/events/kprobes/myprobe/format'
run 'echo 1 > /sys/kernel/debug/tracing/events/kprobes/enable'
run '"$exoprobe" vm send "open /dev/null 3"'
run 'cat /sys/kernel/debug/tracing/kprobe_profile'
run 'echo 0 > /sys/kernel/debug/tracing/events/kprobes/enable'
run 'echo > /sys/kernel/debug/tracing/kprobe_events'
run 'cat /sys/kernel/debug/tracing/trace'
