//! Registers by the names kprobe_events gives them on x86-64 (`%ax` is the 64-bit RAX).

use std::fmt;
use std::str::FromStr;

use exoprobe_guest::{kvm_regs, kvm_sregs};
use serde::{Deserialize, Serialize};

macro_rules! registers {
    ($($variant:ident $name:literal $field:ident $doc:literal),* $(,)?) => {
        /// A register that can be recorded.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Register {
            $(#[doc = $doc] $variant,)*
        }

        impl Register {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Name without `%`.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Value in a register file.
            #[must_use]
            pub fn of(self, regs: &kvm_regs) -> u64 {
                // References of one type become a table of offsets, values a jump.
                *match self { $(Self::$variant => &regs.$field,)* }
            }

            /// The register itself in a register file.
            pub fn of_mut(self, regs: &mut kvm_regs) -> &mut u64 {
                match self { $(Self::$variant => &mut regs.$field,)* }
            }
        }
    };
}

registers! {
    Ax "ax" rax "RAX", Bx "bx" rbx "RBX", Cx "cx" rcx "RCX", Dx "dx" rdx "RDX",
    Si "si" rsi "RSI", Di "di" rdi "RDI", Bp "bp" rbp "RBP", Sp "sp" rsp "RSP",
    R8 "r8" r8 "R8", R9 "r9" r9 "R9", R10 "r10" r10 "R10", R11 "r11" r11 "R11",
    R12 "r12" r12 "R12", R13 "r13" r13 "R13", R14 "r14" r14 "R14", R15 "r15" r15 "R15",
    Ip "ip" rip "RIP, the probed address", Flags "flags" rflags "RFLAGS",
}

/// A segment register, of which the selector is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Segment {
    /// CS
    Cs,
    /// SS
    Ss,
}

impl Segment {
    /// Both.
    pub const ALL: &[Self] = &[Self::Cs, Self::Ss];

    /// Name without `%`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Cs => "cs",
            Self::Ss => "ss",
        }
    }

    /// Its selector.
    #[must_use]
    pub fn of(self, sregs: &kvm_sregs) -> u64 {
        let segment = match self {
            Self::Cs => sregs.cs,
            Self::Ss => sregs.ss,
        };
        segment.selector.into()
    }
}

/// No register has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`%{0}` is no register: use ax bx cx dx si di bp sp r8 to r15 ip flags")]
pub struct UnknownRegister(String);

impl FromStr for Register {
    type Err = UnknownRegister;
    fn from_str(name: &str) -> Result<Self, UnknownRegister> {
        let found = Self::ALL.iter().copied().find(|r| r.name() == name);
        found.ok_or_else(|| UnknownRegister(name.to_owned()))
    }
}

impl fmt::Display for Register {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for Register {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Register {
    /// By its name, with or without `%`.
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.strip_prefix('%').unwrap_or(&text).parse().map_err(serde::de::Error::custom)
    }
}
