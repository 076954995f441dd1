//! Where an ELF file has its DWARF, and that read into memory.

use std::io::{self, Read, Seek, SeekFrom};

use gimli::SectionId;
use object::LittleEndian;
use object::elf::{self, FileHeader64, SectionHeader64};
use object::read::elf::{CompressionHeader as _, FileHeader, SectionHeader as _};
use object::read::{CompressedData, CompressionFormat, ReadRef};

use super::error::LinesProblem;
use crate::symbols::{ElfError, check_ident};

const LE: LittleEndian = LittleEndian;

/// Most bytes that all sections together may have, unpacked.
pub(super) const MAX_BYTES: u64 = 1 << 30;
/// Most bytes of .debug_abbrev without two zeros in a row. These end a list of attributes, so that none is longer; real
/// ones have some dozen bytes. Attributes may take no bytes of the entries that have them, and time all the same.
const MAX_ATTRIBUTE_LIST: usize = 1 << 10;

/// Those that tell lines and functions. Without the first three there is nothing to tell.
const WANTED: [SectionId; 10] = [
    SectionId::DebugInfo,
    SectionId::DebugAbbrev,
    SectionId::DebugLine,
    SectionId::DebugStr,
    SectionId::DebugLineStr,
    SectionId::DebugStrOffsets,
    SectionId::DebugAddr,
    SectionId::DebugRanges,
    SectionId::DebugRngLists,
    SectionId::DebugAranges,
];
const NEEDED: usize = 3;

/// A section's place in the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placed {
    pub(super) id: SectionId,
    /// Where its contents are in the file, behind the header of compressed ones.
    offset: u64,
    size: u64,
    /// The size that it has unpacked.
    unpacked: u64,
    format: CompressionFormat,
}

/// Finds the sections in an x86-64 ELF file, of which only headers are read.
pub(super) fn find<'data, R: ReadRef<'data>>(data: R) -> Result<Vec<Placed>, LinesProblem> {
    check_ident(data)?;
    let damaged = |part| LinesProblem::Elf(ElfError::Damaged { part });
    let header = FileHeader64::<LittleEndian>::parse(data).map_err(|_| damaged("ELF header"))?;
    if header.e_type(LE) == elf::ET_REL {
        return Err(ElfError::Relocatable.into());
    }
    let sections = header.sections(LE, data).map_err(|_| damaged("section headers"))?;
    let mut found = Vec::new();
    for id in WANTED {
        let section = sections.section_by_name(LE, id.name().as_bytes());
        let section = section.map(|(_, section)| section);
        if let Some(section) = section.filter(|section| section.sh_type(LE) != elf::SHT_NOBITS) {
            found.push(placed(id, section, data).ok_or(damaged(id.name()))?);
        }
    }
    let has = |id: &SectionId| found.iter().any(|section| section.id == *id && section.size > 0);
    if !WANTED.iter().take(NEEDED).all(has) {
        return Err(LinesProblem::NoDebugInfo);
    }
    let bytes = found.iter().fold(0u64, |sum, section| sum.saturating_add(section.unpacked));
    if bytes > MAX_BYTES {
        Err(LinesProblem::TooLarge { bytes, max: MAX_BYTES })
    } else {
        Ok(found)
    }
}

fn placed<'data, R: ReadRef<'data>>(
    id: SectionId,
    section: &SectionHeader64<LittleEndian>,
    data: R,
) -> Option<Placed> {
    let file_bytes = data.len().ok()?;
    let (offset, size) = section.file_range(LE)?;
    let plain = Placed { id, offset, size, unpacked: size, format: CompressionFormat::None };
    let placed = match section.compression(LE, data).ok()? {
        None => plain,
        Some((header, offset, size)) => {
            let format = match header.ch_type(LE) {
                elf::ELFCOMPRESS_ZLIB => CompressionFormat::Zlib,
                elf::ELFCOMPRESS_ZSTD => CompressionFormat::Zstandard,
                _ => return None,
            };
            Placed { offset, size, unpacked: header.ch_size(LE), format, ..plain }
        }
    };
    (placed.offset.checked_add(placed.size)? <= file_bytes).then_some(placed)
}

impl Placed {
    /// The section's contents, unpacked.
    pub(super) fn read(&self, file: &mut (impl Read + Seek)) -> Result<Vec<u8>, LinesProblem> {
        let name = self.id.name();
        let packed = self.contents(file).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => ElfError::Damaged { part: name }.into(),
            _ => LinesProblem::Unreadable(error.into()),
        })?;
        let bytes = match self.format {
            CompressionFormat::None => packed,
            format => {
                let uncompressed_size = self.unpacked;
                let data = CompressedData { format, data: &packed, uncompressed_size };
                data.decompress().map_err(|_| ElfError::Damaged { part: name })?.into_owned()
            }
        };
        if self.id == SectionId::DebugAbbrev && longest_list(&bytes) > MAX_ATTRIBUTE_LIST {
            return Err(ElfError::Damaged { part: name }.into());
        }
        Ok(bytes)
    }

    fn contents(&self, file: &mut (impl Read + Seek)) -> io::Result<Vec<u8>> {
        let size = usize::try_from(self.size).map_err(io::Error::other)?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(size)?;
        file.seek(SeekFrom::Start(self.offset))?;
        file.take(self.size).read_to_end(&mut bytes)?;
        if bytes.len() == size { Ok(bytes) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
}

/// Most bytes without two zeros in a row.
fn longest_list(bytes: &[u8]) -> usize {
    let (mut longest, mut start) = (0, 0);
    for (at, pair) in bytes.windows(2).enumerate() {
        if pair == [0, 0] {
            longest = longest.max(at - start);
            start = at + 1;
        }
    }
    longest.max(bytes.len().saturating_sub(start))
}

#[cfg(test)]
mod tests {
    use super::longest_list;

    #[test]
    fn lists_end_at_two_zeros() {
        for (bytes, longest) in [
            (&[][..], 0),
            (&[1, 0, 2, 0, 3], 5),
            (&[1, 2, 3, 0, 0, 1, 0, 0], 3),
            (&[1, 0, 0, 1, 2, 3, 4], 5),
            (&[0, 0, 0, 0], 1),
        ] {
            assert_eq!(longest_list(bytes), longest, "{bytes:?}");
        }
    }
}
