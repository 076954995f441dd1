//! Names of kernel modules.

/// A kernel module, by the name that the kernel calls it and its file has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Module<'a>(&'a [u8]);

/// Longest name of a module: the kernel's `MODULE_NAME_LEN` on 64-bit machines, less its NUL.
pub const MAX_MODULE: usize = 55;
/// Room for any [`Module::path`].
const MAX_PATH: usize = 80;

impl<'a> Module<'a> {
    /// Letters, digits, `_` and `-`: all that module names have, and nothing that means more in a
    /// path.
    pub(crate) fn new(name: &'a [u8]) -> Option<Self> {
        let plain = |&byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        ((1..=MAX_MODULE).contains(&name.len()) && name.iter().all(plain)).then_some(Self(name))
    }

    /// The name, ending in a NUL as all that follow it.
    #[must_use]
    pub fn name(&self) -> [u8; MAX_PATH] {
        joined([b"", self.0, b""])
    }

    /// The path of its file, ending as [`Self::name`].
    #[must_use]
    pub fn path(&self) -> [u8; MAX_PATH] {
        joined([b"/modules/", self.0, b".ko"])
    }
}

fn joined(parts: [&[u8]; 3]) -> [u8; MAX_PATH] {
    let mut bytes = [0; MAX_PATH];
    for (slot, byte) in bytes.iter_mut().zip(parts.into_iter().flatten()) {
        *slot = *byte;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_has_a_file_and_both_names_end_in_a_nul() {
        let until_nul = |bytes: [u8; MAX_PATH]| {
            let end = bytes.iter().position(|&byte| byte == 0).unwrap();
            assert!(bytes[end..].iter().all(|&byte| byte == 0));
            bytes[..end].to_vec()
        };
        let longest = [b'm'; MAX_MODULE];
        for name in [&b"ttynull"[..], b"x", &longest] {
            let module = Module::new(name).unwrap();
            assert_eq!(until_nul(module.name()), name);
            assert_eq!(until_nul(module.path()), [b"/modules/", name, b".ko"].concat());
        }
        assert_eq!(Module::new(&[b'm'; MAX_MODULE + 1]), None);
        assert_eq!(Module::new(b""), None);
    }
}
