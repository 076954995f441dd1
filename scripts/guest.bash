# Sourced by scripts that need a running guest: boots the tiny one, and ends it with the script.

exoprobe=${EXOPROBE:-${CARGO_TARGET_DIR:-target}/release/exoprobe}
dir=$(mktemp -d)
socket=$dir/exoprobe.sock
service=
mounted=

finish() {
    end "$mounted"
    end "$service"
    rm -rf "$dir"
}
trap finish EXIT

# http METHOD PATH [curl's options]
http() {
    local method=$1 path=$2
    shift 2
    curl --silent --show-error --fail-with-body --unix-socket "$socket" \
        --request "$method" "http://exoprobe$path" "$@"
}

# fail WHAT
fail() {
    echo "$(basename "$0" .sh): $1" >&2
    exit 1
}

# runs PID COMMAND: fails when that has ended
runs() {
    kill -0 "$1" 2>/dev/null || fail "exoprobe $2 ended"
}

# end PID: ends a program, where there is one
end() {
    [ -n "$1" ] || return 0
    kill "$1" 2>/dev/null || true
    wait "$1" 2>/dev/null || true
}

# Boots the guest, and waits until its workload takes commands.
boot() {
    export EXOPROBE_SOCKET=$socket
    echo "== booting the tiny guest (software-only KVM: about 15 s)"
    "$exoprobe" run --kernel guest/out/vmlinux --initramfs guest/out/initramfs.cpio \
        --cmdline "$(cat guest/cmdline)" --memory 32 --socket "$socket" &
    service=$!
    for _ in $(seq 600); do
        [ -S "$socket" ] && break
        runs "$service" run
        sleep 0.1
    done
    # The workload writes `ready` to its port once it takes commands.
    until http GET /v1/vm/serial/1 | grep -q '^ready'; do
        runs "$service" run
        [ "$((SECONDS))" -lt 600 ] || fail "no prompt after 10 minutes"
        sleep 0.2
    done
}

# Mounts the guest's tracefs; $tracing is where.
mount_tracefs() {
    tracing=$dir/tracing
    mkdir "$tracing"
    "$exoprobe" mount "$tracing" &
    mounted=$!
    for _ in $(seq 100); do
        [ -e "$tracing/kprobe_events" ] && return
        runs "$mounted" mount
        sleep 0.1
    done
    fail "nothing is mounted after 10 s"
}
