//! A module's symbols: an ELF table (`Elf64_Sym`) of which the kernel keeps only a part.

use exoprobe_guest::Gva;

use super::error::{ModuleError, SYMBOL_NAME_MAX, SYMBOLS_MAX};
use super::{Module, ModuleLayout, half, word};
use crate::symbols::{KERNEL_HALF, ModuleSymbol, ModuleTable, SymbolKind};
use crate::view::GuestView;
use crate::virt::VirtualMemory;

/// Bytes of an `Elf64_Sym`.
const SYMBOL_LEN: usize = 24;
/// Offsets in it of `st_info`, `st_shndx`, `st_value` and `st_size`; `st_name` comes first.
const INFO: usize = 4;
const SECTION: usize = 6;
const VALUE: usize = 8;
const SIZE: usize = 16;
/// `st_shndx` of an undefined symbol (SHN_UNDEF).
const UNDEFINED: [u8; 2] = [0, 0];
/// Upper half of `st_info` of a local symbol (STB_LOCAL).
const LOCAL: u8 = 0;

/// Room left for the symbols of all modules together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Symbols.
    pub symbols: usize,
    /// Bytes of their names.
    pub name_bytes: usize,
}

impl Default for Room {
    fn default() -> Self {
        Self { symbols: 1 << 20, name_bytes: 64 << 20 }
    }
}

impl Room {
    /// Returns the room left after this table; `None` if it does not fit.
    #[must_use]
    pub fn without(self, table: &ModuleTable) -> Option<Self> {
        Some(Self {
            symbols: self.symbols.checked_sub(table.len())?,
            name_bytes: self.name_bytes.checked_sub(table.name_bytes())?,
        })
    }
}

/// A symbol without its name, which is an offset into `strtab`.
struct Raw {
    name: u32,
    address: Gva,
    size: u64,
    kind: SymbolKind,
    global: bool,
}

impl ModuleLayout {
    /// Reads a module's symbols, with its text; there are none while it is unformed.
    ///
    /// # Errors
    /// [`ModuleError`]: [`ModuleError::TooManySymbols`] where there is no `room` for them.
    pub fn symbols<V: GuestView + ?Sized>(
        &self,
        memory: &VirtualMemory<'_, V>,
        module: &Module,
        room: Room,
    ) -> Result<ModuleTable, ModuleError> {
        let text: Vec<_> = module.texts().collect();
        let (strtab, raw) = match text.is_empty() || module.kallsyms < KERNEL_HALF {
            true => (Gva(0), Vec::new()),
            false => self.raw_symbols(memory, module, room)?,
        };
        let mut names = Vec::with_capacity(raw.len());
        let mut left = room.name_bytes;
        for Raw { name, .. } in &raw {
            let name = strtab.wrapping_add(u64::from(*name));
            let name = memory.read_cstr(name, SYMBOL_NAME_MAX)?;
            let count = u32::try_from(raw.len()).unwrap_or(u32::MAX);
            let too_many = || ModuleError::TooManySymbols { module: module.name.clone(), count };
            left = left.checked_sub(name.bytes.len()).ok_or_else(too_many)?;
            // A name that is not UTF-8 is left out, as an empty one is.
            let whole = if name.terminated { name.bytes } else { Vec::new() };
            names.push(String::from_utf8(whole).unwrap_or_default());
        }
        let symbols = raw.iter().zip(&names).map(|(raw, name)| {
            let Raw { address, size, kind, global, .. } = *raw;
            ModuleSymbol { name, address, size, kind, global }
        });
        Ok(ModuleTable::new(&module.name, &text, symbols)?)
    }

    /// Where the names are, and the symbols that are the module's own.
    fn raw_symbols<V: GuestView + ?Sized>(
        &self,
        memory: &VirtualMemory<'_, V>,
        module: &Module,
        room: Room,
    ) -> Result<(Gva, Vec<Raw>), ModuleError> {
        let address = |offset: u64| -> Result<Gva, ModuleError> {
            Ok(Gva(memory.read_u64(module.kallsyms.wrapping_add(offset))?))
        };
        let mut count = [0; 4];
        memory.read(module.kallsyms.wrapping_add(self.table.num_symtab), &mut count)?;
        let count = u32::from_le_bytes(count);
        let fits = count <= SYMBOLS_MAX && count as usize <= room.symbols;
        if !fits {
            return Err(ModuleError::TooManySymbols { module: module.name.clone(), count });
        }
        let mut symtab = vec![0; count as usize * SYMBOL_LEN];
        memory.read(address(self.table.symtab)?, &mut symtab)?;
        let types = self.table.typetab.map(|offset| -> Result<Vec<u8>, ModuleError> {
            let mut types = vec![0; count as usize];
            memory.read(address(offset)?, &mut types)?;
            Ok(types)
        });
        let types = types.transpose()?;
        let symbols = symtab.chunks_exact(SYMBOL_LEN).enumerate();
        let own = symbols.filter(|(_, symbol)| symbol[SECTION..SECTION + 2] != UNDEFINED);
        let raw = own.map(|(index, symbol)| {
            let letter = types.as_ref().and_then(|types| types.get(index));
            // Before there was a table of letters, they overwrote `st_size` or `st_info`.
            let is_code = letter.is_none_or(|letter| matches!(letter, b't' | b'T' | b'w' | b'W'));
            Raw {
                name: half(symbol, 0),
                address: Gva(word(symbol, VALUE)),
                size: if letter.is_some() { word(symbol, SIZE) } else { 0 },
                kind: if is_code { SymbolKind::Function } else { SymbolKind::Data },
                global: letter.is_some() && symbol[INFO] >> 4 != LOCAL,
            }
        });
        Ok((address(self.table.strtab)?, raw.collect()))
    }
}
