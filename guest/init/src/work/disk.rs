//! Blocks of a disk, whose content is their own numbers. Each is moved by a request of its own,
//! past the page cache.

use exoprobe_guest_init::command::Io;

use super::{Failure, Name, Tally, call, named};
use crate::sys::{self, Block, Errno, Fd};

const O_RDONLY: usize = 0;
const O_WRONLY: usize = 1;
const O_DIRECT: usize = 0o40000;
/// `EIO`, of a disk that ends before the last block.
const SHORT: Errno = Errno(5);

fn open(path: &[u8], flags: usize) -> Result<Fd, Failure> {
    let mut name = [0; size_of::<Name>()];
    call("openat", sys::open(named(path, &mut name)?, flags))
}

/// Counts the blocks that have their own number in each word; another one does not end the work.
pub(super) fn read(path: &[u8], count: u64, tally: &Tally) -> Result<(), Failure> {
    let disk = open(path, O_RDONLY | O_DIRECT)?;
    let mut block = call("mmap", Block::new(sys::PAGE))?;
    let result = (0..count).try_for_each(|number| {
        if call("read", sys::read(disk, block.bytes()))? != sys::PAGE {
            return Err(Failure::Call("read", SHORT));
        }
        if block.words().iter().all(|word| *word == number) {
            tally.add(1);
        }
        Ok(())
    });
    let closed = call("close", sys::close(disk));
    result.and(closed)
}

/// Counts the blocks that are written.
pub(super) fn write(path: &[u8], count: u64, tally: &Tally) -> Result<(), Failure> {
    let disk = open(path, O_WRONLY | O_DIRECT)?;
    let mut block = call("mmap", Block::new(sys::PAGE))?;
    let result = (0..count).try_for_each(|number| {
        block.words().fill(number);
        if call("write", sys::write(disk, block.bytes()))? != sys::PAGE {
            return Err(Failure::Call("write", SHORT));
        }
        tally.add(1);
        Ok(())
    });
    let flushed = call("fsync", sys::fsync(disk));
    let closed = call("close", sys::close(disk));
    result.and(flushed).and(closed)
}

/// Counts the requests, each of `kib` KiB, which follow each other on the disk. Their content is
/// not looked at: it is for comparisons of what a request costs.
pub(super) fn requests(
    io: Io,
    path: &[u8],
    kib: usize,
    count: u64,
    tally: &Tally,
) -> Result<(), Failure> {
    let mode = if io == Io::Read { O_RDONLY } else { O_WRONLY };
    let disk = open(path, mode | O_DIRECT)?;
    let len = kib << 10;
    let mut block = call("mmap", Block::new(len))?;
    // All pages are there before the first request.
    block.words().fill(1);
    let result = tally.repeat(count, || {
        let moved = match io {
            Io::Read => call("read", sys::read(disk, block.bytes()))?,
            Io::Write | Io::Sync => call("write", sys::write(disk, block.bytes()))?,
        };
        if moved != len {
            return Err(Failure::Call("diskio", SHORT));
        }
        if io == Io::Sync { call("fsync", sys::fsync(disk)) } else { Ok(()) }
    });
    let closed = call("close", sys::close(disk));
    result.and(closed)
}
