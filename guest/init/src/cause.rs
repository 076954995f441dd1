//! Why a child's work ended early, as a number in memory that it shares with its parent.

use core::fmt;

/// Why a child's work ended early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// A system call failed with this error number, which is not 0.
    Errno(u16),
    /// A process ended by this signal, or by none (0), where another one was due.
    Signal(u8),
}

/// Bit that marks a signal, as opposed to an error number.
const SIGNAL: u64 = 1 << 16;

impl Cause {
    /// As a number that is not 0.
    #[must_use]
    pub fn stored(self) -> u64 {
        match self {
            Self::Errno(errno) => u64::from(errno),
            Self::Signal(signal) => SIGNAL | u64::from(signal),
        }
    }

    /// Reads such a number; `None` where nothing was stored.
    #[must_use]
    pub fn from_stored(number: u64) -> Option<Self> {
        let [low, high, ..] = number.to_le_bytes();
        match number & SIGNAL {
            _ if number == 0 => None,
            0 => Some(Self::Errno(u16::from_le_bytes([low, high]))),
            _ => Some(Self::Signal(low)),
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Errno(errno) => write!(f, "errno {errno}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cause_comes_back_and_none_is_nothing() {
        let causes = [
            (Cause::Errno(1), "errno 1"),
            (Cause::Errno(u16::MAX), "errno 65535"),
            (Cause::Signal(0), "signal 0"),
            (Cause::Signal(5), "signal 5"),
            (Cause::Signal(127), "signal 127"),
        ];
        for (cause, shown) in causes {
            assert_ne!(cause.stored(), 0, "{cause}");
            assert_eq!(Cause::from_stored(cause.stored()), Some(cause));
            assert_eq!(cause.to_string(), shown);
        }
        assert_eq!(Cause::from_stored(0), None);
    }
}
