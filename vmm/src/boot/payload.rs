//! The kernel inside a bzImage: a packed ELF file (Documentation/arch/x86/boot.rst,
//! `payload_offset`).

use std::fmt;
use std::io::{self, Read};

use ruzstd::decoding::StreamingDecoder;

use exoprobe_guest::addr::to_usize;

/// Most memory of an xz or lzma decoder, in KiB: the kernel's build packs with dictionaries of up
/// to 128 MiB (scripts/xz_wrap.sh).
const LZMA_MEMORY_KIB: u32 = 192 << 10;
/// All formats but gzip, which has its own, are followed by their unpacked size
/// (scripts/Makefile.lib, `size_append`).
const SIZE_LEN: usize = 4;

/// A compression format of the kernel's build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// CONFIG_KERNEL_GZIP.
    Gzip,
    /// CONFIG_KERNEL_XZ.
    Xz,
    /// CONFIG_KERNEL_LZMA.
    Lzma,
    /// CONFIG_KERNEL_BZIP2.
    Bzip2,
    /// CONFIG_KERNEL_LZ4: the legacy frame.
    Lz4,
    /// CONFIG_KERNEL_ZSTD.
    Zstd,
}

/// First bytes of each format.
const MAGIC: [(Format, &[u8]); 6] = [
    (Format::Gzip, &[0x1f, 0x8b]),
    (Format::Xz, b"\xfd7zXZ\0"),
    (Format::Lzma, &[0x5d, 0, 0]),
    (Format::Bzip2, b"BZh"),
    (Format::Lz4, &[0x02, 0x21, 0x4c, 0x18]),
    (Format::Zstd, &[0x28, 0xb5, 0x2f, 0xfd]),
];

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gzip => "gzip",
            Self::Xz => "xz",
            Self::Lzma => "lzma",
            Self::Bzip2 => "bzip2",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        })
    }
}

/// The reason why a payload cannot be unpacked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PayloadError {
    /// The payload is not within the bzImage.
    #[error("its header has the payload end at byte {end} of {len}; get the bzImage anew")]
    Outside {
        /// End of the payload.
        end: u64,
        /// Bytes of the bzImage.
        len: u64,
    },
    /// Too short to hold a packed file and its size.
    #[error("the bzImage carries a payload of {0} bytes")]
    TooShort(usize),
    /// Unpacked, the payload is larger than the size that the bzImage's header gives the kernel.
    #[error("the payload has {size} bytes unpacked; the bzImage's header leaves it {most}")]
    TooLarge {
        /// Bytes unpacked, according to the payload's end.
        size: u64,
        /// Most bytes allowed.
        most: u64,
    },
    /// The decoder refused the payload.
    #[error("the payload ({format}) is corrupt: {reason}; get the bzImage anew")]
    Corrupt {
        /// Its format.
        format: Format,
        /// The decoder's message.
        reason: String,
    },
    /// The unpacked size is not the one at the payload's end.
    #[error("the payload ({format}) is corrupt: it does not unpack to {promised} bytes")]
    Size {
        /// Its format.
        format: Format,
        /// The size at its end.
        promised: u64,
    },
}

impl Format {
    /// Recognizes a payload by its first bytes. `None`: LZO, or unknown.
    #[must_use]
    pub fn of(payload: &[u8]) -> Option<Self> {
        MAGIC.iter().find(|(_, magic)| payload.starts_with(magic)).map(|(format, _)| *format)
    }

    /// Unpacks `payload` completely, to at most `most` bytes.
    ///
    /// # Errors
    /// [`PayloadError`]. Takes no more memory than `most` and the decoder's window.
    pub fn unpack(self, payload: &[u8], most: u64) -> Result<Vec<u8>, PayloadError> {
        let (packed, size) =
            payload.split_last_chunk::<SIZE_LEN>().ok_or(PayloadError::TooShort(payload.len()))?;
        let promised = u64::from(u32::from_le_bytes(*size));
        if promised > most {
            return Err(PayloadError::TooLarge { size: promised, most });
        }
        let unpacked = match self {
            Self::Gzip => read(flate2::read::GzDecoder::new(payload), promised),
            Self::Xz => {
                let xz = lzma_rust2::XzReader::new_mem_limit(packed, false, LZMA_MEMORY_KIB);
                read(xz, promised)
            }
            Self::Lzma => lzma_rust2::LzmaReader::new_mem_limit(packed, LZMA_MEMORY_KIB, None)
                .and_then(|lzma| read(lzma, promised)),
            Self::Bzip2 => read(bzip2::read::BzDecoder::new(packed), promised),
            Self::Lz4 => read(lz4_flex::frame::FrameDecoder::new(packed), promised),
            Self::Zstd => read_zstd(packed, promised),
        };
        let unpacked =
            unpacked.map_err(|e| PayloadError::Corrupt { format: self, reason: e.to_string() })?;
        if unpacked.len() as u64 == promised {
            Ok(unpacked)
        } else {
            Err(PayloadError::Size { format: self, promised })
        }
    }
}

/// Reads to the end, which also verifies checksums, and at most one byte more than `promised`.
fn read(decoder: impl Read, promised: u64) -> io::Result<Vec<u8>> {
    let mut unpacked = Vec::with_capacity(to_usize(promised) + 1);
    decoder.take(promised + 1).read_to_end(&mut unpacked)?;
    Ok(unpacked)
}

/// As [`read`]; the decoder leaves the comparison of checksums to its caller.
fn read_zstd(packed: &[u8], promised: u64) -> io::Result<Vec<u8>> {
    let mut zstd = StreamingDecoder::new(packed).map_err(io::Error::other)?;
    let unpacked = read(&mut zstd, promised)?;
    let stored = zstd.decoder.get_checksum_from_data();
    if stored.is_some() && stored != zstd.decoder.get_calculated_checksum() {
        return Err(io::Error::other("its check sum is not that of its data"));
    }
    Ok(unpacked)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::io::Write;

    /// `content` as the kernel's build packs it.
    pub(in crate::boot) fn pack(format: Format, content: &[u8]) -> Vec<u8> {
        let mut packed = match format {
            Format::Gzip => {
                let mut gzip = flate2::write::GzEncoder::new(Vec::new(), Default::default());
                gzip.write_all(content).unwrap();
                return gzip.finish().unwrap();
            }
            Format::Xz => {
                let options = lzma_rust2::XzOptions::with_preset(1);
                let mut xz = lzma_rust2::XzWriter::new(Vec::new(), options).unwrap();
                xz.write_all(content).unwrap();
                xz.finish().unwrap()
            }
            Format::Lzma => {
                // Of unknown size and with an end mark, as `lzma -9` does on standard input.
                let options = lzma_rust2::LzmaOptions::with_preset(1);
                let mut lzma =
                    lzma_rust2::LzmaWriter::new_use_header(Vec::new(), &options, None).unwrap();
                lzma.write_all(content).unwrap();
                lzma.finish().unwrap()
            }
            Format::Bzip2 => {
                let mut bzip2 = bzip2::write::BzEncoder::new(Vec::new(), Default::default());
                bzip2.write_all(content).unwrap();
                bzip2.finish().unwrap()
            }
            Format::Lz4 => {
                // The legacy frame by hand: a magic number, then blocks with their lengths.
                let mut lz4 = MAGIC[4].1.to_vec();
                for block in content.chunks(8 << 20) {
                    let block = lz4_flex::block::compress(block);
                    lz4.extend(u32::try_from(block.len()).unwrap().to_le_bytes());
                    lz4.extend(block);
                }
                lz4
            }
            Format::Zstd => ruzstd::encoding::compress_to_vec(
                content,
                ruzstd::encoding::CompressionLevel::Fastest,
            ),
        };
        packed.extend(u32::try_from(content.len()).unwrap().to_le_bytes());
        packed
    }

    /// Neither all alike nor without repetition.
    fn content() -> Vec<u8> {
        (0..20_000u32).flat_map(|n| (n * n / 4096).to_le_bytes()).collect()
    }

    fn formats() -> impl Iterator<Item = Format> {
        MAGIC.iter().map(|(format, _)| *format)
    }

    #[test]
    fn each_format_is_known_and_unpacked_whole() {
        let content = content();
        for format in formats() {
            let packed = pack(format, &content);
            assert!(packed.len() < content.len(), "{format}");
            assert_eq!(Format::of(&packed), Some(format));
            let unpacked = format.unpack(&packed, content.len() as u64);
            assert!(unpacked.as_ref() == Ok(&content), "{format}: {:?}", unpacked.err());
        }
        assert_eq!(Format::of(b"\x89LZO\0\r\n\x1a\n"), None);
        assert_eq!(Format::of(b""), None);
    }

    #[test]
    fn more_than_the_kernel_may_have_is_refused_before_it_is_unpacked() {
        let content = content();
        let most = content.len() as u64 - 1;
        for format in formats() {
            let refused = format.unpack(&pack(format, &content), most);
            let size = content.len() as u64;
            assert_eq!(refused, Err(PayloadError::TooLarge { size, most }), "{format}");
        }
    }

    #[test]
    fn a_size_that_is_not_so_is_found_out() {
        let content = content();
        for format in formats() {
            for wrong in [content.len() - 1, content.len() + 1, 0] {
                let mut packed = pack(format, &content);
                let end = packed.len() - 4;
                packed[end..].copy_from_slice(&u32::try_from(wrong).unwrap().to_le_bytes());
                let refused = format.unpack(&packed, 2 * content.len() as u64);
                assert!(refused.is_err(), "{format}: {wrong}");
            }
        }
    }

    #[test]
    fn cut_and_corrupt_payloads_are_errors() {
        let content = content();
        for format in formats() {
            let packed = pack(format, &content);
            let most = u64::from(u32::MAX);
            for keep in [0, 3, 4, 7, 12, 40, packed.len() / 2, packed.len() - 5] {
                // The size stays: what is cut is what it is of.
                let mut cut = packed[..keep].to_vec();
                cut.extend(u32::try_from(content.len()).unwrap().to_le_bytes());
                let unpacked = format.unpack(&cut, most);
                assert!(unpacked.is_err(), "{format}: {keep} of {}", packed.len());
            }
            assert_eq!(format.unpack(&packed[..3], most), Err(PayloadError::TooShort(3)));
            let mut wrong = packed.clone();
            let middle = wrong.len() / 2;
            wrong[middle..middle + 64].fill(0xa5);
            // lz4 has no check sum in the legacy frame.
            let same = format.unpack(&wrong, most).is_ok_and(|unpacked| unpacked == content);
            assert!(!same, "{format}");
        }
    }
}
