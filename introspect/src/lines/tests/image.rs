//! A small kernel's ELF file with DWARF: `outer` in sys.c, with `middle` inlined in it and `inner`,
//! of a header, in that.

use gimli::write::{
    Address, AttributeValue, Dwarf, EndianVec, LineProgram, LineString, Sections, Unit, UnitEntryId,
};
use gimli::{Encoding, Format, LittleEndian, constants as dw};

pub(super) const TEXT: u64 = 0xffff_ffff_8100_0000;
const DIRECTORY: &str = "/build/linux";
/// Length of `outer`; after it is `plain`, as long, with no inlined call.
pub(super) const OUTER: u64 = 0x40;

/// Offset, file (0: sys.c, 1: util.h) and line of each row; column 5.
pub(super) const ROWS: [(u64, usize, u64); 6] =
    [(0, 0, 10), (0x10, 0, 30), (0x18, 1, 7), (0x20, 0, 31), (0x30, 0, 13), (0x40, 0, 50)];

fn function(unit: &mut Unit, name: &str) -> UnitEntryId {
    let root = unit.root();
    let id = unit.add(root, dw::DW_TAG_subprogram);
    unit.get_mut(id).set(dw::DW_AT_name, AttributeValue::String(name.into()));
    id
}

fn extent(unit: &mut Unit, id: UnitEntryId, offset: u64, len: u64) {
    let start = AttributeValue::Address(Address::Constant(TEXT + offset));
    unit.get_mut(id).set(dw::DW_AT_low_pc, start);
    unit.get_mut(id).set(dw::DW_AT_high_pc, AttributeValue::Udata(len));
}

/// An inlined call of `origin`, at `line` of sys.c.
fn inlined(unit: &mut Unit, parent: UnitEntryId, origin: UnitEntryId, line: u64) -> UnitEntryId {
    let id = unit.add(parent, dw::DW_TAG_inlined_subroutine);
    let file = if unit.encoding().version >= 5 { 0 } else { 1 };
    let entry = unit.get_mut(id);
    entry.set(dw::DW_AT_abstract_origin, AttributeValue::UnitRef(origin));
    entry.set(dw::DW_AT_call_file, AttributeValue::Udata(file));
    entry.set(dw::DW_AT_call_line, AttributeValue::Udata(line));
    id
}

fn program(encoding: Encoding) -> LineProgram {
    let text = |text: &str| LineString::String(text.into());
    let line = gimli::LineEncoding::default();
    let name = text("kernel/sys.c");
    let mut program = LineProgram::new(encoding, line, text(DIRECTORY), None, name, None);
    let directory = program.default_directory();
    let source = program.add_file(text("kernel/sys.c"), directory, None);
    let header = program.add_file(text("./include/util.h"), directory, None);
    program.begin_sequence(Some(Address::Constant(TEXT)));
    for (offset, file, line) in ROWS {
        let row = program.row();
        (row.address_offset, row.file) = (offset, if file == 0 { source } else { header });
        (row.line, row.column) = (line, 5);
        program.generate_row();
    }
    program.end_sequence(2 * OUTER);
    program
}

/// The DWARF sections, by name.
pub(super) fn dwarf(version: u16) -> Vec<(String, Vec<u8>)> {
    let encoding = Encoding { format: Format::Dwarf32, version, address_size: 8 };
    let mut dwarf = Dwarf::new();
    let id = dwarf.units.add(Unit::new(encoding, program(encoding)));
    let unit = dwarf.units.get_mut(id);
    let root = unit.root();
    unit.get_mut(root).set(dw::DW_AT_comp_dir, AttributeValue::String(DIRECTORY.into()));
    unit.get_mut(root).set(dw::DW_AT_name, AttributeValue::String("kernel/sys.c".into()));
    extent(unit, root, 0, 2 * OUTER);
    let (inner, middle) = (function(unit, "inner"), function(unit, "middle"));
    let outer = function(unit, "outer");
    extent(unit, outer, 0, OUTER);
    let call = inlined(unit, outer, middle, 12);
    extent(unit, call, 0x10, 0x20);
    let block = unit.add(call, dw::DW_TAG_lexical_block);
    let call = inlined(unit, block, inner, 30);
    extent(unit, call, 0x18, 8);
    let plain = function(unit, "plain");
    extent(unit, plain, OUTER, OUTER);
    let mut sections = Sections::new(EndianVec::new(LittleEndian));
    dwarf.write(&mut sections).unwrap();
    let mut found = Vec::new();
    let each = sections.for_each(|id, bytes| {
        if !bytes.slice().is_empty() {
            found.push((id.name().to_owned(), bytes.slice().to_vec()));
        }
        Ok::<_, gimli::write::Error>(())
    });
    each.unwrap();
    found
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

struct Writer {
    file: Vec<u8>,
    headers: Vec<[u8; 64]>,
    names: Vec<u8>,
}

impl Writer {
    fn section(&mut self, name: &str, [kind, flags, address, link]: [u64; 4], body: &[u8]) {
        let mut header = [0; 64];
        put(&mut header, 0, &u32::try_from(self.names.len()).unwrap().to_le_bytes());
        put(&mut header, 4, &u32::try_from(kind).unwrap().to_le_bytes());
        put(&mut header, 8, &flags.to_le_bytes());
        put(&mut header, 16, &address.to_le_bytes());
        put(&mut header, 24, &self.file.len().to_le_bytes());
        put(&mut header, 32, &body.len().to_le_bytes());
        put(&mut header, 40, &u32::try_from(link).unwrap().to_le_bytes());
        put(&mut header, 56, &if kind == 2 { 24_u64 } else { 0 }.to_le_bytes());
        self.headers.push(header);
        self.names.extend(name.as_bytes());
        self.names.push(0);
        self.file.extend(body);
    }
}

/// The ELF file of these sections, with symbols `outer` and `plain`; bit 11 of a section's flags:
/// compressed.
pub(super) fn elf(sections: &[(String, Vec<u8>)], flags: u64) -> Vec<u8> {
    let mut writer = Writer { file: vec![0; 64], headers: vec![[0; 64]], names: vec![0] };
    writer.section(".text", [1, 6, TEXT, 0], &[0x90; 2 * 0x40]);
    let mut symbols = vec![0; 24];
    for (name, value) in [(1_u32, TEXT), (7, TEXT + OUTER)] {
        symbols.extend(name.to_le_bytes());
        symbols.extend([0x12, 0, 1, 0]);
        symbols.extend(value.to_le_bytes());
        symbols.extend(OUTER.to_le_bytes());
    }
    writer.section(".symtab", [2, 0, 0, 3], &symbols);
    writer.section(".strtab", [3, 0, 0, 0], b"\0outer\0plain\0");
    for (name, bytes) in sections {
        writer.section(name, [1, flags, 0, 0], bytes);
    }
    let mut names = writer.names.clone();
    names.extend(b".shstrtab\0");
    writer.section(".shstrtab", [3, 0, 0, 0], &names);
    let (mut file, headers) = (writer.file, writer.headers);
    put(&mut file, 0, b"\x7fELF\x02\x01\x01");
    put(&mut file, 16, &[2, 0, 62, 0, 1]);
    let at = file.len() as u64;
    put(&mut file, 40, &at.to_le_bytes());
    put(&mut file, 52, &64_u16.to_le_bytes());
    put(&mut file, 58, &64_u16.to_le_bytes());
    put(&mut file, 60, &u16::try_from(headers.len()).unwrap().to_le_bytes());
    put(&mut file, 62, &u16::try_from(headers.len() - 1).unwrap().to_le_bytes());
    file.extend(headers.concat());
    file
}

/// A section packed by zlib, without making it smaller (RFC 1950 and 1951), after its header.
pub(super) fn packed(bytes: &[u8], claimed: u64) -> Vec<u8> {
    let mut out = Vec::new();
    for word in [1, claimed, 1] {
        out.extend(word.to_le_bytes());
    }
    let len = u16::try_from(bytes.len()).unwrap();
    out.extend([0x78, 0x01, 0x01]);
    out.extend(len.to_le_bytes());
    out.extend((!len).to_le_bytes());
    out.extend(bytes);
    let (mut low, mut high) = (1_u32, 0_u32);
    for byte in bytes {
        low = (low + u32::from(*byte)) % 65521;
        high = (high + low) % 65521;
    }
    out.extend((high << 16 | low).to_be_bytes());
    out
}
