//! The data of a request: parts of the guest's RAM, which the host's kernel reads and writes
//! itself, without a copy in between.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use libc::{iovec, off_t};
use virtio_queue::desc::split::Descriptor;
use vm_memory::{GuestMemoryBackend as _, GuestMemoryError, GuestMemoryMmap, VolatileSlice};

/// Most parts of one system call (IOV_MAX of Linux).
const PARTS_MAX: usize = 1024;
/// Bytes that are moved at once where there is a copy.
const COPY_MAX: usize = 1 << 16;

/// Buffers of a request, in order. The driver may change their content at any time.
pub(super) struct Buffers<'a> {
    slices: Vec<VolatileSlice<'a>>,
    len: usize,
}

impl<'a> From<Vec<VolatileSlice<'a>>> for Buffers<'a> {
    fn from(slices: Vec<VolatileSlice<'a>>) -> Self {
        let len = slices.iter().map(VolatileSlice::len).sum();
        Self { slices, len }
    }
}

impl<'a> Buffers<'a> {
    /// The buffers of these descriptors.
    ///
    /// # Errors
    /// When one is not in RAM.
    pub(super) fn new(
        memory: &'a GuestMemoryMmap,
        descriptors: impl Iterator<Item = Descriptor>,
    ) -> Result<Self, GuestMemoryError> {
        let slices = |buffer: Descriptor| memory.get_slices(buffer.addr(), buffer.len() as usize);
        let slices: Result<Vec<_>, _> = descriptors.flat_map(slices).collect();
        slices.map(Self::from)
    }

    /// Bytes of all.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Drops bytes at the beginning, all if there are no more.
    pub(super) fn skip(self, mut count: usize) -> Self {
        let rest = self.slices.into_iter().filter_map(|slice| {
            let part = count.min(slice.len());
            count -= part;
            slice.offset(part).ok().filter(|rest| !rest.is_empty())
        });
        rest.collect::<Vec<_>>().into()
    }

    /// Keeps bytes at the beginning, all if there are no more.
    pub(super) fn take(self, mut count: usize) -> Self {
        let kept = self.slices.into_iter().filter_map(|slice| {
            let part = count.min(slice.len());
            count -= part;
            slice.subslice(0, part).ok().filter(|kept| !kept.is_empty())
        });
        kept.collect::<Vec<_>>().into()
    }

    /// Fills all from a place of a file, with these flags (preadv2).
    ///
    /// # Errors
    /// The system's; also when the file ends before.
    pub(super) fn read_from(&self, file: &File, offset: u64, flags: libc::c_int) -> io::Result<()> {
        let guards: Vec<_> = self.slices.iter().map(VolatileSlice::ptr_guard_mut).collect();
        let part = |guard: &vm_memory::volatile_memory::PtrGuardMut| iovec {
            iov_base: guard.as_ptr().cast(),
            iov_len: guard.len(),
        };
        let mut parts: Vec<_> = guards.iter().map(part).collect();
        let fd = file.as_raw_fd();
        transfer(&mut parts, offset, io::ErrorKind::UnexpectedEof, |parts, count, offset| {
            // SAFETY: each part is memory of the guest's, mapped and writable for as long as
            // `guards` lives, of which no reference of Rust's exists; there are `count` of them.
            unsafe { libc::preadv2(fd, parts.as_ptr(), count, offset, flags) }
        })
    }

    /// Writes all to a place of a file.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn write_to(&self, file: &File, offset: u64) -> io::Result<()> {
        let guards: Vec<_> = self.slices.iter().map(VolatileSlice::ptr_guard).collect();
        let part = |guard: &vm_memory::volatile_memory::PtrGuard| iovec {
            iov_base: guard.as_ptr().cast_mut().cast(),
            iov_len: guard.len(),
        };
        let mut parts: Vec<_> = guards.iter().map(part).collect();
        let fd = file.as_raw_fd();
        transfer(&mut parts, offset, io::ErrorKind::WriteZero, |parts, count, offset| {
            // SAFETY: as above; the kernel only reads them.
            unsafe { libc::pwritev(fd, parts.as_ptr(), count, offset) }
        })
    }

    /// Fills all by way of a copy: `read` is given each part's place among all bytes.
    ///
    /// # Errors
    /// Those of `read`.
    pub(super) fn fill(
        &self,
        mut read: impl FnMut(u64, &mut [u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        self.copies(|at, slice, copy| {
            read(at, copy)?;
            slice.copy_from(copy);
            Ok(())
        })
    }

    /// Hands all out by way of a copy, as [`Self::fill`].
    ///
    /// # Errors
    /// Those of `write`.
    pub(super) fn hand_out(
        &self,
        mut write: impl FnMut(u64, &[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        self.copies(|at, slice, copy| {
            slice.copy_to(copy);
            write(at, copy)
        })
    }

    /// Calls `each` with parts that fit into a copy, and room for that.
    fn copies(
        &self,
        mut each: impl FnMut(u64, &VolatileSlice<'_>, &mut [u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut copy = vec![0; self.len.min(COPY_MAX)];
        let mut at = 0;
        for slice in &self.slices {
            let mut done = 0;
            while done < slice.len() {
                let len = copy.len().min(slice.len() - done);
                let part = slice.subslice(done, len).map_err(io::Error::other)?;
                each(at, &part, &mut copy[..len])?;
                (at, done) = (at + len as u64, done + len);
            }
        }
        Ok(())
    }
}

/// Repeats a system call until all parts are moved; one that moves nothing is an error.
fn transfer(
    parts: &mut [iovec],
    mut offset: u64,
    nothing: io::ErrorKind,
    call: impl Fn(&[iovec], libc::c_int, off_t) -> isize,
) -> io::Result<()> {
    let mut rest = parts;
    while !rest.is_empty() {
        let some = &rest[..rest.len().min(PARTS_MAX)];
        let count = libc::c_int::try_from(some.len()).expect("1,024 at most");
        let at = off_t::try_from(offset).map_err(io::Error::other)?;
        match usize::try_from(call(some, count, at)) {
            Ok(0) => return Err(nothing.into()),
            Ok(moved) => {
                offset += moved as u64;
                rest = advance(rest, moved);
            }
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    }
    Ok(())
}

/// The parts without the bytes that were moved.
fn advance(parts: &mut [iovec], mut moved: usize) -> &mut [iovec] {
    let mut whole = 0;
    while let Some(part) = parts.get(whole).filter(|part| part.iov_len <= moved) {
        moved -= part.iov_len;
        whole += 1;
    }
    let rest = &mut parts[whole..];
    if let Some(first) = rest.first_mut() {
        first.iov_base = first.iov_base.wrapping_byte_add(moved);
        first.iov_len -= moved;
    }
    rest
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use proptest::prelude::*;

    use super::*;

    /// Bytes of the file.
    const LEN: usize = 5000;

    /// Memory in pieces of these lengths.
    fn pieces(lens: &[usize]) -> Vec<Vec<u8>> {
        lens.iter().map(|len| vec![0; *len]).collect()
    }

    fn buffers(pieces: &mut [Vec<u8>]) -> Buffers<'_> {
        let slices: Vec<_> = pieces.iter_mut().map(|p| VolatileSlice::from(&mut p[..])).collect();
        slices.into()
    }

    fn file() -> (File, Vec<u8>) {
        let file = tempfile::tempfile().unwrap();
        let content: Vec<u8> = (0..LEN).map(|at| u8::try_from(at % 251).unwrap()).collect();
        file.write_all_at(&content, 0).unwrap();
        (file, content)
    }

    #[test]
    fn a_file_that_ends_before_the_buffers_is_an_error() {
        let (file, content) = file();
        let mut memory = pieces(&[3000, 3000]);
        let error = buffers(&mut memory).read_from(&file, 0, 0).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(memory.concat()[..LEN], content, "what is there was read");
        assert!(buffers(&mut memory).read_from(&file, u64::MAX, 0).is_err(), "no such offset");
    }

    #[test]
    fn a_call_that_moves_a_part_is_repeated() {
        let mut memory = pieces(&[10, 20, 30]);
        let mut parts: Vec<iovec> = memory
            .iter_mut()
            .map(|p| iovec { iov_base: p.as_mut_ptr().cast(), iov_len: p.len() })
            .collect();
        let start = parts[2].iov_base;
        let calls = std::cell::RefCell::new(Vec::new());
        let call = |parts: &[iovec], count: libc::c_int, offset: off_t| {
            calls.borrow_mut().push((count, parts[0].iov_len, offset));
            if calls.borrow().len() == 3 {
                assert_eq!(parts[0].iov_base, start.wrapping_byte_add(5));
            }
            [25, 10, 25][calls.borrow().len() - 1]
        };
        transfer(&mut parts, 100, io::ErrorKind::WriteZero, call).unwrap();
        assert_eq!(*calls.borrow(), [(3, 10, 100), (2, 5, 125), (1, 25, 135)]);
    }

    proptest! {
        /// As a copy of arrays, however the buffers are cut.
        #[test]
        fn buffers_are_moved_in_their_order(
            lens in prop::collection::vec(1..900_usize, 1..6),
            offset in 0..400_usize,
            (skipped, taken) in (0..5000_usize, 0..5000_usize),
        ) {
            let (file, content) = file();
            let mut memory = pieces(&lens);
            let total: usize = lens.iter().sum();
            let mut expected = vec![0; total];
            let start = skipped.min(total);
            let len = taken.min(total - start);
            expected[start..][..len].copy_from_slice(&content[offset..][..len]);
            let cut = buffers(&mut memory).skip(skipped).take(taken);
            prop_assert_eq!(cut.len(), len);
            cut.read_from(&file, offset as u64, 0).unwrap();
            cut.write_to(&file, LEN as u64).unwrap();
            prop_assert!(memory.concat() == expected);
            let mut copy = vec![0; len];
            file.read_exact_at(&mut copy, LEN as u64).unwrap();
            prop_assert!(copy == expected[start..][..len]);

            let mut again = pieces(&lens);
            let cut = buffers(&mut again).skip(skipped).take(taken);
            cut.fill(|at, part| file.read_exact_at(part, LEN as u64 + at)).unwrap();
            let mut handed: Vec<u8> = Vec::new();
            cut.hand_out(|at, part| {
                assert_eq!(at, handed.len() as u64);
                handed.extend(part);
                Ok(())
            }).unwrap();
            prop_assert!(again.concat() == expected && handed == copy);
        }
    }
}
