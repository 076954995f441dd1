//! Files of the kernel: what is written to them, and numbers in them.

use super::{Failure, Name, Outcome, Tally, call, named};
use crate::sys::{self, Errno};
use exoprobe_guest_init::command::number_after;
use exoprobe_guest_init::line::MAX_LINE;

const O_WRONLY_APPEND: usize = 0o2001;
/// `ENODATA`: the word is not in the file.
const NO_DATA: Errno = Errno(61);

/// Mounts a file system.
pub(crate) fn mount(kind: &[u8], target: &[u8]) -> Outcome {
    let (mut a, mut b) = ([0; size_of::<Name>()], [0; size_of::<Name>()]);
    let mut mount = || call("mount", sys::mount(named(kind, &mut a)?, named(target, &mut b)?));
    Outcome::of_one(mount())
}

/// Appends a line to a file, in one write.
pub(crate) fn put(path: &[u8], line: &[u8]) -> Outcome {
    let mut name = [0; size_of::<Name>()];
    let mut text = [b'\n'; MAX_LINE + 1];
    for (slot, byte) in text.iter_mut().zip(line) {
        *slot = *byte;
    }
    let mut write = || {
        let file = call("openat", sys::open(named(path, &mut name)?, O_WRONLY_APPEND))?;
        let bytes = text.get(..=line.len()).unwrap_or_default();
        let written = call("write", sys::write_all(file, bytes));
        call("close", sys::close(file)).and(written)
    };
    Outcome::of_one(write())
}

/// Writes 1 and 0 to a file, so many times.
pub(crate) fn toggle(path: &[u8], times: u64) -> Result<(), Failure> {
    let mut name = [0; size_of::<Name>()];
    let path = named(path, &mut name)?;
    (0..times).try_for_each(|_| {
        [b"1", b"0"].into_iter().try_for_each(|text| {
            let file = call("openat", sys::open(path, O_WRONLY_APPEND))?;
            let written = call("write", sys::write_all(file, text));
            call("close", sys::close(file)).and(written)
        })
    })
}

/// Counts the words of a file that differ from the one before, of so many.
pub(super) fn words(path: &[u8], count: u64, tally: &Tally) -> Result<(), Failure> {
    let (mut name, mut last) = ([0; size_of::<Name>()], [0; 8]);
    let file = call("openat", sys::open(named(path, &mut name)?, 0))?;
    let result = (0..count).try_for_each(|_| {
        let mut word = [0; 8];
        if call("read", sys::read(file, &mut word))? == word.len() && word != last {
            tally.add(1);
        }
        last = word;
        Ok(())
    });
    result.and(call("close", sys::close(file)))
}

/// The number that follows a word in the first page of a file.
pub(crate) fn number(path: &[u8], word: &[u8]) -> Outcome {
    let (mut name, mut page) = ([0; size_of::<Name>()], [0; sys::PAGE]);
    let mut read = || {
        let file = call("openat", sys::open(named(path, &mut name)?, 0))?;
        let read = call("read", sys::read(file, &mut page));
        call("close", sys::close(file))?;
        let text = page.get(..read?).unwrap_or_default();
        number_after(text, word).ok_or(Failure::Call("number", NO_DATA))
    };
    Outcome::of(read())
}
