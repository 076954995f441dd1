//! Modules and their symbols in arbitrary memory, which is laid over two whole ones: changes of
//! eight bytes each, at an offset (16 bits).

use std::sync::LazyLock;

use exoprobe_introspect::image::sample::{KERNEL, MODE, TABLES, image, mapped};
use exoprobe_introspect::modules::sample::{self, Form, SampleModule};
use exoprobe_introspect::modules::{MODULES_MAX, Room};
use exoprobe_introspect::{ModuleLayout, SymbolTable, VirtualMemory};

const TEXT: u64 = 0xffff_ffff_c000_0000;
const HEAD: u64 = KERNEL + 0x2000;
const LEN: usize = 0x5000;
const CHANGE: usize = 10;

struct Whole {
    form: Form,
    memory: Vec<u8>,
}

fn whole(form: Form) -> Whole {
    let mut memory = mapped(LEN, &[KERNEL]);
    let module = |name, at, text| SampleModule {
        name,
        at,
        text: (text, 0x1000),
        symbols: vec![("work", text + 0x10, 0x20, b't'), ("count", KERNEL + 0x100, 8, b'b')],
        ..SampleModule::default()
    };
    let modules =
        [module("one", KERNEL + 0x3000, TEXT), module("two", KERNEL + 0x4000, TEXT + 0x2000)];
    sample::write(form, HEAD, &modules, &mut |at, bytes| {
        let at = usize::try_from(at - KERNEL).expect("it is small");
        memory[at..at + bytes.len()].copy_from_slice(bytes);
    });
    Whole { form, memory }
}

pub(crate) fn run(data: &[u8]) {
    static WHOLE: LazyLock<[Whole; 2]> =
        LazyLock::new(|| [Form::Layouts, Form::Memories].map(whole));
    static SYMBOLS: LazyLock<SymbolTable> = LazyLock::new(|| {
        let map =
            format!("ffffffff81000000 T _stext\nffffffff81002000 T _etext\n{HEAD:x} d modules\n");
        SymbolTable::from_system_map(&map).expect("it is whole")
    });
    let Some((first, changes)) = data.split_first() else { return };
    let Whole { form, memory } = &WHOLE[usize::from(first % 2)];
    let mut memory = memory.clone();
    for change in changes.chunks_exact(CHANGE) {
        let at =
            TABLES + usize::from(u16::from_le_bytes([change[0], change[1]])) % (LEN - TABLES - 8);
        memory[at..at + 8].copy_from_slice(&change[2..]);
    }
    let image = image(memory);
    let virt = VirtualMemory::with_mode(&image, MODE);
    let layout = ModuleLayout::find(&sample::types(*form).btf(), &SYMBOLS).expect("they are whole");
    let Ok(modules) = layout.list(&virt) else { return };
    assert!(modules.len() <= MODULES_MAX);
    let tables = modules.iter().filter_map(|m| layout.symbols(&virt, m, Room::default()).ok());
    let table = SYMBOLS.with_modules(tables.map(Into::into).collect());
    for symbol in table.iter() {
        if let Some(found) = table.resolve(symbol.address) {
            assert!(table.text_contains(symbol.address) && found.start <= symbol.address);
        }
        // In other names, which a hostile guest may have, these have a meaning to both.
        let is_plain = !symbol.name.contains([':', '*', '?', '[']);
        assert!(
            !is_plain || table.lookup(symbol.name).is_ok() || table.search(symbol.name).count() > 0
        );
    }
}
