//! bzImage kernels: unpacked by their own code in the guest, or by the VMM.
//!
//! A guest whose kernel code KVM emulates takes a minute to unpack a distribution's kernel, or
//! cannot: zstd's decoder uses BMI2 if the host's CPU has it. In this case the VMM unpacks. On
//! hardware the guest does, as on any machine: this also moves the kernel in physical memory
//! (KASLR), and announces 5-level page tables to it.

use std::fs::File;
use std::io::{Cursor, Read, Seek, SeekFrom};
use std::path::Path;

use linux_loader::loader::bootparam::setup_header;
use linux_loader::loader::{BzImage, KernelLoader};
use vm_memory::{ByteValued, GuestAddress};

use super::kernel::{ImageError, LoadedKernel, check_end, load_elf, load_error, low_ram_end};
use super::payload::{Format, PayloadError};
use super::relocs::{Relocations, random_slide};
use crate::layout::HIGH_RAM_START;
use exoprobe_guest::Gpa;
use exoprobe_guest::GuestRam;
use exoprobe_guest::addr::to_usize;

/// Offset of the 64-bit entry point in a bzImage's protected-mode code (boot.rst).
const ENTRY_64: u64 = 0x200;
/// `xloadflags` bit 0: the kernel has the 64-bit entry point.
const XLF_KERNEL_64: u16 = 1;
/// `loadflags` bit 1: the kernel was moved at random.
const KASLR_FLAG: u8 = 1 << 1;
const HEADER_OFFSET: u64 = 0x1f1;
const SECTOR: u64 = 512;

/// Which side unpacks a bzImage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unpacker {
    /// The kernel's own code.
    Guest,
    /// The VMM.
    Vmm {
        /// Moves a kernel that can be moved to a random virtual address.
        kaslr: bool,
    },
}

/// Loads the bzImage in `file`.
pub(super) fn load(
    ram: &GuestRam,
    path: &Path,
    file: &mut File,
    unpacker: Unpacker,
) -> Result<LoadedKernel, ImageError> {
    let header = checked_header(ram, path, file)?;
    if let Unpacker::Vmm { kaslr } = unpacker {
        let payload = read_payload(path, file, &header)?;
        match Format::of(&payload) {
            Some(format) => return load_payload(ram, path, header, (format, &payload), kaslr),
            None => tracing::warn!(
                "{}: exoprobe cannot unpack the format of its payload; the guest unpacks it, slowly",
                path.display()
            ),
        }
    }
    load_packed(ram, path, file)
}

/// Loads it at 1 MiB. From there it unpacks itself to an address that it chooses.
fn load_packed(ram: &GuestRam, path: &Path, file: &mut File) -> Result<LoadedKernel, ImageError> {
    let at = GuestAddress(HIGH_RAM_START.0);
    let loaded = BzImage::load(ram.as_vm_memory(), None, file, Some(at))
        .map_err(|e| load_error(ram, path, &e))?;
    check_end(ram, path, &loaded)?;
    let header = loaded.setup_header.unwrap_or_default();
    Ok(LoadedKernel {
        entry: Gpa(loaded.kernel_load.0 + ENTRY_64),
        end: Gpa(loaded.kernel_end.max(unpacked_end(&header))),
        header: Some(header),
    })
}

/// Loads the ELF file in `payload`, unpacked, and moves it if that is requested.
fn load_payload(
    ram: &GuestRam,
    path: &Path,
    mut header: setup_header,
    (format, payload): (Format, &[u8]),
    kaslr: bool,
) -> Result<LoadedKernel, ImageError> {
    // The kernel needs as much while it unpacks itself, and that much RAM exists.
    let most = u64::from(header.init_size);
    let unpacked = format
        .unpack(payload, most)
        .map_err(|source| ImageError::Payload { path: path.to_owned(), source })?;
    let mut kernel = load_elf(ram, path, &mut Cursor::new(&unpacked), &unpacked)?;
    header.loadflags &= !KASLR_FLAG;
    if kaslr && slide(ram, path, &unpacked, &kernel, &header)? {
        header.loadflags |= KASLR_FLAG;
    }
    kernel.end = kernel.end.max(Gpa(unpacked_end(&header)));
    kernel.header = Some(header);
    Ok(kernel)
}

/// Moves `kernel` at random if it can be moved. Returns true if it can.
fn slide(
    ram: &GuestRam,
    path: &Path,
    unpacked: &[u8],
    kernel: &LoadedKernel,
    header: &setup_header,
) -> Result<bool, ImageError> {
    let range = Gpa(header.pref_address)..kernel.end;
    let Some(table) = Relocations::find(unpacked).filter(|table| table.are_within(&range)) else {
        return Ok(false);
    };
    let slide = random_slide(header)
        .map_err(|source| ImageError::Read { path: "/dev/urandom".into(), source })?;
    table.apply(ram, slide).map_err(|e| load_error(ram, path, &e))?;
    Ok(true)
}

/// Reads the setup header and checks the conditions of both ways of loading.
fn checked_header(
    ram: &GuestRam,
    path: &Path,
    file: &mut File,
) -> Result<setup_header, ImageError> {
    let mut header = setup_header::default();
    read_at(path, file, HEADER_OFFSET, header.as_mut_slice())?;
    if header.xloadflags & XLF_KERNEL_64 == 0 {
        let found = "a bzImage without the 64-bit entry point".to_owned();
        return Err(ImageError::NotX86_64 { path: path.to_owned(), found });
    }
    let (promised, len) = (image_len(&header), file.metadata().map_or(0, |m| m.len()));
    if len < promised {
        return Err(load_error(ram, path, &format!("it has {len} of {promised} bytes")));
    }
    let end = unpacked_end(&header);
    if end > low_ram_end(ram) {
        return Err(load_error(ram, path, &format!("unpacked, the kernel ends at {end:#x}")));
    }
    Ok(header)
}

/// Reads the payload that `header` refers to. The file has the length that the header says.
fn read_payload(
    path: &Path,
    file: &mut File,
    header: &setup_header,
) -> Result<Vec<u8>, ImageError> {
    let (offset, len) = (u64::from(header.payload_offset), u64::from(header.payload_length));
    let start = code_offset(header) + offset;
    if start + len > image_len(header) {
        let source = PayloadError::Outside { end: start + len, len: image_len(header) };
        return Err(ImageError::Payload { path: path.to_owned(), source });
    }
    let mut payload = vec![0; to_usize(len)];
    read_at(path, file, start, &mut payload)?;
    Ok(payload)
}

fn read_at(path: &Path, file: &mut File, at: u64, data: &mut [u8]) -> Result<(), ImageError> {
    file.seek(SeekFrom::Start(at))
        .and_then(|_| file.read_exact(data))
        .map_err(|source| ImageError::Read { path: path.to_owned(), source })
}

/// Offset of the protected-mode code: after the boot sector and the set-up sectors (boot.rst).
fn code_offset(header: &setup_header) -> u64 {
    let sectors = match header.setup_sects {
        0 => 4,
        sectors => u64::from(sectors),
    };
    (sectors + 1) * SECTOR
}

/// Length of a bzImage according to its header: `syssize` counts paragraphs of 16 bytes.
fn image_len(header: &setup_header) -> u64 {
    code_offset(header) + u64::from(header.syssize) * 16
}

/// End of the memory that the kernel needs to unpack itself and to start.
fn unpacked_end(header: &setup_header) -> u64 {
    header.pref_address.saturating_add(u64::from(header.init_size))
}

#[cfg(test)]
mod tests {
    use super::super::image::load_kernel;
    use super::super::image::tests::{elf, file};
    use super::super::payload::tests::pack;
    use super::*;
    use exoprobe_guest::memory::ram_ranges;

    const UNPACKED: Unpacker = Unpacker::Vmm { kaslr: true };

    fn load(content: &[u8], unpacker: Unpacker) -> (GuestRam, Result<LoadedKernel, ImageError>) {
        let ram = GuestRam::anonymous(&ram_ranges(32)).unwrap();
        let loaded = load_kernel(&ram, file(content).path(), unpacker);
        (ram, loaded)
    }

    /// A bzImage with `payload`, which may take `init_size` bytes from 16 MiB.
    fn image(payload: &[u8], init_size: u32) -> Vec<u8> {
        let code = 0x200 + payload.len().next_multiple_of(16);
        let mut bz = vec![0u8; 0xa00 + code];
        bz[0x1f1] = 4;
        bz[0x1f4..0x1f8].copy_from_slice(&u32::try_from(code / 16).unwrap().to_le_bytes());
        bz[0x202..0x206].copy_from_slice(b"HdrS");
        bz[0x206..0x208].copy_from_slice(&0x20fu16.to_le_bytes());
        bz[0x211] = 1;
        bz[0x214..0x218].copy_from_slice(&0x10_0000u32.to_le_bytes());
        bz[0x230..0x234].copy_from_slice(&0x20_0000u32.to_le_bytes());
        bz[0x236..0x238].copy_from_slice(&XLF_KERNEL_64.to_le_bytes());
        bz[0x248..0x24c].copy_from_slice(&0x200u32.to_le_bytes());
        bz[0x24c..0x250].copy_from_slice(&u32::try_from(payload.len()).unwrap().to_le_bytes());
        bz[0x258..0x260].copy_from_slice(&0x100_0000u64.to_le_bytes());
        bz[0x260..0x264].copy_from_slice(&init_size.to_le_bytes());
        bz[0xc00..0xc00 + payload.len()].copy_from_slice(payload);
        bz
    }

    /// An ELF file without section headers, and one place that is moved.
    fn kernel() -> Vec<u8> {
        let mut kernel = elf(62, 0x100_0000, 200, 4096);
        kernel.resize(200, 0);
        kernel[40..48].copy_from_slice(&200u64.to_le_bytes());
        kernel[160..168].copy_from_slice(&0xffff_ffff_8100_0000u64.to_le_bytes());
        for word in [0u32, 0x8100_00a0, 0] {
            kernel.extend(word.to_le_bytes());
        }
        kernel
    }

    #[test]
    fn a_bzimage_that_does_not_fit_once_unpacked_is_refused() {
        for unpacker in [Unpacker::Guest, UNPACKED] {
            let large = load(&image(b"?", 17 << 20), unpacker).1;
            assert!(matches!(large, Err(ImageError::Load { .. })), "16 + 17 MiB in 32");
            let whole = image(b"?", 8 << 20);
            // Without a known format the guest unpacks it.
            assert_eq!(load(&whole, unpacker).1.unwrap().entry, Gpa(0x10_0200));
            let cut = load(&whole[..whole.len() - 1], unpacker).1;
            assert!(matches!(cut, Err(ImageError::Load { .. })), "one byte short");
        }
    }

    #[test]
    fn an_unpacked_kernel_begins_at_its_own_entry_wherever_it_was_moved() {
        let image = image(&pack(Format::Gzip, &kernel()), 8 << 20);
        for (kaslr, flag) in [(true, KASLR_FLAG), (false, 0)] {
            let (ram, loaded) = load(&image, Unpacker::Vmm { kaslr });
            let loaded = loaded.unwrap();
            assert_eq!((loaded.entry, loaded.end), (Gpa(0x100_0000), Gpa(0x180_0000)));
            assert_eq!(loaded.header.unwrap().loadflags, 1 | flag);
            let moved =
                ram.word(Gpa(0x100_00a0)).unwrap().load(std::sync::atomic::Ordering::Relaxed);
            let slide = moved - 0xffff_ffff_8100_0000;
            assert!(slide.is_multiple_of(0x20_0000) && slide < 1 << 30, "{slide:#x}");
            assert!(kaslr || slide == 0);
        }
    }

    #[test]
    fn a_payload_that_cannot_be_unpacked_says_so() {
        let error = |image: &[u8]| match load(image, UNPACKED).1 {
            Err(ImageError::Payload { source, .. }) => source,
            other => panic!("{:?}", other.map(|kernel| kernel.entry)),
        };
        let packed = pack(Format::Zstd, &kernel());
        assert!(matches!(error(&image(&packed, 100)), PayloadError::TooLarge { .. }));
        let cut = [&packed[..30], &packed[packed.len() - 4..]].concat();
        assert!(matches!(error(&image(&cut, 1 << 20)), PayloadError::Corrupt { .. }));
        let mut outside = image(&packed, 1 << 20);
        outside[0x24c..0x250].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(matches!(error(&outside), PayloadError::Outside { .. }));
        let text = pack(Format::Gzip, &[b'x'; 200]);
        let refused = load(&image(&text, 1 << 20), UNPACKED).1;
        assert!(matches!(refused, Err(ImageError::NotX86_64 { .. })), "no kernel inside");
    }
}
