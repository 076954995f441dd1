//! A snapshot's parts, to be changed and written again with checksums that are right
//! (vmm/src/snapshot/mod.rs).

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

use exoprobe_guest::Gva;
use exoprobe_guest::layout::KERNEL_IMAGE_BASE;
use serde_json::Value;

/// Bytes of the header.
const HEADER: usize = 64;
pub(crate) const PAGE: usize = 4096;
/// Bytes of memory that the checksum has together, unless they are zeros.
const PIECE: usize = 64 << 10;

fn is_zero(piece: &[u8]) -> bool {
    piece.iter().all(|byte| *byte == 0)
}

/// The parts of a whole snapshot.
pub(crate) struct Parts {
    header: Vec<u8>,
    pub(crate) meta: Value,
    /// All RAM, then the hidden region.
    pub(crate) memory: Vec<u8>,
}

impl Parts {
    pub(crate) fn read(path: &Path) -> Self {
        let bytes = std::fs::read(path).expect("the snapshot");
        let number = |at: usize| {
            let number = u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
            usize::try_from(number).expect("it is in the file")
        };
        let (meta_len, memory_at) = (number(16), number(24));
        let meta = serde_json::from_slice(&bytes[HEADER..HEADER + meta_len]).expect("JSON");
        Self { header: bytes[..HEADER].to_vec(), meta, memory: bytes[memory_at..].to_vec() }
    }

    /// Writes a file of them, with `damage` done to its header before its checksum is made.
    pub(crate) fn write(&self, path: &str, meta: &Value, damage: impl FnOnce(&mut [u8])) {
        let json = serde_json::to_vec(meta).expect("it was JSON");
        let memory_at = (HEADER + json.len()).next_multiple_of(PAGE);
        let mut header = self.header.clone();
        header[16..24].copy_from_slice(&(json.len() as u64).to_le_bytes());
        header[24..32].copy_from_slice(&(memory_at as u64).to_le_bytes());
        header[32..40].copy_from_slice(&(self.memory.len() as u64).to_le_bytes());
        header[40..44].copy_from_slice(&crc32fast::hash(&json).to_le_bytes());
        header[44..48].copy_from_slice(&self.memory_sum().to_le_bytes());
        damage(&mut header);
        let mut sum = crc32fast::Hasher::new();
        sum.update(&header[..12]);
        sum.update(&header[16..]);
        header[12..16].copy_from_slice(&sum.finalize().to_le_bytes());
        let mut file = File::create(path).expect("a file");
        let gap = vec![0; memory_at - HEADER - json.len()];
        for part in [&header, &json, &gap] {
            file.write_all(part).expect("room");
        }
        // Pieces of zeros are holes, as the service makes them.
        for (at, piece) in (memory_at..).step_by(PIECE).zip(self.memory.chunks(PIECE)) {
            if !is_zero(piece) {
                file.write_all_at(piece, at as u64).expect("room");
            }
        }
        file.set_len((memory_at + self.memory.len()) as u64).expect("room");
    }

    fn memory_sum(&self) -> u32 {
        let mut sum = crc32fast::Hasher::new();
        for (number, piece) in (0u64..).zip(self.memory.chunks(PIECE)) {
            if !is_zero(piece) {
                sum.update(&number.to_le_bytes());
                sum.update(piece);
            }
        }
        sum.finalize()
    }

    /// The bytes of the kernel's image at an address, in the tiny kernel: it has no KASLR.
    pub(crate) fn image(&mut self, at: Gva, len: usize) -> &mut [u8] {
        let at = usize::try_from(at.0 - KERNEL_IMAGE_BASE.0).expect("it is in RAM");
        &mut self.memory[at..at + len]
    }
}
