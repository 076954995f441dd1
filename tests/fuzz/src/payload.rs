//! A bzImage's payload, in each format.

use exoprobe_vmm::PayloadFormat;

/// Most bytes unpacked.
const MOST: u64 = 1 << 20;

pub(crate) fn run(data: &[u8]) {
    let Some(format) = PayloadFormat::of(data) else { return };
    if let Ok(unpacked) = format.unpack(data, MOST) {
        let size = data.last_chunk().map(|size| u32::from_le_bytes(*size));
        assert_eq!(u32::try_from(unpacked.len()).ok(), size, "as its end says");
        assert!(unpacked.len() as u64 <= MOST);
    }
}
