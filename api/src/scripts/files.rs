//! Files of the guest, for `cat()`. They are made from the kernel's memory: none is read within the
//! guest.

use exoprobe_guest::Gva;
use exoprobe_introspect::SymbolTable;
use exoprobe_probes::KernelMemory;

/// The only file that is served.
const LOADAVG: &str = "/proc/loadavg";
/// Bits of a load's fraction (`FSHIFT`).
const FRACTION_BITS: u32 = 11;
/// Half of a hundredth, which `/proc/loadavg` adds: `FIXED_1 / 200`.
const ROUNDING: u64 = (1 << FRACTION_BITS) / 200;

/// The guest's files that scripts read, made from its memory.
#[derive(Default)]
pub(super) struct GuestFiles {
    memory: Option<KernelMemory>,
    /// Address of the kernel's `avenrun`.
    loads: Option<u64>,
}

/// The reason why a file is not served.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum FileError {
    /// Any other file.
    #[error("of the guest's files only {LOADAVG} is served")]
    NotServed,
    /// The kernel has not begun, or has no such symbol.
    #[error("the kernel's loads cannot be read")]
    Unreadable,
}

impl GuestFiles {
    pub(super) fn of(memory: Option<KernelMemory>, symbols: Option<&SymbolTable>) -> Self {
        let loads = symbols.and_then(|symbols| symbols.address_of("avenrun"));
        Self { memory, loads: loads.map(|address| address.0) }
    }

    /// The three loads of `/proc/loadavg`, as a line.
    ///
    /// # Errors
    /// [`FileError`].
    pub(super) fn read(&self, path: &str) -> Result<Vec<u8>, FileError> {
        if path != LOADAVG {
            return Err(FileError::NotServed);
        }
        let source = self.memory.as_ref().zip(self.loads);
        let (memory, at) = source.ok_or(FileError::Unreadable)?;
        let mut bytes = [0; 24];
        memory.read(Gva(at), &mut bytes).map_err(|_| FileError::Unreadable)?;
        let (words, _) = bytes.as_chunks::<8>();
        let loads: Vec<String> =
            words.iter().map(|word| shown(u64::from_le_bytes(*word))).collect();
        Ok(format!("{}\n", loads.join(" ")).into_bytes())
    }
}

/// A load as `/proc/loadavg` shows it.
fn shown(load: u64) -> String {
    let load = load.saturating_add(ROUNDING);
    let fraction = load & ((1 << FRACTION_BITS) - 1);
    format!("{}.{:02}", load >> FRACTION_BITS, (fraction * 100) >> FRACTION_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_are_shown_as_the_kernel_shows_them() {
        assert_eq!(shown(0), "0.00");
        assert_eq!(shown(1 << 11), "1.00");
        assert_eq!(shown((3 << 11) + (1 << 10)), "3.50");
        assert_eq!(shown(2037), "0.99");
        assert_eq!(shown(2038), "1.00");
    }

    #[test]
    fn other_files_are_refused_by_name() {
        let files = GuestFiles::of(None, None);
        let error = files.read("/etc/passwd").unwrap_err();
        assert_eq!(error.to_string(), "of the guest's files only /proc/loadavg is served");
        assert_eq!(files.read(LOADAVG), Err(FileError::Unreadable));
    }
}
