//! Fuzz targets: each takes any bytes, and panics if a parser does not hold what it promises.

mod btf;
mod definition;
mod elf_symbols;
mod extable;
mod filter;
mod fuse;
mod http;
mod instruction;
mod kallsyms;
mod modules;
mod orc;
mod page_walk;
mod payload;
mod pool;
mod ring;
mod script_hits;
mod script_parse;
mod script_run;
mod snapshot;
mod source_lines;
mod system_map;
mod task_layout;
mod tracefs;
mod trigger;
mod virtio_blk;
mod virtio_console;
mod virtio_net;
mod virtio_pci;
mod virtio_vsock;

/// A fuzz target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, and that of its folder in `seeds/`.
    pub name: &'static str,
    /// Runs it on one input.
    pub run: fn(&[u8]),
}

/// All fuzz targets.
pub const TARGETS: &[Target] = &[
    Target { name: "btf", run: btf::run },
    Target { name: "definition", run: definition::run },
    Target { name: "elf_symbols", run: elf_symbols::run },
    Target { name: "extable", run: extable::run },
    Target { name: "filter", run: filter::run },
    Target { name: "fuse", run: fuse::run },
    Target { name: "http", run: http::run },
    Target { name: "instruction", run: instruction::run },
    Target { name: "kallsyms", run: kallsyms::run },
    Target { name: "modules", run: modules::run },
    Target { name: "orc", run: orc::run },
    Target { name: "page_walk", run: page_walk::run },
    Target { name: "payload", run: payload::run },
    Target { name: "pool", run: pool::run },
    Target { name: "ring", run: ring::run },
    Target { name: "script_hits", run: script_hits::run },
    Target { name: "script_parse", run: script_parse::run },
    Target { name: "script_run", run: script_run::run },
    Target { name: "snapshot", run: snapshot::run },
    Target { name: "source_lines", run: source_lines::run },
    Target { name: "system_map", run: system_map::run },
    Target { name: "task_layout", run: task_layout::run },
    Target { name: "tracefs", run: tracefs::run },
    Target { name: "trigger", run: trigger::run },
    Target { name: "virtio_blk", run: virtio_blk::run },
    Target { name: "virtio_console", run: virtio_console::run },
    Target { name: "virtio_net", run: virtio_net::run },
    Target { name: "virtio_pci", run: virtio_pci::run },
    Target { name: "virtio_vsock", run: virtio_vsock::run },
];
