//! A kernel's own table of symbols: read from memory and indexed, and looked up; and its types.
//!
//! The memory is what a vmlinux says it is. `EXOPROBE_VMLINUX` names one beside the tiny guest's.

use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

use exoprobe_guest::layout::KERNEL_IMAGE_BASE;
use exoprobe_guest::paging::{PTE_LARGE, PTE_PRESENT, PagingMode};
use exoprobe_guest::{Gpa, Gva};
use exoprobe_introspect::{Btf, MemoryImage, SymbolTable, TaskLayout, VirtualMemory, kallsyms};
use exoprobe_tests::guest_file;
use object::{Object, ObjectSection, ObjectSegment};

use crate::figure::{figure, least, least_milliseconds};

const ROUNDS: usize = 10;
/// Of page tables, below where kernels are loaded.
const ROOT: u64 = 0x1000;
const UPPER: u64 = 0x2000;
const MODE: PagingMode = PagingMode { cr3: ROOT, levels: 4 };

/// Guest-physical memory with the kernel's segments, mapped as kernels are; and an address in its
/// text.
fn memory(vmlinux: &Path) -> (MemoryImage, Gva) {
    let file = std::fs::read(vmlinux).expect("a vmlinux");
    let elf = object::File::parse(&*file).expect("an ELF file");
    let physical = |gva: u64| usize::try_from(gva - KERNEL_IMAGE_BASE.0).expect("within 1 GiB");
    let in_image = |gva: u64| gva >= KERNEL_IMAGE_BASE.0;
    let segments = || elf.segments().filter(|segment| in_image(segment.address()));
    let end = segments().map(|s| physical(s.address() + s.size())).max().expect("segments");
    let mut bytes = vec![0; end];
    for segment in segments() {
        let (at, data) = (physical(segment.address()), segment.data().expect("within the file"));
        bytes[at..at + data.len()].copy_from_slice(data);
    }
    let mut put = |at: u64, word: u64| {
        let at = usize::try_from(at).expect("low");
        bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
    };
    put(ROOT + 511 * 8, UPPER | PTE_PRESENT);
    put(UPPER + 510 * 8, PTE_PRESENT | PTE_LARGE);
    let text = segments().map(|s| s.address()).min().expect("segments");
    (MemoryImage::new(Gpa(0), bytes, MODE), Gva(text))
}

fn measure(name: &str, vmlinux: &Path) {
    let (image, text) = memory(vmlinux);
    let virt = VirtualMemory::with_mode(&image, MODE);
    let table = kallsyms::read(&virt, text).expect("a kernel with CONFIG_KALLSYMS");
    let read = least_milliseconds(ROUNDS, || {
        drop(black_box(kallsyms::read(&virt, text)).expect("it was read before"));
    });
    let count = table.len();
    figure(
        &format!("{count} symbols of {name}, read and indexed"),
        &format!("{read:.1} ms"),
        "<= 150 ms (150,000)",
    );
    let names: Vec<String> = table.iter().map(|symbol| symbol.name.to_owned()).collect();
    let by_name = least(ROUNDS, || {
        each(&table, names.len(), |table, i| {
            black_box(table.address_of(&names[i]));
        })
    });
    let addresses: Vec<Gva> = table.iter().map(|symbol| symbol.address).collect();
    let by_address = least(ROUNDS, || {
        each(&table, names.len(), |table, i| {
            black_box(table.resolve(addresses[i]));
        })
    });
    figure("  look-up by name", &format!("{by_name:.0} ns"), "<= 1000 ns");
    figure("  look-up by address", &format!("{by_address:.0} ns"), "<= 1000 ns");
    measure_types(name, vmlinux);
}

/// The types that a kernel has in its memory, indexed; none where it has none.
fn measure_types(name: &str, vmlinux: &Path) {
    let file = std::fs::read(vmlinux).expect("a vmlinux");
    let elf = object::File::parse(&*file).expect("an ELF file");
    let Some(section) = elf.section_by_name(".BTF") else { return };
    let bytes = section.data().expect("within the file");
    let count = Btf::parse(bytes).expect("BTF").len();
    let parsed = least_milliseconds(ROUNDS, || {
        drop(black_box(Btf::parse(bytes)).expect("it was parsed before"));
    });
    let what = format!("{count} types of {name}, checked and indexed");
    figure(&what, &format!("{parsed:.1} ms"), "<= 300 ms");
}

/// Nanoseconds each.
fn each(table: &SymbolTable, count: usize, look: impl Fn(&SymbolTable, usize)) -> f64 {
    const STRIDE: usize = 7919;
    let begun = Instant::now();
    // Not in ascending order, which is not how users ask.
    (0..count).for_each(|i| look(table, i * STRIDE % count));
    #[expect(clippy::cast_precision_loss, reason = "some 100,000")]
    let count = count as f64;
    begun.elapsed().as_secs_f64() * 1e9 / count
}

/// Reads a task's number and name by the longest way: a walk of four levels for each of its fields.
fn measure_task() {
    const LOOKS: u32 = 100_000;
    let mut bytes = vec![0; 0x5000];
    for (at, entry) in
        [(511 * 8, 0x1000), (0x1000 + 510 * 8, 0x2000), (0x2000, 0x3000), (0x3000, 0x4000)]
    {
        bytes[at..at + 8].copy_from_slice(&(entry | PTE_PRESENT).to_le_bytes());
    }
    let mode = PagingMode { cr3: 0, levels: 4 };
    let image = MemoryImage::new(Gpa(0), bytes, mode);
    let virt = VirtualMemory::with_mode(&image, mode);
    let layout = TaskLayout { pid: 0x3a8, comm: 0x508, tasks: 0x310 };
    let each = least(ROUNDS, || {
        let begun = Instant::now();
        for _ in 0..LOOKS {
            black_box(layout.read(black_box(&virt), KERNEL_IMAGE_BASE)).expect("it is mapped");
        }
        begun.elapsed().as_secs_f64() * 1e9 / f64::from(LOOKS)
    });
    figure("a task's number and name, by page tables", &format!("{each:.0} ns"), "<= 200 ns");
}

pub(crate) fn run() {
    measure_task();
    measure("the tiny guest", &guest_file("vmlinux"));
    if let Some(path) = std::env::var_os("EXOPROBE_VMLINUX") {
        measure("EXOPROBE_VMLINUX", Path::new(&path));
    }
}
