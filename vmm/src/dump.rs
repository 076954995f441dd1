//! The guest's RAM and registers as an ELF core (ET_CORE), for crash and drgn.
//!
//! | part | content |
//! |---|---|
//! | PT_NOTE | NT_PRSTATUS of each vCPU, in order; `VMCOREINFO`, where it is known |
//! | PT_LOAD | a range of RAM: `p_paddr` is its guest-physical address, `p_vaddr` that in the direct map |
//!
//! Pages of zeros are holes of the file.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use object::elf::{
    ELFCLASS64, ELFDATA2LSB, ELFMAG, EM_X86_64, ET_CORE, EV_CURRENT, FileFlags, FileHeader64,
    Ident, NT_PRSTATUS, NoteType, OsAbi, PF_R, PF_W, PF_X, PT_LOAD, PT_NOTE, ProgramFlags,
    ProgramHeader64, ProgramType, SymbolSection,
};
use object::endian::{LittleEndian as LE, U16, U32, U64};
use object::pod::bytes_of;

use crate::addr::Gpa;
use crate::memory::{GuestRam, OutsideMemory, RamRange, to_usize};
use crate::paging::PAGE_SIZE;
use crate::vcpu::Registers;

const CHUNK: usize = 1 << 20;
/// struct elf_prstatus of x86-64 (include/linux/elfcore.h): the task's number, and the registers.
const PRSTATUS_LEN: usize = 336;
const PRSTATUS_PID: usize = 32;
const PRSTATUS_REGS: usize = 112;

/// What a dump has beside memory and registers.
#[derive(Clone, Debug, Default)]
pub struct DumpNotes {
    /// Number of the task that each vCPU runs, in order; drgn takes a vCPU's registers for those of this task.
    pub pids: Vec<u32>,
    /// The kernel's notes for dumps, lines `KEY=VALUE`.
    pub vmcoreinfo: Option<String>,
    /// Where the kernel maps all RAM (PAGE_OFFSET); `None` where it is not known.
    pub direct_map: Option<u64>,
    /// Bytes that the dump has in place of those in memory: the guest's own, where probes have theirs.
    pub original: Vec<(Gpa, u8)>,
}

/// A dump that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dump {
    /// Length of the file, holes included.
    pub bytes: u64,
    /// How long the guest's vCPUs stood still for it.
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
    /// The file cannot be written.
    #[error("dump {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the host said.
        source: io::Error,
    },
}

/// Writes beside `path` and renames, so that no reader ever finds half a dump there; gives the file's length.
pub(crate) fn write(
    path: &Path,
    force: bool,
    ram: &GuestRam,
    registers: &[Registers],
    notes: &DumpNotes,
) -> Result<u64, DumpError> {
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::AlreadyExists => DumpError::Exists(path.to_owned()),
        _ => DumpError::Io { path: path.to_owned(), source },
    };
    if !force && path.symlink_metadata().is_ok() {
        return Err(DumpError::Exists(path.to_owned()));
    }
    let mut partial = path.as_os_str().to_owned();
    partial.push(format!(".{}.partial", std::process::id()));
    let partial = PathBuf::from(partial);
    // It holds all of the guest's memory: for its owner's eyes only.
    let mut options = File::options();
    let file = options.write(true).create_new(true).mode(0o600).open(&partial);
    let mut file = file.map_err(|source| DumpError::Io { path: partial.clone(), source })?;
    let written = write_all(&mut file, ram, registers, notes);
    let named = written.and_then(|len| {
        // A link, unlike a renaming, leaves a file that came meanwhile.
        if force { std::fs::rename(&partial, path) } else { std::fs::hard_link(&partial, path) }?;
        Ok(len)
    });
    if !(force && named.is_ok()) {
        drop(std::fs::remove_file(&partial));
    }
    named.map_err(failed)
}

fn write_all(
    file: &mut File,
    ram: &GuestRam,
    registers: &[Registers],
    notes: &DumpNotes,
) -> io::Result<u64> {
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
    let mut start = memory;
    for range in ranges {
        write_range(file, ram, range, start, &notes.original)?;
        start += range.len;
    }
    Ok(at)
}

fn write_range(
    file: &mut File,
    ram: &GuestRam,
    range: RamRange,
    start: u64,
    original: &[(Gpa, u8)],
) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK];
    for at in (0..range.len).step_by(CHUNK) {
        let chunk = &mut buffer[..to_usize((range.len - at).min(CHUNK as u64))];
        let gpa = Gpa(range.start.0 + at);
        ram.read(gpa, chunk).map_err(|outside: OutsideMemory| io::Error::other(outside))?;
        for (place, byte) in original {
            let index = usize::try_from(place.0.wrapping_sub(gpa.0)).ok();
            if let Some(there) = index.and_then(|index| chunk.get_mut(index)) {
                *there = *byte;
            }
        }
        for (page, bytes) in (0u64..).zip(chunk.chunks(to_usize(PAGE_SIZE))) {
            if bytes.iter().any(|byte| *byte != 0) {
                file.seek(SeekFrom::Start(start + at + page * PAGE_SIZE))?;
                file.write_all(bytes)?;
            }
        }
        if at > 0 && at % (1 << 30) == 0 {
            tracing::info!(written_mib = at >> 20, of_mib = range.len >> 20, "writing a dump");
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
    for (vcpu, registers) in registers.iter().enumerate() {
        let pid = notes.pids.get(vcpu).copied().unwrap_or_default();
        note(&mut bytes, b"CORE\0", NT_PRSTATUS, &prstatus(pid, registers));
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

/// In the order of struct user_regs_struct (arch/x86/include/asm/user_64.h).
fn prstatus(pid: u32, registers: &Registers) -> [u8; PRSTATUS_LEN] {
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
    bytes[PRSTATUS_PID..PRSTATUS_PID + 4].copy_from_slice(&pid.to_le_bytes());
    for (place, word) in bytes[PRSTATUS_REGS..].chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}
