//! DWARF sections as gimli reads them. A reader counts reads and checks the depth of the stack, so
//! that a file made for it can waste neither time nor memory, nor end the process: addr2line calls
//! itself for each nested inlined call.

use std::borrow::Cow;
use std::fmt;
use std::ops::{Add, AddAssign, Sub};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use gimli::{Error, LittleEndian, ReaderOffset, ReaderOffsetId};

/// Stack that one call may take, in bytes. Threads have 2 MiB.
const MAX_STACK: usize = 512 << 10;
/// Cost of cutting a piece off: it may be kept.
const PIECE: usize = 16;

/// Reads that a call may still do, and where its stack began. Only the thread that has the context
/// uses it.
#[derive(Debug, Default)]
pub(super) struct Work {
    left: AtomicU64,
    stack: AtomicUsize,
}

impl Work {
    /// Begins a call that may do `most` reads.
    pub(super) fn begin(&self, most: u64) {
        self.left.store(most, Ordering::Relaxed);
        self.stack.store(stack_address(), Ordering::Relaxed);
    }

    /// Reads that are left of those.
    pub(super) fn left(&self) -> u64 {
        self.left.load(Ordering::Relaxed)
    }

    fn spend(&self, reads: usize) -> gimli::Result<()> {
        let deep = stack_address().abs_diff(self.stack.load(Ordering::Relaxed)) > MAX_STACK;
        let left = if deep { None } else { self.left().checked_sub(reads as u64) };
        self.left.store(left.unwrap_or(0), Ordering::Relaxed);
        // No other reader of DWARF's tables returns this error.
        left.map(|_| ()).ok_or(Error::TooManyIterations)
    }
}

/// About where the stack ends now.
fn stack_address() -> usize {
    let marker = 0_u8;
    std::ptr::from_ref(std::hint::black_box(&marker)).addr()
}

/// A section's contents.
pub(super) struct Section {
    bytes: Vec<u8>,
    work: Arc<Work>,
}

impl fmt::Debug for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.bytes.len())
    }
}

/// Where in a section gimli reads.
#[derive(Clone, Debug)]
pub(super) struct Reader {
    section: Arc<Section>,
    start: usize,
    end: usize,
}

impl Reader {
    pub(super) fn new(bytes: Vec<u8>, work: Arc<Work>) -> Self {
        let end = bytes.len();
        Self { section: Arc::new(Section { bytes, work }), start: 0, end }
    }

    fn bytes(&self) -> &[u8] {
        self.section.bytes.get(self.start..self.end).unwrap_or_default()
    }

    /// The first `len` bytes, which are read then.
    fn take(&mut self, len: usize) -> gimli::Result<&[u8]> {
        let start = self.start;
        let end = start.checked_add(len).filter(|end| *end <= self.end);
        let end = end.ok_or_else(|| Error::UnexpectedEof(self.id()))?;
        self.start = end;
        Ok(self.section.bytes.get(start..end).unwrap_or_default())
    }

    fn id(&self) -> ReaderOffsetId {
        ReaderOffsetId(self.section.bytes.as_ptr().addr().wrapping_add(self.start) as u64)
    }
}

impl gimli::Reader for Reader {
    type Endian = LittleEndian;
    type Offset = Offset;

    fn endian(&self) -> LittleEndian {
        LittleEndian
    }

    fn len(&self) -> Offset {
        Offset::of(self.bytes().len())
    }

    fn empty(&mut self) {
        self.end = self.start;
    }

    fn truncate(&mut self, len: Offset) -> gimli::Result<()> {
        let end = self.start.checked_add(len.bytes()).filter(|end| *end <= self.end);
        self.end = end.ok_or_else(|| Error::UnexpectedEof(self.id()))?;
        Ok(())
    }

    fn offset_from(&self, base: &Self) -> Offset {
        Offset::of(self.start.saturating_sub(base.start))
    }

    fn offset_id(&self) -> ReaderOffsetId {
        self.id()
    }

    fn lookup_offset_id(&self, id: ReaderOffsetId) -> Option<Offset> {
        let offset = id.0.checked_sub(self.id().0)?;
        (offset <= self.bytes().len() as u64).then_some(Offset(offset))
    }

    fn find(&self, byte: u8) -> gimli::Result<Offset> {
        let found = memchr::memchr(byte, self.bytes());
        self.section.work.spend(found.unwrap_or(self.bytes().len()))?;
        found.map(Offset::of).ok_or_else(|| Error::UnexpectedEof(self.id()))
    }

    fn skip(&mut self, len: Offset) -> gimli::Result<()> {
        self.section.work.spend(1)?;
        self.take(len.bytes()).map(|_| ())
    }

    fn split(&mut self, len: Offset) -> gimli::Result<Self> {
        self.section.work.spend(PIECE)?;
        let mut piece = self.clone();
        self.take(len.bytes())?;
        piece.end = self.start;
        Ok(piece)
    }

    fn to_slice(&self) -> gimli::Result<Cow<'_, [u8]>> {
        self.section.work.spend(PIECE.saturating_add(self.bytes().len()))?;
        Ok(Cow::Borrowed(self.bytes()))
    }

    fn to_string(&self) -> gimli::Result<Cow<'_, str>> {
        self.section.work.spend(PIECE.saturating_add(self.bytes().len()))?;
        str::from_utf8(self.bytes()).map(Cow::Borrowed).map_err(|_| Error::BadUtf8)
    }

    fn to_string_lossy(&self) -> gimli::Result<Cow<'_, str>> {
        self.section.work.spend(PIECE.saturating_add(self.bytes().len()))?;
        Ok(String::from_utf8_lossy(self.bytes()))
    }

    fn read_slice(&mut self, buf: &mut [u8]) -> gimli::Result<()> {
        self.section.work.spend(1)?;
        buf.copy_from_slice(self.take(buf.len())?);
        Ok(())
    }
}

/// An offset that gimli may add to: it adds up lengths that the file gives, and does not look
/// whether the sum overflows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Offset(u64);

impl Offset {
    fn of(bytes: usize) -> Self {
        Self(bytes as u64)
    }

    fn bytes(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl Add for Offset {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Offset {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Offset {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl ReaderOffset for Offset {
    fn from_u8(offset: u8) -> Self {
        Self(offset.into())
    }

    fn from_u16(offset: u16) -> Self {
        Self(offset.into())
    }

    fn from_i16(offset: i16) -> Self {
        Self(i64::from(offset).cast_unsigned())
    }

    fn from_u32(offset: u32) -> Self {
        Self(offset.into())
    }

    fn from_u64(offset: u64) -> gimli::Result<Self> {
        Ok(Self(offset))
    }

    fn into_u64(self) -> u64 {
        self.0
    }

    fn wrapping_add(self, other: Self) -> Self {
        Self(self.0.wrapping_add(other.0))
    }

    fn checked_sub(self, other: Self) -> Option<Self> {
        self.0.checked_sub(other.0).map(Self)
    }
}
