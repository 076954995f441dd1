//! A kernel's notes for readers of its dump: lines `KEY=VALUE`
//! (Documentation/admin-guide/kdump/vmcoreinfo.rst). Kernels that can be dumped have it
//! (CONFIG_KEXEC, CONFIG_PROC_KCORE).

use exoprobe_guest::Gva;

use crate::symbols::SymbolTable;
use crate::view::GuestView;
use crate::virt::VirtualMemory;

/// Where the kernel has the text's address, and its length in bytes (kernel/vmcore_info.c).
const DATA: &str = "vmcoreinfo_data";
const SIZE: &str = "vmcoreinfo_size";
/// Longest text (VMCOREINFO_BYTES: a page).
const SIZE_MAX: u64 = 4096;
const OFFSET: &str = "KERNELOFFSET";
const RELEASE: &str = "OSRELEASE";

/// A kernel's notes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmCoreInfo {
    text: String,
}

impl VmCoreInfo {
    /// Reads them from a kernel's memory, where `symbols` are; `None` where it has none, or none
    /// yet.
    #[must_use]
    pub fn read<V: GuestView + ?Sized>(
        memory: &VirtualMemory<'_, V>,
        symbols: &SymbolTable,
    ) -> Option<Self> {
        let word = |name| memory.read_u64(symbols.address_of(name)?).ok();
        let (at, size) = (Gva(word(DATA)?), word(SIZE)?);
        if size == 0 || size > SIZE_MAX {
            return None;
        }
        let mut bytes = vec![0; usize::try_from(size).ok()?];
        memory.read(at, &mut bytes).ok()?;
        let text = String::from_utf8(bytes).ok()?;
        text.lines().any(|line| line.starts_with(RELEASE)).then_some(Self { text })
    }

    /// Makes notes for a kernel that has none of its own, under the kernel's keys. `release` is
    /// that of its banner, `kernel_offset` the bytes by which KASLR moved it. A key `EXOPROBE`
    /// marks them. `None` where a symbol is missing.
    #[must_use]
    pub fn made<V: GuestView + ?Sized>(
        memory: &VirtualMemory<'_, V>,
        symbols: &SymbolTable,
        release: &str,
        kernel_offset: u64,
        five_levels: bool,
    ) -> Option<Self> {
        let at = |name| symbols.address_of(name).map(|at| at.0);
        let phys_base = memory.read_u64(symbols.address_of("phys_base")?).ok()?.cast_signed();
        let tables = at("init_top_pgt")?;
        let text = format!(
            "{RELEASE}={release}\nPAGESIZE=4096\nSYMBOL(init_uts_ns)={:x}\nSYMBOL(_stext)={:x}\n\
             SYMBOL(swapper_pg_dir)={tables:x}\nSYMBOL(init_top_pgt)={tables:x}\n\
             NUMBER(phys_base)={phys_base}\nNUMBER(pgtable_l5_enabled)={}\n{OFFSET}={kernel_offset:x}\n\
             EXOPROBE=made by exoprobe: the kernel has no notes of its own\n",
            at("init_uts_ns")?,
            at("_stext")?,
            u8::from(five_levels),
        );
        Some(Self { text })
    }

    /// All of them, lines `KEY=VALUE`.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The value of a key, as it is written; the first, where a key is there twice.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
    }

    /// The kernel's release, as `uname -r` prints it.
    #[must_use]
    pub fn release(&self) -> Option<&str> {
        self.get(RELEASE)
    }

    /// By how many bytes KASLR moved the kernel from where it was linked.
    #[must_use]
    pub fn kernel_offset(&self) -> Option<u64> {
        u64::from_str_radix(self.get(OFFSET)?, 16).ok()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::image::sample::{KERNEL, MODE, image, mapped};

    const TEXT: &[u8] =
        b"OSRELEASE=6.1.0-56-cloud-amd64\nPAGESIZE=4096\nKERNELOFFSET=19200000\nKERNELOFFSET=1\n";

    fn read(content: &[u8], at: u64, size: u64) -> Option<VmCoreInfo> {
        let mut bytes = mapped(0x4000, &[KERNEL]);
        bytes[0x2000..0x2008].copy_from_slice(&at.to_le_bytes());
        bytes[0x2008..0x2010].copy_from_slice(&size.to_le_bytes());
        bytes[0x3000..0x3000 + content.len()].copy_from_slice(content);
        let image = image(bytes);
        let map = format!(
            "{KERNEL:x} T _stext\n{:x} T _etext\n{:x} D {DATA}\n{:x} D {SIZE}\n",
            KERNEL + 0x100,
            KERNEL + 0x2000,
            KERNEL + 0x2008
        );
        let symbols = SymbolTable::from_system_map(&map).unwrap();
        VmCoreInfo::read(&VirtualMemory::with_mode(&image, MODE), &symbols)
    }

    #[test]
    fn notes_have_values_by_key() {
        let found = read(TEXT, KERNEL + 0x3000, TEXT.len() as u64).unwrap();
        assert_eq!(found.release(), Some("6.1.0-56-cloud-amd64"));
        assert_eq!(found.kernel_offset(), Some(0x1920_0000));
        assert_eq!((found.get("PAGESIZE"), found.get("PAGE")), (Some("4096"), None));
    }

    #[test]
    fn what_is_not_there_is_none() {
        let len = TEXT.len() as u64;
        assert_eq!(read(TEXT, 0x10, len), None, "not mapped");
        assert_eq!(read(TEXT, KERNEL + 0x3000, 0), None, "not written yet");
        assert_eq!(read(TEXT, KERNEL + 0x3000, SIZE_MAX + 1), None, "too long");
        assert_eq!(read(b"\xff\xfe=1\nOSRELEASE=1", KERNEL + 0x3000, 16), None, "no text");
        assert_eq!(read(b"A=1\n", KERNEL + 0x3000, 4), None, "another's");
        let odd = read(b"OSRELEASE=x\nKERNELOFFSET=zz\n", KERNEL + 0x3000, 28).unwrap();
        assert_eq!(odd.kernel_offset(), None);
    }

    #[test]
    fn notes_are_made_of_symbols_and_none_where_one_is_missing() {
        let mut bytes = mapped(0x4000, &[KERNEL]);
        bytes[0x2000..0x2008].copy_from_slice(&(-0x20_0000i64).to_le_bytes());
        let image = image(bytes);
        let memory = VirtualMemory::with_mode(&image, MODE);
        let lines = [
            format!("{KERNEL:x} T _stext\n{:x} T _etext\n", KERNEL + 0x100),
            format!("{:x} D phys_base\n", KERNEL + 0x2000),
            format!("{:x} D init_uts_ns\n", KERNEL + 0x2100),
            format!("{:x} D init_top_pgt\n", KERNEL + 0x3000),
        ];
        let made = |map: &str| {
            let symbols = SymbolTable::from_system_map(map).unwrap();
            VmCoreInfo::made(&memory, &symbols, "6.1.0-x", 0x1920_0000, false)
        };
        let found = made(&lines.concat()).unwrap();
        assert_eq!((found.release(), found.kernel_offset()), (Some("6.1.0-x"), Some(0x1920_0000)));
        assert_eq!(found.get("NUMBER(phys_base)"), Some("-2097152"));
        assert_eq!(found.get("SYMBOL(init_uts_ns)"), Some(&*format!("{:x}", KERNEL + 0x2100)));
        assert_eq!(found.get("SYMBOL(swapper_pg_dir)"), found.get("SYMBOL(init_top_pgt)"));
        assert_eq!(found.get("NUMBER(pgtable_l5_enabled)"), Some("0"));
        assert!(found.text().lines().all(|line| line.contains('=')), "{}", found.text());
        for missing in 1..lines.len() {
            let mut fewer = lines.to_vec();
            drop(fewer.remove(missing));
            assert_eq!(made(&fewer.concat()), None, "{missing}");
        }
    }

    proptest! {
        #[test]
        fn any_notes_are_read_or_none(content in prop::collection::vec(any::<u8>(), 0..200), at: u64, size in 0..300u64) {
            let _ = read(&content, at, size);
            let _ = read(&content, KERNEL + 0x3000, size).map(|found| found.kernel_offset());
        }
    }
}
