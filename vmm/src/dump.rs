//! The guest's RAM and registers as an ELF core (ET_CORE), for crash and drgn.
//!
//! | part | content |
//! |---|---|
//! | PT_NOTE | NT_PRSTATUS of each vCPU, in order; `VMCOREINFO`, where it is known |
//! | PT_LOAD | a range of RAM: `p_paddr` is guest-physical, `p_vaddr` in the direct map |
//!
//! Pages of zeros are holes of the file.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use object::elf::{
    ELFCLASS64, ELFDATA2LSB, ELFMAG, EM_X86_64, ET_CORE, EV_CURRENT, FileFlags, FileHeader64,
    Ident, NT_PRSTATUS, NoteType, OsAbi, PF_R, PF_W, PF_X, PT_LOAD, PT_NOTE, ProgramFlags,
    ProgramHeader64, ProgramType, SymbolSection,
};
use object::endian::{LittleEndian as LE, U16, U32, U64};
use object::pod::bytes_of;

use crate::new_file::{NewFile, NewFileError};
use crate::progress::{WriteEnded, WriteProgress};
use crate::ram;
use exoprobe_guest::DumpNotes;
use exoprobe_guest::Gpa;
use exoprobe_guest::GuestRam;
use exoprobe_guest::Registers;
use exoprobe_guest::addr::to_usize;
use exoprobe_guest::paging::PAGE_SIZE;

/// Bytes between two messages of progress.
const PROGRESS: u64 = 1 << 30;
/// struct elf_prstatus of x86-64 (include/linux/elfcore.h): `pr_pid`, and the registers.
const PRSTATUS_LEN: usize = 336;
const PRSTATUS_PID: usize = 32;
const PRSTATUS_REGS: usize = 112;

/// A dump that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dump {
    /// Length of the file, holes included.
    pub bytes: u64,
    /// Time for which the guest's vCPUs stood still; zero if the guest did not run.
    pub stood: std::time::Duration,
}

/// Why a dump could not be written.
#[derive(Debug, thiserror::Error)]
pub enum DumpError {
    /// There is a file already.
    #[error(
        "{0} is there already: give another name, or overwrite it (`--force`, \"force\": true)"
    )]
    Exists(PathBuf),
    /// It cannot be made, or named.
    #[error("dump {0}")]
    File(NewFileError),
    /// It cannot be written.
    #[error("dump {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The host's error.
        source: io::Error,
    },
    /// It was ended before it was complete.
    #[error("the dump was ended before it was whole; there is no file of it")]
    Ended,
}

impl From<WriteEnded> for DumpError {
    fn from(WriteEnded: WriteEnded) -> Self {
        Self::Ended
    }
}

impl From<NewFileError> for DumpError {
    fn from(error: NewFileError) -> Self {
        match error {
            NewFileError::Exists(path) => Self::Exists(path),
            other => Self::File(other),
        }
    }
}

/// Writes a file that gets its name once it is complete. Returns its length.
pub(crate) fn write(
    path: &Path,
    force: bool,
    progress: &WriteProgress,
    ram: &GuestRam,
    registers: &[Registers],
    notes: &DumpNotes,
) -> Result<u64, DumpError> {
    // The file contains all of the guest's memory, so only its owner may read it.
    let mut new = NewFile::create(path, 0o600)?;
    // Reported before gigabytes are written, and again when the file gets its name.
    if !force && path.symlink_metadata().is_ok() {
        return Err(DumpError::Exists(path.to_owned()));
    }
    let failed = |source: io::Error| DumpError::Io { path: path.to_owned(), source };
    let file = new.file();
    let (memory, len) = write_headers(file, ram, registers, notes).map_err(failed)?;
    let mut original = notes.original.clone();
    original.sort_unstable_by_key(|(place, _)| place.0);
    progress.begin(ram.size());
    let mut start = memory;
    ram::for_each_chunk(ram, |gpa, chunk| {
        put_back(chunk, gpa, &original);
        write_pages(file, start, chunk).map_err(failed)?;
        start += chunk.len() as u64;
        report(start - memory, ram.size());
        Ok::<_, DumpError>(progress.advance(chunk.len() as u64)?)
    })?;
    new.finish(force)?;
    Ok(len)
}

/// Logs how much of a large dump is written.
fn report(written: u64, of: u64) {
    if written.is_multiple_of(PROGRESS) {
        tracing::info!(written_mib = written >> 20, of_mib = of >> 20, "writing a dump");
    }
}

/// Writes all that comes before the memory. Returns the offset of the memory, and that of its end.
fn write_headers(
    file: &mut File,
    ram: &GuestRam,
    registers: &[Registers],
    notes: &DumpNotes,
) -> io::Result<(u64, u64)> {
    let note = note_segment(registers, notes);
    let ranges = ram.ranges();
    let headers =
        size_of::<FileHeader64<LE>>() + (ranges.len() + 1) * size_of::<ProgramHeader64<LE>>();
    let memory = ((headers + note.len()) as u64).next_multiple_of(PAGE_SIZE);
    file.write_all(bytes_of(&file_header(ranges.len() + 1)))?;
    file.write_all(bytes_of(&program_header(
        PT_NOTE,
        ProgramFlags(0),
        headers as u64,
        0,
        0,
        note.len() as u64,
    )))?;
    let mut at = memory;
    for range in &ranges {
        let virt = notes.direct_map.map_or(0, |base| base.wrapping_add(range.start.0));
        let flags = PF_R | PF_W | PF_X;
        let header = program_header(PT_LOAD, flags, at, virt, range.start.0, range.len);
        file.write_all(bytes_of(&header))?;
        at += range.len;
    }
    file.write_all(&note)?;
    file.set_len(at)?;
    Ok((memory, at))
}

/// Replaces the bytes of `chunk`, read at `gpa`, by those in `original`, which is sorted.
fn put_back(chunk: &mut [u8], gpa: Gpa, original: &[(Gpa, u8)]) {
    let first = original.partition_point(|(place, _)| *place < gpa);
    for (place, byte) in &original[first..] {
        let index = usize::try_from(place.0 - gpa.0).ok();
        let Some(there) = index.and_then(|index| chunk.get_mut(index)) else { break };
        *there = *byte;
    }
}

/// Writes the pages of `chunk` that are not zero to the file, at `start`.
fn write_pages(file: &mut File, start: u64, chunk: &[u8]) -> io::Result<()> {
    for (page, bytes) in (0u64..).zip(chunk.chunks(to_usize(PAGE_SIZE))) {
        if bytes.iter().any(|byte| *byte != 0) {
            file.seek(SeekFrom::Start(start + page * PAGE_SIZE))?;
            file.write_all(bytes)?;
        }
    }
    Ok(())
}

fn file_header(segments: usize) -> FileHeader64<LE> {
    let entry = |len: usize| U16::new(LE, u16::try_from(len).expect("a header's length"));
    FileHeader64 {
        e_ident: Ident {
            magic: ELFMAG,
            class: ELFCLASS64,
            data: ELFDATA2LSB,
            version: EV_CURRENT,
            os_abi: OsAbi(0),
            abi_version: 0,
            padding: [0; 7],
        },
        e_type: U16::new(LE, ET_CORE),
        e_machine: U16::new(LE, EM_X86_64),
        e_version: U32::new(LE, u32::from(EV_CURRENT.0)),
        e_entry: U64::new(LE, 0),
        e_phoff: U64::new(LE, size_of::<FileHeader64<LE>>() as u64),
        e_shoff: U64::new(LE, 0),
        e_flags: U32::new(LE, FileFlags(0)),
        e_ehsize: entry(size_of::<FileHeader64<LE>>()),
        e_phentsize: entry(size_of::<ProgramHeader64<LE>>()),
        e_phnum: entry(segments),
        e_shentsize: entry(0),
        e_shnum: entry(0),
        e_shstrndx: U16::new(LE, SymbolSection(0)),
    }
}

fn program_header(
    kind: ProgramType,
    flags: ProgramFlags,
    offset: u64,
    virt: u64,
    phys: u64,
    len: u64,
) -> ProgramHeader64<LE> {
    ProgramHeader64 {
        p_type: U32::new(LE, kind),
        p_flags: U32::new(LE, flags),
        p_offset: U64::new(LE, offset),
        p_vaddr: U64::new(LE, virt),
        p_paddr: U64::new(LE, phys),
        p_filesz: U64::new(LE, len),
        p_memsz: U64::new(LE, len),
        p_align: U64::new(LE, 0),
    }
}

fn note_segment(registers: &[Registers], notes: &DumpNotes) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (number, registers) in (1..).zip(registers) {
        note(&mut bytes, b"CORE\0", NT_PRSTATUS, &prstatus(number, registers));
    }
    if let Some(text) = &notes.vmcoreinfo {
        note(&mut bytes, b"VMCOREINFO\0", NoteType(0), text.as_bytes());
    }
    bytes
}

fn note(bytes: &mut Vec<u8>, name: &[u8], kind: NoteType, content: &[u8]) {
    for word in [name.len(), content.len()] {
        bytes.extend(u32::try_from(word).expect("a note is short").to_le_bytes());
    }
    bytes.extend(kind.0.to_le_bytes());
    for part in [name, content] {
        bytes.extend(part);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }
}

/// Registers are in the order of struct user_regs_struct (arch/x86/include/asm/user_64.h). `number`
/// is the vCPU's, from 1, in place of a task's: drgn finds a CPU's registers by it, and QEMU's
/// dump-guest-memory writes the same.
fn prstatus(number: u32, registers: &Registers) -> [u8; PRSTATUS_LEN] {
    let Registers { regs: r, sregs: s } = registers;
    let words = [
        r.r15,
        r.r14,
        r.r13,
        r.r12,
        r.rbp,
        r.rbx,
        r.r11,
        r.r10,
        r.r9,
        r.r8,
        r.rax,
        r.rcx,
        r.rdx,
        r.rsi,
        r.rdi,
        u64::MAX,
        r.rip,
        s.cs.selector.into(),
        r.rflags,
        r.rsp,
        s.ss.selector.into(),
        s.fs.base,
        s.gs.base,
        s.ds.selector.into(),
        s.es.selector.into(),
        s.fs.selector.into(),
        s.gs.selector.into(),
    ];
    let mut bytes = [0; PRSTATUS_LEN];
    bytes[PRSTATUS_PID..PRSTATUS_PID + 4].copy_from_slice(&number.to_le_bytes());
    for (place, word) in bytes[PRSTATUS_REGS..].chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use object::read::elf::{FileHeader, ProgramHeader};

    use super::*;
    use exoprobe_guest::memory::RamRange;

    const LOW: RamRange = RamRange { start: Gpa(0), len: 0x40_0000 };
    const HIGH: RamRange = RamRange { start: Gpa(1 << 32), len: 0x20_0000 };
    const DIRECT_MAP: u64 = 0xffff_8880_0000_0000;
    const ORIGINAL: [u64; 6] = [0x1000, u64::MAX, 0x1f_ffff, 0x20_0000, 0, 0x80_0000];

    fn ram() -> GuestRam {
        let ram = GuestRam::anonymous(&[LOW, HIGH]).unwrap();
        ram.write(Gpa(0x1000), &[0xcc, 2, 3]).unwrap();
        ram.write(Gpa(0x10_0ffe), b"over the edge").unwrap();
        ram.write(Gpa(HIGH.start.0 + HIGH.len - 4), b"last").unwrap();
        ram
    }

    fn registers(rip: u64) -> Registers {
        let mut registers = Registers::default();
        (registers.regs.r15, registers.regs.rip, registers.regs.rsp) = (15, rip, 0x5000);
        registers.sregs.gs.base = 0x6000;
        registers
    }

    fn notes() -> DumpNotes {
        DumpNotes {
            vmcoreinfo: Some("OSRELEASE=6.1.0\nPAGESIZE=4096\n".to_owned()),
            direct_map: Some(DIRECT_MAP),
            // In no order, at the first and the last byte of a chunk, and in no RAM.
            original: ORIGINAL.map(|place| (Gpa(place), 0x55)).to_vec(),
        }
    }

    fn dump(path: &Path, force: bool) -> Result<u64, DumpError> {
        let progress = WriteProgress::default();
        write(path, force, &progress, &ram(), &[registers(0x1234), registers(0x5678)], &notes())
    }

    #[test]
    fn a_dump_that_is_ended_leaves_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let progress = WriteProgress::default();
        progress.end();
        let ended = write(&dir.path().join("core"), false, &progress, &ram(), &[], &notes());
        assert!(matches!(ended, Err(DumpError::Ended)), "{ended:?}");
        assert!(progress.written() > 0 && progress.written() < progress.size());
        assert_eq!(names(dir.path()), [] as [&str; 0]);
    }

    fn names(dir: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(dir).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn segments_are_ranges_of_ram_with_the_guests_own_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("core");
        let len = dump(&path, false).unwrap();
        let data = std::fs::read(&path).unwrap();
        assert_eq!(data.len() as u64, len);
        let header = FileHeader64::<LE>::parse(&*data).unwrap();
        assert_eq!((header.e_type(LE), header.e_machine(LE)), (ET_CORE, EM_X86_64));
        let segments = header.program_headers(LE, &*data).unwrap();
        assert_eq!(segments.len(), 3);
        assert_eq!(segments[0].p_type(LE), PT_NOTE);
        for (segment, range) in segments[1..].iter().zip([LOW, HIGH]) {
            assert_eq!(segment.p_type(LE), PT_LOAD);
            assert_eq!((segment.p_paddr(LE), segment.p_memsz(LE)), (range.start.0, range.len));
            assert_eq!(segment.p_vaddr(LE), DIRECT_MAP + range.start.0);
            assert_eq!(segment.p_offset(LE) % PAGE_SIZE, 0);
            let mut expected = vec![0; to_usize(range.len)];
            ram().read(range.start, &mut expected).unwrap();
            for place in ORIGINAL {
                if let Some(byte) = expected.get_mut(to_usize(place.wrapping_sub(range.start.0))) {
                    *byte = 0x55;
                }
            }
            assert!(segment.data(LE, &*data).unwrap() == expected, "{range:?}");
        }
    }

    #[test]
    fn notes_are_registers_of_each_vcpu_and_vmcoreinfo() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("core");
        dump(&path, false).unwrap();
        let data = std::fs::read(&path).unwrap();
        let header = FileHeader64::<LE>::parse(&*data).unwrap();
        let segment = header.program_headers(LE, &*data).unwrap()[0];
        let mut iterator = segment.notes(LE, &*data).unwrap().unwrap();
        let u64_at =
            |desc: &[u8], at: usize| u64::from_le_bytes(desc[at..at + 8].try_into().unwrap());
        for (number, rip) in [(1u32, 0x1234), (2, 0x5678)] {
            let note = iterator.next().unwrap().unwrap();
            assert_eq!((note.name(), note.n_type(LE)), (&b"CORE"[..], NT_PRSTATUS));
            let desc = note.desc();
            assert_eq!(desc.len(), PRSTATUS_LEN);
            assert_eq!(desc[PRSTATUS_PID..PRSTATUS_PID + 4], number.to_le_bytes());
            // Indexes of struct user_regs_struct: r15, ip, sp, gs_base.
            let words = [0, 16, 19, 22].map(|word| u64_at(desc, PRSTATUS_REGS + word * 8));
            assert_eq!(words, [15, rip, 0x5000, 0x6000]);
        }
        let note = iterator.next().unwrap().unwrap();
        assert_eq!(note.name(), b"VMCOREINFO");
        assert_eq!(note.desc(), notes().vmcoreinfo.unwrap().as_bytes());
        assert!(iterator.next().unwrap().is_none());
    }

    #[test]
    fn pages_of_zeros_take_no_room_and_only_the_owner_reads_it() {
        use std::os::unix::fs::MetadataExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("core");
        let len = dump(&path, false).unwrap();
        let meta = std::fs::metadata(&path).unwrap();
        assert!(len > LOW.len + HIGH.len);
        // Four pages of memory and one of headers, with room for a file system's own blocks.
        assert!(meta.blocks() * 512 < 0x4_0000, "{} blocks", meta.blocks());
        assert_eq!(meta.mode() & 0o777, 0o600);
        assert_eq!(names(dir.path()), ["core"], "nothing else is left");
    }

    #[test]
    fn a_file_that_is_there_is_replaced_only_by_force() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("core");
        std::fs::write(&path, "mine").unwrap();
        let error = dump(&path, false).unwrap_err();
        assert!(matches!(&error, DumpError::Exists(there) if *there == path), "{error}");
        assert!(error.to_string().contains("--force"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), b"mine");
        let len = dump(&path, true).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), len);
        assert_eq!(names(dir.path()), ["core"]);
    }

    #[test]
    fn links_and_folders_are_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let (link, target) = (dir.path().join("link"), dir.path().join("target"));
        std::os::unix::fs::symlink(&target, &link).unwrap();
        for force in [false, true] {
            let error = dump(&link, force).unwrap_err();
            assert!(matches!(error, DumpError::File(NewFileError::NotAFile(_))), "{error}");
        }
        let error = dump(dir.path(), true).unwrap_err();
        assert!(error.to_string().contains("no regular file"), "{error}");
        assert_eq!(names(dir.path()), ["link"]);
    }

    #[test]
    fn a_bad_path_is_named_and_no_partial_file_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("missing/core");
        let error = dump(&missing, false).unwrap_err();
        assert!(error.to_string().contains("missing/core: No such file"), "{error}");
        let slash = dir.path().join("core/");
        let error = dump(&slash, true).unwrap_err();
        assert!(error.to_string().contains("core/"), "{error}");
        assert_eq!(names(dir.path()), [""; 0]);
    }

    #[test]
    fn a_full_disk_is_an_error() {
        let mut full = File::options().write(true).open("/dev/full").unwrap();
        let error = write_headers(&mut full, &ram(), &[registers(0)], &notes()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }
}
