//! A piece of the guest's image, copied.

use exoprobe_guest::Gva;

use crate::kernel_image::KernelImage;
use crate::view::GuestView;
use crate::virt::VirtualMemory;

/// Most bytes of an image that are looked through.
const IMAGE_MAX: u64 = 256 << 20;
/// Read at a time: what cannot be read costs no more than this.
const PIECE: usize = 64 << 10;

/// Bytes that follow one another in the guest.
pub(super) struct Window {
    pub(super) start: Gva,
    pub(super) bytes: Vec<u8>,
}

impl Window {
    /// All of an image that can be read, in windows.
    pub(super) fn all<V: GuestView + ?Sized>(
        memory: &VirtualMemory<'_, V>,
        image: &KernelImage,
    ) -> Vec<Self> {
        let mut windows: Vec<Self> = Vec::new();
        let (mut total, mut piece) = (0, vec![0; PIECE]);
        for range in image.ranges() {
            let mut at = range.start;
            while at != range.end() && total < IMAGE_MAX {
                let left = range.end().0 - at.0;
                let len = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
                let piece = &mut piece[..len];
                if memory.read(at, piece).is_ok() {
                    match windows.last_mut() {
                        Some(last) if last.end() == at => last.bytes.extend_from_slice(piece),
                        _ => windows.push(Self { start: at, bytes: piece.to_vec() }),
                    }
                }
                total += len as u64;
                at = at.wrapping_add(len as u64);
            }
        }
        windows
    }

    pub(super) fn address(&self, offset: usize) -> Gva {
        self.start.wrapping_add(offset as u64)
    }

    fn end(&self) -> Gva {
        self.address(self.bytes.len())
    }

    /// The offset of an address in it, or just after its end.
    pub(super) fn offset(&self, at: Gva) -> Option<usize> {
        let offset = usize::try_from(at.0.checked_sub(self.start.0)?).ok()?;
        (offset <= self.bytes.len()).then_some(offset)
    }

    /// The offset moved up to an aligned address.
    pub(super) fn aligned(&self, offset: usize, align: u64) -> usize {
        let at = self.address(offset);
        let up = at.0.next_multiple_of(align) - at.0;
        offset.saturating_add(usize::try_from(up).unwrap_or(usize::MAX))
    }

    pub(super) fn u32(&self, offset: usize) -> Option<u32> {
        Some(u32::from_le_bytes(*self.bytes.get(offset..)?.first_chunk()?))
    }

    pub(super) fn u64(&self, offset: usize) -> Option<u64> {
        Some(u64::from_le_bytes(*self.bytes.get(offset..)?.first_chunk()?))
    }
}
