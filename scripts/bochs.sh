#!/usr/bin/env bash
# Builds Bochs, the emulator of the lab, from Debian's source, and prints the path of its program.
# Debian's own build has the debugger in it, which takes more than half of the emulator's speed.
#
#   scripts/bochs.sh
#   scripts/bochs.sh profile target/lab/smp target/lab/intel-3
#
# Kept by the hash of its inputs in ${EXOPROBE_CACHE:-~/.cache/exoprobe}/bochs.
#
# The second form runs these machines of the lab again, in a Bochs that counts how often each branch is taken, and
# writes scripts/bochs.profile.tar.xz, with which Bochs is built. It takes half an hour. A new version of Bochs or of
# Debian's compiler needs it: GCC ignores a profile of another version.
set -euo pipefail

scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
script=bochs
# shellcheck source=scripts/cache.sh
. "$scripts/cache.sh"

version=3.0
source=bochs_$version+dfsg.orig.tar.xz
sha256=78f6c73d4a6472d5130a87ab9dc306d02c7c71ed8e25b3a8ef642e2a7acd282b
mirror=${EXOPROBE_DEBIAN_MIRROR:-http://deb.debian.org/debian}
cache=${EXOPROBE_CACHE:-$HOME/.cache/exoprobe}/bochs
# One x86-64 machine with VT-x, SVM, and what its CPUs have; no window, no device but the basic ones.
options=(
    --enable-cpu-level=6 --enable-x86-64 --enable-smp --enable-long-phy-address --enable-avx
    --enable-monitor-mwait --enable-vmx=2 --enable-svm --enable-all-optimizations
    --disable-large-ramfile --disable-show-ips --disable-stats --disable-cdrom --disable-xpm
    --disable-docbook --with-nogui
)
flags='-O3 -fomit-frame-pointer -pipe'
profile=$scripts/bochs.profile.tar.xz

# In Bochs' tree: mends the loop of machines with several CPUs, which 3.0 has without the debugger alone.
# - After an exception the CPU's last whole instruction must be the one before the handler, as in the loop for
#   one CPU. Else a VM exit in the handler's first instruction goes back to the instruction that faulted, in the
#   handler's code segment.
# - What changes after setjmp() must not be in registers, which longjmp() sets back (C17 7.13.2.1).
# - Each CPU that is not halted runs a quantum of instructions in a quantum of the clock's ticks, as one CPU alone
#   does; what its last trace or repeated instruction had beyond comes off its next turns. In 3.0 a turn is a trace,
#   however short, and a CPU that is halted counts as one that ran a whole quantum: the clock of a CPU that runs
#   beside two that are halted went up to five times too fast.
mend_several_cpus() {
    local commit='BX_CPU_THIS_PTR prev_rip = RIP; BX_CPU_THIS_PTR speculative_rsp = false;'
    sed -i "/^void BX_CPU_C::cpu_run_trace(void)\$/{n;s/^{\$/{ $commit/}" cpu/cpu.cc || return
    # `icount_last_sync` is the count at which a CPU's turn ends.
    sed -i '/static int quantum = /,/BX_CPU(processor)->icount_last_sync = BX_CPU(processor)->get_icount();/c\
        static Bit64u quantum = SIM->get_param_num(BXPN_SMP_QUANTUM)->get(), before;\
        static Bit32u processor;\
        static bool run = true;\
        if (setjmp(BX_CPU_C::jmp_buf_env)) {\
          // can get here only from exception function or VMEXIT\
          BX_CPU(processor)->icount++;\
          run = false;\
        }\
        while (1) {\
          if (run) {\
            before = BX_CPU(processor)->get_icount();\
            BX_CPU(processor)->cpu_run_trace();\
          }\
          run = true;\
          if (BX_CPU(processor)->get_icount() == before) // halted\
            BX_CPU(processor)->icount_last_sync = before;\
          while (BX_CPU(processor)->get_icount() >= BX_CPU(processor)->icount_last_sync) {\
            if (++processor == BX_SMP_PROCESSORS) {\
              processor = 0;\
              BX_TICKN(quantum);\
            }\
            BX_CPU(processor)->icount_last_sync += quantum;\
          }' main.cc || return
    grep -qF "$commit" cpu/cpu.cc && [[ $(grep -cE 'icount_last_sync (= before|\+= quantum);' main.cc) == 2 ]] &&
        ! grep -qF 'executed' main.cc && return
    echo 'the loop for several CPUs is not as it was in Bochs 3.0' >&2
    return 1
}

# In Bochs' tree: a supervisor that may use pages of users, as RFLAGS.AC says in spite of CR4.SMAP, finds
# them in the TLB. In 3.0 it walks the page tables at each such access, and copies by `rep movs` byte by
# byte, which takes a quarter of the lab's time.
mend_smap() {
    local smap='BX_CPU_THIS_PTR cr4.get_SMAP()' system='TLB_SysReadOK | TLB_SysWriteOK'
    # Of a page of users, the TLB has the system's rights only without SMAP.
    local as_user="((user) || ($smap \\&\\& BX_CPU_THIS_PTR get_AC() \\&\\& ! ((entry)->accessBits \\& ($system))))"
    local may="! isExecute \\&\\& $smap \\&\\& (! isWrite || IS_WRITEABLE_PAGE(combined_access))"
    sed -i "0,/^enum {\$/s//#define BX_TLB_AS_USER(entry, user) $as_user\n\n&/" cpu/tlb.h || return
    sed -i -e '/already looked up TLB for code access/,/does not have permission/s/| user)/| BX_TLB_AS_USER(tlbEntry, user))/' \
        -e "/^    if (IS_USER_PAGE(combined_access)) {\$/,/if (user) {/s/if (user) {/if (user || ($may)) {/" \
        cpu/paging.cc || return
    sed -i 's/if (is\(Read\|Write\)OK(tlbEntry, user)) {/if (is\1OK(tlbEntry, BX_TLB_AS_USER(tlbEntry, user))) {/' \
        cpu/access.cc || return
    [[ $(cat cpu/tlb.h cpu/paging.cc cpu/access.cc | grep -c 'BX_TLB_AS_USER') == 6 ]] &&
        grep -qF 'if (user || (! isExecute && ' cpu/paging.cc && return
    echo 'the TLB is not as it was in Bochs 3.0' >&2
    return 1
}

# In Bochs' tree: PCLMULQDQ, of which our checksums are made, by the instruction itself.
mend_pclmulqdq() {
    local product='_mm_clmulepi64_si128(_mm_set_epi64x(0, a), _mm_set_epi64x(0, b), 0)'
    sed -i -e "/^BX_CPP_INLINE void xmm_pclmulqdq(/,/^}/c\\
#include <wmmintrin.h>\\
__attribute__((target(\"pclmul\"))) static void xmm_pclmulqdq(BxPackedXmmRegister *r, Bit64u a, Bit64u b)\\
{\\
  _mm_storeu_si128((__m128i *) r, $product);\\
}" cpu/aes.cc || return
    grep -qF "$product" cpu/aes.cc && return
    echo 'PCLMULQDQ is not as it was in Bochs 3.0' >&2
    return 1
}

# In Bochs' tree: a machine may have more than 2 GiB of this host's memory, and its places more than 32 bits.
mend_memory() {
    local limit='1, 65536, BX_DEFAULT_MEM_MEGS);' at='vector + ((Bit64u) BX_MEM_THIS used_blocks'
    sed -i "/\"Amount of host allocated memory in megabytes\",/{n;N;s/1, 2048,\n *BX_DEFAULT_MEM_MEGS);/$limit/}" config.cc || return
    sed -i -e 's/new Bit8u \[(Bit32u)(bytes/new Bit8u [(bytes/' -e "s/vector + (BX_MEM_THIS used_blocks/$at/" \
        memory/memory_stub.cc || return
    grep -qF "$limit" config.cc && grep -qF 'new Bit8u [(bytes' memory/memory_stub.cc &&
        grep -qF "$at *" memory/memory_stub.cc && return
    echo 'the memory is not as it was in Bochs 3.0' >&2
    return 1
}

# In Bochs' tree: a halted CPU that is alone waits in one step for the next event. In 3.0 it counts there by tens.
mend_halt() {
    local next='BX_TICKN(bx_pc_system.getNumCpuTicksLeftNextEvent());'
    sed -i "s/BX_TICKN(10); \/\/ when in HLT .*/$next/" cpu/event.cc || return
    grep -qF "$next" cpu/event.cc && return
    echo 'the wait for an event is not as it was in Bochs 3.0' >&2
    return 1
}

# In Bochs' tree: no AVX-512, which no CPU of the lab has, and which takes a fifth of the build. 3.0 has files that
# do not compile without it.
mend_evex() {
    sed -i -e '1i #include "config.h"\n#if BX_SUPPORT_EVEX' -e '$a #endif' cpu/avx/avx10_*.cc
}

# Fetches the source and unpacks it in $tree.
tree=
fetch() {
    check_packages g++ make xz-utils
    tree=$(mktemp -d "${TMPDIR:-/tmp}/exoprobe-bochs.XXXXXX")
    scratch+=("$tree")
    say "fetching $mirror/pool/main/b/bochs/$source"
    # As apt does, with its proxies; the file's hash is checked.
    /usr/lib/apt/apt-helper -qq -o APT::Sandbox::User=root download-file \
        "$mirror/pool/main/b/bochs/$source" "$tree/$source" \
        "SHA256:$sha256" >&2 ||
        die "no source: connect to the network, or name a mirror in EXOPROBE_DEBIAN_MIRROR"
    tar -C "$tree" -xf "$tree/$source"
}

# Mends and builds what is in $tree, with these flags more.
build() {
    local all="$flags $*"
    cd "$tree/bochs-$version" || return
    mend_several_cpus && mend_smap && mend_pclmulqdq && mend_memory && mend_halt && mend_evex || return
    CFLAGS=$all CXXFLAGS=$all ./configure "${options[@]}" || return
    unset MAKEFLAGS MFLAGS
    nice make -j"$(nproc)"
}

build_with_profile() {
    tar -C "$tree/bochs-$version" -xf "$profile" || return
    # A function that has changed since the profile was made is compiled without one.
    build -flto=2 -fprofile-use -Wno-missing-profile -Wno-coverage-mismatch && cp bochs "$1/"
}

build_bochs() {
    local result=$1 log=$cache/build.log
    fetch
    say "building Bochs $version (two minutes); log: $log"
    if ! (build_with_profile "$result") >"$log" 2>&1 9>&-; then
        tail -n 30 "$log" >&2
        die "the build failed; full log: $log"
    fi
    rm -rf "$tree"
}

make_profile() {
    local machine log=$cache/profile.log
    mkdir -p "$cache"
    fetch
    say "building Bochs $version (three minutes); log: $log"
    (build -fprofile-generate) >"$log" 2>&1 || die "the build failed; log: $log"
    for machine; do
        say "running $machine"
        cp -r "$machine" "$tree/machine" && rm -f "$tree"/machine/{console,results}.txt
        # The lab's end is a reset, at which Bochs panics.
        (cd "$tree/machine" && ../bochs-$version/bochs -q -f bochsrc) >"$log" 2>&1 || true
        grep -qF '"lab":"done"' "$tree/machine/results.txt" || die "$machine did not run to its end: run it with \`lab run\`"
        rm -r "$tree/machine"
    done
    (cd "$tree/bochs-$version" && find . -name '*.gcda' -printf '%P\n') | sort |
        tar -C "$tree/bochs-$version" --owner=0 --group=0 --xz -cf "$profile" -T -
}

case ${1-} in
"") ;;
profile)
    (($# > 1)) || die "profile: name the folders of machines, as target/lab/smp"
    make_profile "${@:2}"
    exit
    ;;
*) die "unknown argument '$1' (known: profile)" ;;
esac
key=$({ cat "$scripts/bochs.sh" "$profile" "$scripts/cache.sh" && g++ --version; } | short_hash)
cached "$cache" "$key" build_bochs
echo "$cache/$key/bochs"
