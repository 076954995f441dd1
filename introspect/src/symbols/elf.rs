//! Symbols of an ELF kernel image (`vmlinux`): System V gABI chapters 4 and 5, x86-64 psABI.

use object::LittleEndian;
use object::elf::{self, FileHeader64, SectionHeader64, Sym64};
use object::read::elf::{FileHeader, SectionHeader as _, Sym as _};
use object::read::{ReadRef, StringTable};

use super::build::{Builder, RawSymbol, TableError, Tables};
use super::{KERNEL_HALF, MAX_SYMBOLS, TextKind};

type Header = FileHeader64<LittleEndian>;
type Section = SectionHeader64<LittleEndian>;
type Sym = Sym64<LittleEndian>;

const LE: LittleEndian = LittleEndian;

/// The first bytes of every ELF file.
pub(super) const MAGIC: &[u8] = &elf::ELFMAG;

/// Reasons why an ELF file has no usable symbol table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ElfError {
    /// The file does not begin with the ELF magic number.
    #[error("not an ELF file")]
    NotElf,
    /// Another architecture, word size or byte order.
    #[error("not an x86-64 ELF file (machine {machine}, class {class}, data encoding {data})")]
    NotX86_64 {
        /// `e_machine`, in the file's own byte order; 62 would be x86-64.
        machine: u16,
        /// `EI_CLASS`; 2 would be 64-bit.
        class: u8,
        /// `EI_DATA`; 1 would be little-endian.
        data: u8,
    },
    /// An object file or module: it has no addresses yet.
    #[error("a relocatable object (.o or .ko), not a linked kernel: its symbols have no addresses")]
    Relocatable,
    /// The file was stripped.
    #[error("the file has no symbol table (stripped); use the unstripped vmlinux or System.map")]
    NoSymbolTable,
    /// A part of the file lies outside it or cannot be what the header says.
    #[error("the ELF file is truncated or damaged: bad {part}")]
    Damaged {
        /// The part that could not be read.
        part: &'static str,
    },
    /// The symbols do not form a table.
    #[error(transparent)]
    Table(#[from] TableError),
}

/// Reads `.symtab`. Only headers, symbols and their names are read from `data`, so that a file
/// full of debug information costs no more than one without.
pub(super) fn parse<'data, R: ReadRef<'data>>(data: R) -> Result<Tables, ElfError> {
    check_ident(data)?;
    let damaged = |part| ElfError::Damaged { part };
    let header = Header::parse(data).map_err(|_| damaged("ELF header"))?;
    if header.e_type(LE) == elf::ET_REL {
        return Err(ElfError::Relocatable);
    }
    let sections = header.section_headers(LE, data).map_err(|_| damaged("section headers"))?;
    let is_symtab = |section: &&Section| section.sh_type(LE) == elf::SHT_SYMTAB;
    let symtab = sections.iter().find(is_symtab).ok_or(ElfError::NoSymbolTable)?;
    let max_bytes = (MAX_SYMBOLS * size_of::<Sym>()) as u64;
    if symtab.sh_size(LE) > max_bytes {
        return Err(TableError::TooManySymbols { max: MAX_SYMBOLS }.into());
    }
    let symbols: &[Sym] = symtab.data_as_array(LE, data).map_err(|_| damaged("symbol table"))?;
    if symbols.len() <= 1 {
        return Err(ElfError::NoSymbolTable);
    }
    let names = usize::try_from(symtab.sh_link(LE))
        .ok()
        .and_then(|link| sections.get(link))
        .filter(|section| section.sh_type(LE) == elf::SHT_STRTAB)
        .and_then(|section| section.data(LE, data).ok())
        .ok_or(damaged("symbol names"))?;
    let names = StringTable::new(names, 0, names.len() as u64);

    let mut builder = Builder::new(symbols.len(), symbols.len() * 32);
    let text = executable(header, sections, data, &mut builder)?;
    for symbol in symbols {
        push(&mut builder, symbol, names, &text)?;
    }
    Ok(builder.finish()?)
}

/// Refuses files other than x86-64 ELF files.
pub(crate) fn check_ident<'data, R: ReadRef<'data>>(data: R) -> Result<(), ElfError> {
    if data.read_bytes_at(0, 4) != Ok(MAGIC) {
        return Err(ElfError::NotElf);
    }
    let head = data.read_bytes_at(0, 20).map_err(|()| ElfError::Damaged { part: "ELF header" })?;
    let (class, encoding) = (head[4], head[5]);
    let machine = [head[18], head[19]];
    let big = encoding == elf::ELFDATA2MSB.0;
    let machine = if big { u16::from_be_bytes(machine) } else { u16::from_le_bytes(machine) };
    let x86_64 =
        machine == elf::EM_X86_64.0 && class == elf::ELFCLASS64.0 && encoding == elf::ELFDATA2LSB.0;
    if x86_64 { Ok(()) } else { Err(ElfError::NotX86_64 { machine, class, data: encoding }) }
}

/// Adds the executable sections to `builder`, and returns their address ranges, ascending.
fn executable<'data, R: ReadRef<'data>>(
    header: &Header,
    sections: &'data [Section],
    data: R,
    builder: &mut Builder,
) -> Result<Vec<(u64, u64)>, ElfError> {
    let names = header
        .section_strings(LE, data, sections)
        .map_err(|_| ElfError::Damaged { part: "section names" })?;
    let wanted = elf::SHF_ALLOC | elf::SHF_EXECINSTR;
    let mut ranges = Vec::new();
    for section in sections {
        if section.sh_flags(LE) & wanted != wanted {
            continue;
        }
        let start = section.sh_addr(LE);
        let end = start.saturating_add(section.sh_size(LE));
        let kind = match section.name(LE, names) {
            Ok(b".text") => TextKind::Core,
            Ok(b".init.text") => TextKind::Init,
            Ok(name) if name.starts_with(b".text.") => TextKind::Core,
            _ => TextKind::Other,
        };
        builder.text(start, end, kind);
        ranges.push((start, end));
    }
    ranges.sort_unstable();
    Ok(ranges)
}

fn push(
    builder: &mut Builder,
    symbol: &Sym,
    names: StringTable<'_>,
    text: &[(u64, u64)],
) -> Result<(), TableError> {
    let (kind, section) = (symbol.st_type(), symbol.st_shndx(LE));
    let named_by_user = kind != elf::STT_SECTION && kind != elf::STT_FILE;
    if !named_by_user || section == elf::SHN_UNDEF || section == elf::SHN_COMMON {
        return Ok(());
    }
    // A name outside the string table, or one that is not text, cannot be looked up.
    let Some(name) = symbol.name(LE, names).ok().and_then(|name| str::from_utf8(name).ok()) else {
        return Ok(());
    };
    let address = symbol.st_value(LE);
    let typed = kind == elf::STT_FUNC;
    let label = kind == elf::STT_NOTYPE && section != elf::SHN_ABS && contains(text, address);
    let function = address >= KERNEL_HALF.0 && (typed || label);
    builder.push(&RawSymbol {
        name,
        address,
        // As the kernel itself has it, which knows no sizes: up to the next symbol.
        size: if function { 0 } else { symbol.st_size(LE) },
        function,
        global: symbol.st_bind() != elf::STB_LOCAL,
        typed,
    })
}

fn contains(ranges: &[(u64, u64)], address: u64) -> bool {
    let count = ranges.partition_point(|(start, _)| *start <= address);
    ranges[..count].last().is_some_and(|(_, end)| address < *end)
}
