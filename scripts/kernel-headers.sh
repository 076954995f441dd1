#!/usr/bin/env bash
# Has gcc take the headers that most files of Linux include from a precompiled one: to parse them is 40 % of the time of a
# build. Sourced by kernel.sh.
#
# gcc takes X.gch in place of X, where X is the first header that it reads (gcc manual, Using Precompiled Headers). Kbuild
# has each file begin with `-include` of compiler-version.h. A .gch that does not fit is passed over: one made with other
# options for the target, or that reads a macro that the command line defines.
#
# The code is the same: of 16,491 functions of the lab's kernel, 10 have an instruction in another place.

first_header=include/linux/compiler-version.h
common_headers=(linux/{kconfig,compiler_types,kernel,module,sched,mm,fs,slab,device,interrupt,uaccess}.h)
network_headers=(linux/netdevice.h net/sock.h)

# Of the kernel's tree: objects whose files read their own headers. They define what a header that is precompiled has read
# (DEBUG: whether it prints), or a name of its own.
whole_files() {
    echo lib/sort
    grep -lrE '^#define[[:space:]]+DEBUG\b' --include='*.c' . | sed 's,^\./,,; s,\.c$,,' | LC_ALL=C sort
}

# Kbuild defines macros with each file's name, which common headers use. They get these names, in place of FILE_..., after
# those headers.
name_files() {
    local names=include/linux/names_of_file.h name
    for name in KBUILD_BASENAME KBUILD_MODNAME __KBUILD_MODNAME KBUILD_MODFILE; do
        printf '#ifdef FILE_%s\n#define %s FILE_%s\n#endif\n' $name $name $name
    done >$names
    sed -i -E 's/-D((__)?KBUILD_(BASENAME|MODNAME|MODFILE)=)/-DFILE_\1/
        s|^basename_flags = .*|& $(if $(filter $(whole_files),$(obj)/$(basetarget)),-DREADS_ITS_HEADERS)|' \
        scripts/Makefile.lib || return
    sed -i "s,-include \$(srctree)/include/linux/kconfig.h,& -include \$(srctree)/$names," Makefile
}

# In the kernel's tree, configured: precompiles the common headers, with the options that Kbuild has for a file.
precompile_headers() {
    local options
    local headers=("${common_headers[@]}")
    if grep -q '^CONFIG_NET=y' .config; then headers+=("${network_headers[@]}"); fi
    whole_files=$(whole_files | tr '\n' ' ') || return
    export whole_files
    name_files || return
    {
        echo '#include "compiler-version.h"'
        printf '#include <%s>\n' "${headers[@]}"
        printf '#ifdef READS_ITS_HEADERS\n#endif\n'
    } >include/linux/common.h
    : >init/common.c
    nice make -j"$(nproc)" init/common.o || return
    options=$(sed -nE '1s/^[a-z]+_init\/common\.o := gcc -Wp,-MMD,[^ ]+ (.*) -DFILE_KBUILD_MODFILE=.*/\1/p' \
        init/.common.o.cmd | sed -E 's/-include [^ ]+//g')
    [[ -n $options ]] || return
    # shellcheck disable=SC2086 # words, none of them quoted
    gcc $options -x c-header -o $first_header.gch include/linux/common.h
}

# Makes targets. What does not compile with the common headers is made without them.
make_with_headers() {
    nice make -j"$(nproc)" --keep-going "$@" && return
    rm -f "$first_header.gch"
    nice make -j"$(nproc)" "$@"
}
