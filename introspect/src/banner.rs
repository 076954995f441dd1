//! The kernel's banner: the text `linux_banner`, "Linux version 6.1.0-56-cloud-amd64 (...) #1 SMP
//! ...".

use std::fmt;

use crate::symbols::SymbolTable;
use crate::view::GuestView;
use crate::virt::{VirtualMemory, VirtualReadError};

/// The banner's symbol (init/version-timestamp.c; init/version.c before Linux 6.1).
const SYMBOL: &str = "linux_banner";
const PREFIX: &str = "Linux version ";
/// Longest text that is read, in bytes: several times the length of distributions' banners.
const TEXT_MAX: usize = 1024;

/// Number of a kernel's version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// 6 of 6.1.192.
    pub major: u32,
    /// 1 of 6.1.192.
    pub minor: u32,
    /// 192 of 6.1.192; 0 where the text has none. Distributions write what they like here: Debian's
    /// 6.1.192 calls itself 6.1.0.
    pub patch: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// A kernel's banner and the version in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Banner {
    /// The whole text, without its line end; bytes that are not UTF-8 are replaced.
    pub text: String,
    /// The number in it.
    pub version: Version,
}

/// Why there is no banner.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BannerError {
    /// The kernel has no such symbol.
    #[error("the kernel has no symbol for {SYMBOL}")]
    Symbol,
    /// It cannot be read.
    #[error("cannot read the kernel's banner: {0}")]
    Read(#[from] VirtualReadError),
    /// The text is not a banner: the symbols may be another kernel's.
    #[error("the kernel's banner is {0:?}, which does not begin \"{PREFIX}X.Y\"")]
    Format(String),
}

impl Banner {
    /// Reads the banner from a kernel's memory. `symbols` must have the guest's slide.
    ///
    /// # Errors
    /// [`BannerError`].
    pub fn read<V: GuestView + ?Sized>(
        memory: &VirtualMemory<'_, V>,
        symbols: &SymbolTable,
    ) -> Result<Self, BannerError> {
        let at = symbols.address_of(SYMBOL).ok_or(BannerError::Symbol)?;
        let found = memory.read_cstr(at, TEXT_MAX)?;
        let text = String::from_utf8_lossy(&found.bytes).trim_end().to_owned();
        match version(&text) {
            Some(version) => Ok(Self { text, version }),
            None => Err(BannerError::Format(text.chars().take(PREFIX.len() * 2).collect())),
        }
    }
}

/// The number in a banner.
fn version(text: &str) -> Option<Version> {
    let mut rest = text.strip_prefix(PREFIX)?;
    let mut number = || -> Option<u32> {
        let len = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (digits, after) = rest.split_at(len);
        rest = after.strip_prefix('.').unwrap_or("");
        digits.parse().ok()
    };
    Some(Version { major: number()?, minor: number()?, patch: number().unwrap_or(0) })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::image::sample::{KERNEL, MODE, image, mapped};

    const AT: usize = 0x2ff8;

    fn read(content: &[u8], map: &str) -> Result<Banner, BannerError> {
        let mut bytes = mapped(0x4000, &[KERNEL]);
        bytes[AT..AT + content.len()].copy_from_slice(content);
        let image = image(bytes);
        let text = format!("{KERNEL:x} T _stext\n{:x} T _etext\n{map}", KERNEL + 0x100);
        let symbols = SymbolTable::from_system_map(&text).unwrap();
        Banner::read(&VirtualMemory::with_mode(&image, MODE), &symbols)
    }

    fn at(place: u64) -> String {
        format!("{:x} D linux_banner\n", KERNEL + place)
    }

    #[test]
    fn a_banner_is_read_to_its_end_with_its_number() {
        let text = "Linux version 6.1.0-56-cloud-amd64 (a@b) #1 SMP Debian 6.1.192-2";
        let banner = read(format!("{text}\n\0more").as_bytes(), &at(AT as u64)).unwrap();
        assert_eq!(banner.text, text);
        assert_eq!(banner.version, Version { major: 6, minor: 1, patch: 0 });
        assert_eq!(banner.version.to_string(), "6.1.0");
    }

    #[test]
    fn numbers_come_in_several_forms_and_are_in_order() {
        let of = |text: &str| version(&format!("{PREFIX}{text}"));
        let number = |major, minor, patch| Some(Version { major, minor, patch });
        assert_eq!(of("4.19.285 (gcc)"), number(4, 19, 285));
        assert_eq!(of("6.12.0-rc1+ (gcc)"), number(6, 12, 0));
        assert_eq!(of("6.12"), number(6, 12, 0));
        assert_eq!(of("6.12+ (gcc)"), number(6, 12, 0));
        for wrong in ["", "6", "6.", "x.1", "-1.2", "99999999999.1", "6-1.2"] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
        assert!(of("5.9.1") < of("5.12") && of("5.12") < of("6.3.0"));
    }

    #[test]
    fn what_is_no_banner_is_told() {
        assert_eq!(read(b"x", ""), Err(BannerError::Symbol));
        assert!(matches!(read(b"x", &at(1 << 30)), Err(BannerError::Read(_))));
        let Err(BannerError::Format(text)) = read(&[0xff; 0x400], &at(AT as u64)) else { panic!() };
        assert!(text.len() < 200, "it is cut short: {text}");
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(content in prop::collection::vec(any::<u8>(), 0..200)) {
            let text = [PREFIX.as_bytes(), &content].concat();
            let _ = read(&text, &at(AT as u64));
        }
    }
}
