//! Memory in the file: pieces, of which those of zeros are holes.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crc32fast::Hasher;
use rustix::fs::SeekFrom;
use rustix::io::Errno;

use exoprobe_guest::addr::to_usize;
use exoprobe_guest::layout::HIDDEN_SIZE;

use crate::ram::CHUNK;

/// Bytes of a piece: RAM and the hidden region are whole pieces, and so is a chunk.
pub(super) const PIECE: usize = 64 << 10;
/// Bytes that are read at once: they stay in a CPU's cache until they are in the guest's memory.
const READ: usize = 4 * PIECE;
static ZEROS: [u8; PIECE] = [0; PIECE];
const _: () = assert!(CHUNK.is_multiple_of(PIECE) && HIDDEN_SIZE.is_multiple_of(PIECE as u64));

/// The checksum of memory. It covers each piece that is not all zeros, after its number: holes cost
/// no time, and a piece that is lost or added changes it.
#[derive(Default)]
pub(super) struct Sum(Hasher);

impl Sum {
    /// Adds the piece at an offset of memory. Returns true if it is not of zeros.
    fn add(&mut self, offset: u64, piece: &[u8]) -> bool {
        let is_data = piece != &ZEROS[..piece.len()];
        if is_data {
            self.0.update(&(offset / PIECE as u64).to_le_bytes());
            self.0.update(piece);
        }
        is_data
    }

    pub(super) fn finish(self) -> u32 {
        self.0.finalize()
    }
}

/// Writes memory to a file, in order.
pub(super) struct MemoryWriter<'a> {
    file: &'a File,
    /// Where it begins in the file.
    start: u64,
    /// Bytes so far.
    len: u64,
    sum: Sum,
}

impl<'a> MemoryWriter<'a> {
    pub(super) fn new(file: &'a File, start: u64) -> Self {
        Self { file, start, len: 0, sum: Sum::default() }
    }

    /// Writes the next bytes: whole pieces.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        debug_assert!(bytes.len().is_multiple_of(PIECE));
        for piece in bytes.chunks(PIECE) {
            if self.sum.add(self.len, piece) {
                self.file.write_all_at(piece, self.start + self.len)?;
            }
            self.len += piece.len() as u64;
        }
        Ok(())
    }

    /// Gives the file its whole length. Returns the checksum.
    pub(super) fn finish(self) -> io::Result<u32> {
        self.file.set_len(self.start + self.len)?;
        Ok(self.sum.finish())
    }
}

/// Reads `len` bytes of memory at `start` of a file, but for its holes. Passes them to `take`, with
/// their offsets in memory, in order. Returns the checksum.
pub(super) fn read(
    file: &File,
    start: u64,
    len: u64,
    mut take: impl FnMut(u64, &[u8]),
) -> io::Result<u32> {
    let (mut sum, mut buffer, mut offset) = (Sum::default(), vec![0; READ], 0);
    while let Some(data) = next_data(file, start + offset)? {
        let piece = (data - start) / PIECE as u64 * PIECE as u64;
        offset = offset.max(piece);
        if offset >= len {
            break;
        }
        let bytes = &mut buffer[..to_usize((len - offset).min(READ as u64))];
        file.read_exact_at(bytes, start + offset)?;
        for (at, piece) in (offset..).step_by(PIECE).zip(bytes.chunks(PIECE)) {
            sum.add(at, piece);
        }
        take(offset, bytes);
        offset += bytes.len() as u64;
    }
    Ok(sum.finish())
}

/// The first offset from `at` on that is in no hole of a file; `None` if there is none.
fn next_data(file: &File, at: u64) -> io::Result<Option<u64>> {
    match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(data) => Ok(Some(data.max(at))),
        Err(Errno::NXIO) => Ok(None),
        // A file system that does not report holes.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(Some(at)),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    const START: u64 = 0x3000;
    const LEN: usize = 40 * PIECE;

    /// Memory of zeros with some bytes.
    fn memory(bytes: &[(usize, u8)]) -> Vec<u8> {
        let mut memory = vec![0; LEN];
        bytes.iter().for_each(|(at, byte)| memory[*at] = *byte);
        memory
    }

    fn written(memory: &[u8]) -> (File, u32) {
        let file = tempfile::tempfile().unwrap();
        let mut writer = MemoryWriter::new(&file, START);
        memory.chunks(CHUNK).for_each(|chunk| writer.write(chunk).unwrap());
        let sum = writer.finish().unwrap();
        assert_eq!(file.metadata().unwrap().len(), START + LEN as u64);
        (file, sum)
    }

    fn read_back(file: &File) -> (Vec<u8>, u32) {
        let mut memory = vec![0; LEN];
        let sum = read(file, START, LEN as u64, |offset, bytes| {
            memory[to_usize(offset)..][..bytes.len()].copy_from_slice(bytes);
        });
        (memory, sum.unwrap())
    }

    const SOME: [(usize, u8); 4] = [(PIECE - 1, 1), (2 * PIECE, 2), (33 * PIECE, 3), (LEN - 1, 4)];

    #[test]
    fn memory_comes_back_and_zeros_take_no_room() {
        for bytes in [&[][..], &SOME[..1], &SOME[2..3], &SOME] {
            let memory = memory(bytes);
            let (file, sum) = written(&memory);
            assert_eq!(read_back(&file), (memory, sum), "{bytes:?}");
            let used = file.metadata().unwrap().blocks() * 512;
            assert!(used <= (bytes.len() * PIECE) as u64 + (1 << 16), "{used} of {bytes:?}");
        }
    }

    #[test]
    fn a_copy_with_zeros_in_place_of_holes_has_the_same_checksum() {
        let memory = memory(&SOME);
        let (_, sum) = written(&memory);
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&memory, START).unwrap();
        assert_eq!(read_back(&file), (memory, sum));
    }

    #[test]
    fn a_piece_that_changed_was_lost_or_was_added_changes_the_checksum() {
        let (file, sum) = written(&memory(&SOME));
        for (at, byte) in [(7, 7), (20 * PIECE, 1), (2 * PIECE, 0), (LEN - 1, 0)] {
            let mut before = [0];
            file.read_exact_at(&mut before, START + at as u64).unwrap();
            file.write_all_at(&[byte], START + at as u64).unwrap();
            assert_ne!(read_back(&file).1, sum, "{at}");
            file.write_all_at(&before, START + at as u64).unwrap();
            assert_eq!(read_back(&file).1, sum);
        }
        // The same bytes elsewhere.
        let moved = memory(&[(PIECE - 1, 1), (3 * PIECE, 2), (33 * PIECE, 3), (LEN - 1, 4)]);
        assert_ne!(written(&moved).1, sum);
    }

    #[test]
    fn a_file_that_ends_early_is_an_error() {
        let (file, _) = written(&memory(&SOME));
        file.set_len(START + 33 * PIECE as u64 + 8).unwrap();
        let error = read(&file, START, LEN as u64, |_, _| ()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
