//! Address newtypes: a guest-physical address is never mistaken for a guest-virtual one.

use std::fmt;

macro_rules! address {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default,
            serde::Serialize, serde::Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl $name {
            /// The address `offset` bytes above, or `None` past the end of the address space.
            #[must_use]
            pub fn checked_add(self, offset: u64) -> Option<Self> {
                self.0.checked_add(offset).map(Self)
            }

            /// The address `offset` bytes above, modulo 2^64 as the CPU itself computes it.
            #[must_use]
            pub fn wrapping_add(self, offset: u64) -> Self {
                Self(self.0.wrapping_add(offset))
            }

            /// Offset of this address inside its aligned block of `size` bytes (a power of two).
            #[must_use]
            pub fn offset_in(self, size: u64) -> u64 {
                self.0 & (size - 1)
            }

            /// The address rounded down to a multiple of `size` (a power of two).
            #[must_use]
            pub fn align_down(self, size: u64) -> Self {
                Self(self.0 & !(size - 1))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }
    };
}

address! {
    /// Guest-physical address, in bytes, as used by the guest's page tables and KVM's memory slots.
    Gpa
}

address! {
    /// Guest-virtual (linear) address, in bytes, as used by the guest's instructions.
    ///
    /// ```
    /// use exoprobe_guest::Gva;
    ///
    /// let at = Gva(0xffff_ffff_8100_1234);
    /// assert_eq!(at.align_down(0x1000), Gva(0xffff_ffff_8100_1000));
    /// assert_eq!(at.offset_in(0x1000), 0x234);
    /// assert_eq!(at.to_string(), "0xffffffff81001234");
    /// assert_eq!((Gva(u64::MAX).checked_add(1), Gva(u64::MAX).wrapping_add(1)), (None, Gva(0)));
    /// ```
    Gva
}

/// `n` as an index. Lengths always fit: the host is x86-64.
///
/// # Panics
/// Never on x86-64.
#[must_use]
#[inline]
pub fn to_usize(n: u64) -> usize {
    usize::try_from(n).expect("usize has 64 bits on x86-64")
}
