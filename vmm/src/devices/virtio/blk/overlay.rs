//! A throw-away layer over a disk that is only read: blocks that were written are in a temporary
//! file, which has no name and is gone with the machine.

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{PoisonError, RwLock, TryLockError};

use vm_memory::VolatileSlice;

use super::buffers::Buffers;
use super::host_file::{HostFile, Waiting};

/// Bytes that are copied before a part of them is written.
const BLOCK: u64 = 4096;

/// The layer.
#[derive(Debug)]
pub(super) struct Overlay {
    base: HostFile,
    /// Bytes of the base.
    len: u64,
    upper: HostFile,
    /// A bit for each block: it is in `upper`. Held by readers while they read, by a writer alone.
    written: RwLock<Vec<u64>>,
}

/// A part of an access that lies in one block.
struct Part {
    block: u64,
    /// Offset on the disk.
    at: u64,
    len: usize,
}

/// The parts of `len` bytes at `offset`.
fn parts(offset: u64, len: usize) -> impl Iterator<Item = Part> {
    let end = offset + len as u64;
    let mut at = offset;
    std::iter::from_fn(move || {
        let block = at / BLOCK;
        let next = ((block + 1) * BLOCK).min(end);
        let len = usize::try_from(next - at).expect("a block at most");
        let part = (len > 0).then_some(Part { block, at, len });
        at = next;
        part
    })
}

impl Overlay {
    /// A layer over `len` bytes of `base`, in the folder for temporary files (TMPDIR).
    pub(super) fn new(base: HostFile, len: u64) -> io::Result<Self> {
        let upper = tempfile::tempfile()?;
        upper.set_len(len)?;
        let words = usize::try_from(len.div_ceil(BLOCK * 64)).map_err(io::Error::other)?;
        let written = RwLock::new(vec![0; words]);
        Ok(Self { base, len, upper: HostFile::new(upper)?, written })
    }

    /// Reads within the disk.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn read(&self, offset: u64, to: &mut [u8], waiting: Waiting) -> io::Result<()> {
        let written = locked(waiting, || self.written.read(), || self.written.try_read())?;
        let mut rest = to;
        for Part { block, at, len } in parts(offset, rest.len()) {
            let (now, later) = rest.split_at_mut(len);
            let file = if has(&written, block) { &self.upper } else { &self.base };
            file.read(at, &Buffers::from(vec![VolatileSlice::from(now)]), waiting)?;
            rest = later;
        }
        Ok(())
    }

    /// Writes within the disk. A block is there when it is whole: an error leaves it as it was.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn write(&self, offset: u64, from: &[u8], waiting: Waiting) -> io::Result<()> {
        let mut written = locked(waiting, || self.written.write(), || self.written.try_write())?;
        let mut rest = from;
        for Part { block, at, len } in parts(offset, rest.len()) {
            let (now, later) = rest.split_at(len);
            let start = block * BLOCK;
            let whole = BLOCK.min(self.len - start);
            if len as u64 != whole && !has(&written, block) {
                let mut copy = vec![0; usize::try_from(whole).expect("a block at most")];
                let buffers = Buffers::from(vec![VolatileSlice::from(&mut copy[..])]);
                self.base.read(start, &buffers, waiting)?;
                self.upper.file().write_all_at(&copy, start)?;
            }
            self.upper.file().write_all_at(now, at)?;
            if let Some(word) = word(block).and_then(|word| written.get_mut(word)) {
                *word |= 1 << (block % 64);
            }
            rest = later;
        }
        Ok(())
    }
}

/// Takes a lock, for which an access that may not wait does not wait either.
fn locked<G>(
    waiting: Waiting,
    lock: impl FnOnce() -> Result<G, PoisonError<G>>,
    try_lock: impl FnOnce() -> Result<G, TryLockError<G>>,
) -> io::Result<G> {
    if waiting == Waiting::Allowed {
        return Ok(lock().unwrap_or_else(PoisonError::into_inner));
    }
    match try_lock() {
        Ok(guard) => Ok(guard),
        Err(TryLockError::Poisoned(error)) => Ok(error.into_inner()),
        Err(TryLockError::WouldBlock) => Err(io::ErrorKind::WouldBlock.into()),
    }
}

#[cfg(test)]
impl Overlay {
    /// The layer, of which each read of the disk below may wait.
    pub(super) fn without_nowait(self) -> Self {
        Self { base: self.base.without_nowait(), ..self }
    }
}

fn word(block: u64) -> Option<usize> {
    usize::try_from(block / 64).ok()
}

fn has(written: &[u64], block: u64) -> bool {
    let word = word(block).and_then(|word| written.get(word));
    word.is_some_and(|word| word >> (block % 64) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use proptest::prelude::*;

    use super::*;
    use Waiting::Allowed;

    /// Two blocks and a half, and a bit more.
    const LEN: u64 = 5 * 2048 + 512;

    fn base() -> (File, Vec<u8>) {
        let file = tempfile::tempfile().unwrap();
        let content: Vec<u8> = (0..LEN).map(|at| u8::try_from(at % 251).unwrap()).collect();
        file.write_all_at(&content, 0).unwrap();
        (file, content)
    }

    proptest! {
        /// As a plain array, whatever is written; and the base stays as it is.
        #[test]
        fn it_reads_as_it_was_written(writes in prop::collection::vec((0..21_u64, 1..12_u64, any::<u8>()), 0..12)) {
            let (file, content) = base();
            let mut model = content.clone();
            let overlay = Overlay::new(HostFile::new(file.try_clone().unwrap()).unwrap(), LEN).unwrap();
            for (sector, sectors, byte) in writes {
                let offset = sector * 512;
                let len = usize::try_from((sectors * 512).min(LEN - offset)).unwrap();
                overlay.write(offset, &vec![byte; len], Allowed).unwrap();
                model[usize::try_from(offset).unwrap()..][..len].fill(byte);
            }
            let mut found = vec![0; model.len()];
            overlay.read(0, &mut found, Allowed).unwrap();
            prop_assert!(found == model);
            file.read_exact_at(&mut found, 0).unwrap();
            prop_assert!(found == content);
        }
    }

    #[test]
    fn a_layer_without_room_is_an_error_and_the_disk_stays_as_it_was() {
        let (base, content) = base();
        let upper = File::options().read(true).write(true).open("/dev/full").unwrap();
        let [base, upper] = [base, upper].map(|file| HostFile::new(file).unwrap());
        let overlay = Overlay { base, len: LEN, upper, written: RwLock::new(vec![0; 1]) };
        for (offset, len) in [(0, 512), (0, 4096), (8192, 512)] {
            let error = overlay.write(offset, &vec![7; len], Allowed).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        }
        let mut found = vec![0; content.len()];
        overlay.read(0, &mut found, Allowed).unwrap();
        assert!(found == content);
    }
}
