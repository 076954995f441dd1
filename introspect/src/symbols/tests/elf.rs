//! ELF images, built here byte by byte, well-formed and not.

use super::*;
use proptest::prelude::*;

const INIT: u64 = 0xffff_ffff_8200_0000;
const DATA: u64 = 0xffff_ffff_8300_0000;

const FUNC: u8 = 2;
const OBJECT: u8 = 1;
const NOTYPE: u8 = 0;
const GLOBAL_BIND: u8 = 1 << 4;
const ABS: u16 = 0xfff1;

/// Name, value, size, st_info, section.
type Sym<'a> = (&'a str, u64, u64, u8, u16);

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// Sections: 1 .text, 2 .init.text, 3 .data, 4 .symtab, 5 .strtab, 6 .shstrtab.
fn elf(symbols: &[Sym<'_>]) -> Vec<u8> {
    let mut strings = vec![0];
    let mut table = vec![0; 24];
    for (name, value, size, info, section) in symbols {
        table.extend((u32::try_from(strings.len()).unwrap()).to_le_bytes());
        table.extend([*info, 0]);
        table.extend(section.to_le_bytes());
        table.extend(value.to_le_bytes());
        table.extend(size.to_le_bytes());
        strings.extend(name.as_bytes());
        strings.push(0);
    }
    let names = b"\0.text\0.init.text\0.data\0.symtab\0.strtab\0.shstrtab\0".to_vec();
    let mut file = vec![0; 64];
    // name, type, flags, address, size in memory or contents, link, entry size
    let mut headers = vec![0; 64];
    let mut section = |name: u32, kind: u32, flags: u64, address: u64, body: &[u8], link: u32| {
        let mut header = [0; 64];
        put(&mut header, 0, &name.to_le_bytes());
        put(&mut header, 4, &kind.to_le_bytes());
        put(&mut header, 8, &flags.to_le_bytes());
        put(&mut header, 16, &address.to_le_bytes());
        put(&mut header, 24, &file.len().to_le_bytes());
        put(&mut header, 32, &body.len().to_le_bytes());
        put(&mut header, 40, &link.to_le_bytes());
        put(&mut header, 56, &if kind == 2 { 24_u64 } else { 0 }.to_le_bytes());
        headers.extend(header);
        file.extend(body);
    };
    let page = [0x90; 0x1000];
    section(1, 1, 6, TEXT, &page, 0);
    section(7, 1, 6, INIT, &page, 0);
    section(18, 1, 3, DATA, &page, 0);
    section(24, 2, 0, 0, &table, 5);
    section(32, 3, 0, 0, &strings, 0);
    section(40, 3, 0, 0, &names, 0);
    put(&mut file, 0, b"\x7fELF\x02\x01\x01");
    put(&mut file, 16, &[2, 0, 62, 0, 1]);
    let offset = file.len();
    put(&mut file, 40, &offset.to_le_bytes());
    put(&mut file, 52, &[64, 0, 0, 0, 0, 0, 64, 0, 7, 0, 6, 0]);
    file.extend(headers);
    file
}

fn sample() -> Vec<u8> {
    elf(&[
        ("kernel.c", 0, 0, 4, ABS),
        ("", TEXT, 0, 3, 1),
        ("outer", TEXT + 0x100, 0x100, FUNC | GLOBAL_BIND, 1),
        ("inner", TEXT + 0x140, 0x10, FUNC, 1),
        ("label", TEXT + 0x300, 0, NOTYPE, 1),
        ("next", TEXT + 0x340, 0, NOTYPE, 1),
        ("_etext", TEXT + 0x1000, 0, NOTYPE | GLOBAL_BIND, 1),
        ("setup", INIT, 8, FUNC, 2),
        ("jiffies", DATA, 8, OBJECT | GLOBAL_BIND, 3),
        ("table_in_text", TEXT + 0x400, 8, OBJECT, 1),
        ("elsewhere", 0, 0, GLOBAL_BIND, 0),
        ("current_task", 0x1c0, 8, OBJECT | GLOBAL_BIND, 3),
        ("constant", 0xffff_ffff_8100_0500, 0, GLOBAL_BIND, ABS),
    ])
}

#[test]
fn functions_reach_up_to_the_next_symbol() {
    let table = SymbolTable::from_elf(&sample()).unwrap();
    assert_eq!(at(&table, 0xff), "");
    assert_eq!(at(&table, 0x13f), "outer+0x3f");
    assert_eq!(at(&table, 0x14f), "inner+0xf");
    assert_eq!(at(&table, 0x150), "inner+0x10", "not outer's, in whose size it is in the file");
    assert_eq!(at(&table, 0x200), "inner+0xc0", "nor padding");
    assert_eq!(table.lookup("current_task").unwrap().size, 8, "data has the file's");
    assert_eq!(at(&table, 0x33f), "label+0x3f");
    assert_eq!(at(&table, 0x3ff), "next+0xbf");
    assert_eq!(at(&table, 0x400), "", "an object in text is no function");
    assert_eq!(table.resolve(Gva(INIT + 7)).unwrap().to_string(), "setup+0x7");
}

#[test]
fn what_is_no_function_is_data_or_dropped() {
    let table = SymbolTable::from_elf(&sample()).unwrap();
    for name in ["_etext", "jiffies", "table_in_text", "current_task", "constant"] {
        assert_eq!(table.lookup(name).unwrap().kind, SymbolKind::Data, "{name}");
    }
    assert!(table.lookup("elsewhere").is_err() && table.lookup("kernel.c").is_err());
    assert_eq!(table.len(), 10);
    let kinds: Vec<TextKind> = table.text_ranges().map(|range| range.kind).collect();
    assert_eq!(kinds, [TextKind::Core, TextKind::Init]);
    assert!(table.text_contains(Gva(TEXT + 0xfff)) && !table.text_contains(Gva(DATA)));
}

#[test]
fn a_file_lies_at_any_address_of_memory() {
    let mut shifted = vec![0];
    shifted.extend(sample());
    assert_eq!(SymbolTable::from_elf(&shifted[1..]).unwrap().len(), 10);
}

#[test]
fn files_of_no_use_are_refused_by_reason() {
    let refused = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut file = sample();
        change(&mut file);
        SymbolTable::from_elf(&file).unwrap_err()
    };
    let damaged = |part| ElfError::Damaged { part };
    assert_eq!(refused(&|file| file[1] = b'e'), ElfError::NotElf);
    assert_eq!(refused(&|file| file.clear()), ElfError::NotElf);
    assert_eq!(refused(&|file| file.truncate(19)), damaged("ELF header"));
    assert_eq!(refused(&|file| file.truncate(63)), damaged("ELF header"));
    assert_eq!(refused(&|file| file.truncate(0x2000)), damaged("section headers"));
    let arm = ElfError::NotX86_64 { machine: 183, class: 2, data: 1 };
    assert_eq!(refused(&|file| file[18] = 183), arm);
    let narrow = ElfError::NotX86_64 { machine: 62, class: 1, data: 1 };
    assert_eq!(refused(&|file| file[4] = 1), narrow);
    assert_eq!(refused(&|file| file[16] = 1), ElfError::Relocatable);
    let headers = |file: &[u8]| usize::from_le_bytes(file[40..48].try_into().unwrap());
    let symtab = |file: &[u8]| headers(file) + 4 * 64;
    let stripped = refused(&|file| {
        let at = symtab(file);
        file[at + 4] = 1;
    });
    assert_eq!(stripped, ElfError::NoSymbolTable);
    let beyond = refused(&|file| {
        let at = symtab(file);
        put(file, at + 24, &u64::MAX.to_le_bytes());
    });
    assert_eq!(beyond, damaged("symbol table"));
    let huge = refused(&|file| {
        let at = symtab(file);
        put(file, at + 32, &(u64::MAX / 2).to_le_bytes());
    });
    assert_eq!(huge, ElfError::Table(TableError::TooManySymbols { max: MAX_SYMBOLS }));
    let nameless = refused(&|file| {
        let at = symtab(file);
        put(file, at + 40, &1_u32.to_le_bytes());
    });
    assert_eq!(nameless, damaged("symbol names"));
    let user = SymbolTable::from_elf(&elf(&[("main", 0x40_1000, 8, FUNC, 1)]));
    assert_eq!(user.unwrap_err(), ElfError::Table(TableError::NoFunctions));
}

#[test]
fn contents_are_told_apart() {
    let table = SymbolTable::from_bytes(&sample()).unwrap();
    assert_eq!(table.len(), 10);
    assert_eq!(SymbolTable::from_bytes(b"").unwrap_err(), ContentError::Empty);
    assert_eq!(SymbolTable::from_bytes(&[0x1f, 0x8b]).unwrap_err(), ContentError::Unrecognized);
    let mut bzimage = vec![0; 0x400];
    put(&mut bzimage, 0x202, b"HdrS");
    assert_eq!(SymbolTable::from_bytes(&bzimage).unwrap_err(), ContentError::BzImage);
}

proptest! {
    #[test]
    fn no_damage_panics(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..40),
        headers in prop::collection::vec((0..7 * 64_usize, any::<u8>()), 0..10),
        keep in any::<prop::sample::Index>(),
        cut: bool,
    ) {
        let mut file = sample();
        let start = file.len() - 7 * 64;
        for (at, byte) in changes {
            let at = at.index(file.len());
            file[at] = byte;
        }
        for (at, byte) in headers {
            file[start + at] = byte;
        }
        if cut {
            file.truncate(keep.index(file.len()));
        }
        if let Ok(table) = SymbolTable::from_elf(&file) {
            let _ = table.resolve(Gva(TEXT + 0x150));
            let _ = table.lookup("outre");
            prop_assert_eq!(table.search("*").count(), table.len());
        }
    }

    #[test]
    fn no_bytes_panic(mut bytes: Vec<u8>, elf: bool) {
        if elf && bytes.len() >= 64 {
            put(&mut bytes, 0, b"\x7fELF\x02\x01\x01");
            put(&mut bytes, 18, &[62, 0]);
        }
        let _ = SymbolTable::from_bytes(&bytes);
    }
}
