//! The only decoder of the module: 64-bit mode, and only encodings that every x86-64 CPU decodes
//! alike.

use exoprobe_guest::Gva;
use iced_x86::{ConstantOffsets, Decoder, DecoderError, DecoderOptions, Instruction};

/// Longest x86 instruction, in bytes (Intel SDM vol. 2, 2.3.11); a longer one raises #GP.
pub(crate) const MAX_INSN_LEN: usize = 15;

/// The reason why bytes were not decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DecodeError {
    /// The bytes end within the instruction.
    Truncated,
    /// No instruction has this encoding.
    Invalid,
    /// Intel and AMD CPUs read these bytes as different instructions, or differently long ones.
    VendorDependent,
}

/// An instruction and where its displacement and immediates are in its bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Decoded {
    pub(super) insn: Instruction,
    pub(super) offsets: ConstantOffsets,
}

/// Decodes the instruction at the start of `bytes` as it runs at `at`.
pub(super) fn decode(bytes: &[u8], at: Gva) -> Result<Decoded, DecodeError> {
    let intel = decode_as(bytes, at, DecoderOptions::NONE)?;
    // With an operand-size prefix a near branch is 16 bits wide on AMD and not on Intel (SDM
    // vol. 2, JMP and CALL; APM vol. 3, 1.2.2), UD0 has no ModRM byte on AMD, and so on. Which
    // vendor the guest runs on can even change with migration.
    let amd = decode_as(bytes, at, DecoderOptions::AMD)?;
    if intel.insn != amd.insn || intel.insn.len() != amd.insn.len() {
        return Err(DecodeError::VendorDependent);
    }
    Ok(intel)
}

fn decode_as(bytes: &[u8], at: Gva, options: u32) -> Result<Decoded, DecodeError> {
    let window = &bytes[..bytes.len().min(MAX_INSN_LEN)];
    let mut decoder = Decoder::with_ip(64, window, at.0, options);
    let insn = decoder.decode();
    match decoder.last_error() {
        DecoderError::None => Ok(Decoded { insn, offsets: decoder.get_constant_offsets(&insn) }),
        DecoderError::NoMoreBytes if window.len() < MAX_INSN_LEN => Err(DecodeError::Truncated),
        _ => Err(DecodeError::Invalid),
    }
}

/// The prefix bytes before an opcode (Intel SDM vol. 2, 2.1.1 and 2.2.1).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Prefixes {
    /// Number of prefix bytes, a REX prefix included.
    pub(super) len: usize,
    /// 0x66 is among them.
    pub(super) operand_size: bool,
    /// 0x67 is among them.
    pub(super) address_size: bool,
    /// 0xf2 or 0xf3 is among them.
    pub(super) repeat: bool,
}

/// Scans the prefixes at the start of `bytes`. VEX, EVEX and XOP count as opcode bytes.
pub(super) fn scan_prefixes(bytes: &[u8]) -> Prefixes {
    let mut prefixes = Prefixes::default();
    for byte in bytes {
        match byte {
            0x66 => prefixes.operand_size = true,
            0x67 => prefixes.address_size = true,
            0xf2 | 0xf3 => prefixes.repeat = true,
            0x26 | 0x2e | 0x36 | 0x3e | 0x64 | 0x65 | 0xf0 | 0x40..=0x4f => {}
            _ => break,
        }
        prefixes.len += 1;
    }
    prefixes
}
