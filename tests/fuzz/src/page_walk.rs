//! Reads through arbitrary page tables: the input is the guest's whole memory, after a head that
//! says what is read.

use exoprobe_guest::paging::PagingMode;
use exoprobe_guest::{Gpa, Gva};
use exoprobe_introspect::{MemoryImage, VirtualMemory};

pub(crate) fn run(data: &[u8]) {
    let Some((head, memory)) = data.split_first_chunk::<20>() else { return };
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| head[at + index]));
    let levels = if head[16] & 1 == 0 { 4 } else { 5 };
    let len = usize::from(u16::from_le_bytes([head[18], head[19]]));
    let mode = PagingMode { cr3: word(0), levels };
    let image = MemoryImage::new(Gpa(0), memory.to_vec(), mode);
    let virt = VirtualMemory::with_mode(&image, mode);
    let gva = Gva(word(8));
    let mut buf = vec![0; len];
    let read = virt.read(gva, &mut buf);
    let string = virt.read_cstr(gva, len);
    if read.is_ok() {
        let nul = buf.iter().position(|byte| *byte == 0).unwrap_or(len);
        assert_eq!(string.expect("all of it can be read").bytes, &buf[..nul]);
    }
}
