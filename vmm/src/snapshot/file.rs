//! The file: header and checksums.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use crc32fast::Hasher;

use super::error::{SnapshotError, VERSION};
use super::memory::{self, MemoryWriter};
use super::meta::SnapshotMeta;
use crate::new_file::NewFile;
use crate::progress::WriteProgress;
use crate::ram;
use exoprobe_guest::GuestRam;
use exoprobe_guest::addr::to_usize;
use exoprobe_guest::hidden::HiddenMemory;
use exoprobe_guest::layout::HIDDEN_SIZE;
use exoprobe_guest::memory::ram_ranges;
use exoprobe_guest::paging::PAGE_SIZE;

const MAGIC: &[u8; 8] = b"EXOPROBE";
pub(super) const HEADER_LEN: usize = 64;
/// Metadata of 16 vCPUs is below 2 MiB.
const META_MAX: u64 = 16 << 20;

pub(super) struct Header {
    pub(super) meta_len: u64,
    pub(super) memory_offset: u64,
    pub(super) memory_len: u64,
    pub(super) meta_crc: u32,
    pub(super) memory_crc: u32,
}

impl Header {
    pub(super) fn encode(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[0..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.meta_len.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.memory_offset.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.memory_len.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.meta_crc.to_le_bytes());
        bytes[44..48].copy_from_slice(&self.memory_crc.to_le_bytes());
        seal(&mut bytes);
        bytes
    }

    fn decode(path: &Path, bytes: &[u8; HEADER_LEN]) -> Result<Self, SnapshotError> {
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        if &bytes[0..8] != MAGIC {
            return Err(SnapshotError::NotASnapshot(path.to_owned()));
        }
        if u32_at(8) != VERSION {
            return Err(SnapshotError::Version { path: path.to_owned(), found: u32_at(8) });
        }
        if u32_at(12) != header_crc(bytes) {
            return Err(damaged(path, "header", "does not match its checksum"));
        }
        Ok(Self {
            meta_len: u64_at(16),
            memory_offset: u64_at(24),
            memory_len: u64_at(32),
            meta_crc: u32_at(40),
            memory_crc: u32_at(44),
        })
    }
}

/// Sets the checksum of a header.
pub(super) fn seal(bytes: &mut [u8; HEADER_LEN]) {
    let crc = header_crc(bytes);
    bytes[12..16].copy_from_slice(&crc.to_le_bytes());
}

fn header_crc(bytes: &[u8; HEADER_LEN]) -> u32 {
    let mut hasher = Hasher::new();
    hasher.update(&bytes[..12]);
    hasher.update(&bytes[16..]);
    hasher.finalize()
}

fn damaged(path: &Path, part: &'static str, what: &'static str) -> SnapshotError {
    SnapshotError::Damaged { path: path.to_owned(), part, what }
}

fn io_error(path: &Path) -> impl Fn(io::Error) -> SnapshotError {
    move |source| SnapshotError::Io { path: path.to_owned(), source }
}

/// Begins the file at `path` and writes all of it. The caller finishes it: no reader ever finds
/// half a snapshot.
///
/// # Errors
/// [`SnapshotError::Ended`] if `progress` was ended.
pub(crate) fn write(
    path: &Path,
    progress: &WriteProgress,
    meta: &SnapshotMeta,
    ram: &GuestRam,
    hidden: &HiddenMemory,
) -> Result<NewFile, SnapshotError> {
    let fail = io_error(path);
    let json = serde_json::to_vec(meta).map_err(|e| SnapshotError::Content(e.to_string()))?;
    // The file contains all of the guest's memory, so only its owner may read it.
    let mut new = NewFile::create(path, 0o600)?;
    let file = new.file();
    let memory_offset = (HEADER_LEN as u64 + json.len() as u64).next_multiple_of(PAGE_SIZE);
    progress.begin(ram.size() + HIDDEN_SIZE);
    let mut memory = MemoryWriter::new(file, memory_offset);
    for_each_chunk(ram, hidden, |chunk| {
        memory.write(chunk).map_err(&fail)?;
        Ok(progress.advance(chunk.len() as u64)?)
    })?;
    let memory_crc = memory.finish().map_err(&fail)?;
    let header = Header {
        meta_len: json.len() as u64,
        memory_offset,
        memory_len: ram.size() + HIDDEN_SIZE,
        meta_crc: crc32fast::hash(&json),
        memory_crc,
    };
    file.write_all(&header.encode()).map_err(&fail)?;
    file.write_all(&json).map_err(&fail)?;
    Ok(new)
}

/// Passes RAM and the hidden region to `take`, in order, until it fails.
fn for_each_chunk(
    ram: &GuestRam,
    hidden: &HiddenMemory,
    mut take: impl FnMut(&[u8]) -> Result<(), SnapshotError>,
) -> Result<(), SnapshotError> {
    ram::for_each_chunk(ram, |_, chunk| take(chunk))?;
    let mut region = vec![0; to_usize(HIDDEN_SIZE)];
    hidden.read(0, &mut region);
    take(&region)
}

/// Checks the whole file. Returns the metadata, RAM mapped from it, and the hidden region.
pub(crate) fn open(path: &Path) -> Result<(SnapshotMeta, GuestRam, Vec<u8>), SnapshotError> {
    let fail = io_error(path);
    let mut file = File::open(path).map_err(&fail)?;
    let mut bytes = [0; HEADER_LEN];
    file.read_exact(&mut bytes).map_err(|e| match e.kind() {
        io::ErrorKind::UnexpectedEof => SnapshotError::NotASnapshot(path.to_owned()),
        _ => fail(e),
    })?;
    let header = Header::decode(path, &bytes)?;
    let meta = read_meta(path, &mut file, &header)?;
    // A checksum is no signature: nothing below trusts the numbers beyond these limits.
    meta.config.validate().map_err(|e| SnapshotError::Content(e.to_string()))?;
    let ranges = ram_ranges(meta.config.memory_mib);
    let file_len = file.metadata().map_err(&fail)?.len();
    if header.memory_len != (meta.config.memory_mib << 20) + HIDDEN_SIZE
        || header.memory_offset.checked_add(header.memory_len) != Some(file_len)
    {
        return Err(damaged(path, "memory", "has not the length its header says"));
    }
    let hidden = check_memory(path, &file, &header)?;
    let ram = ram::from_file(&ranges, file, header.memory_offset)?;
    Ok((meta, ram, hidden))
}

fn read_meta(path: &Path, file: &mut File, header: &Header) -> Result<SnapshotMeta, SnapshotError> {
    if header.meta_len > META_MAX {
        return Err(damaged(path, "metadata", "is too long"));
    }
    let mut json = Vec::new();
    file.take(header.meta_len).read_to_end(&mut json).map_err(io_error(path))?;
    if json.len() as u64 != header.meta_len || crc32fast::hash(&json) != header.meta_crc {
        return Err(damaged(path, "metadata", "does not match its checksum"));
    }
    serde_json::from_slice(&json).map_err(|e| SnapshotError::Content(e.to_string()))
}

/// Reads memory for its checksum. Returns its tail, the hidden region.
fn check_memory(path: &Path, file: &File, header: &Header) -> Result<Vec<u8>, SnapshotError> {
    let mut hidden = vec![0; to_usize(HIDDEN_SIZE)];
    let ram_len = header.memory_len - HIDDEN_SIZE;
    let sum = memory::read(file, header.memory_offset, header.memory_len, |offset, bytes| {
        let of_ram = to_usize(ram_len.saturating_sub(offset)).min(bytes.len());
        let at = to_usize(offset.saturating_sub(ram_len));
        let bytes = &bytes[of_ram..];
        hidden[at..at + bytes.len()].copy_from_slice(bytes);
    });
    if sum.map_err(io_error(path))? != header.memory_crc {
        return Err(damaged(path, "memory", "does not match its checksum"));
    }
    Ok(hidden)
}
