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
    let mut insns = Instructions::new(bytes, at);
    let insn = insns.decode()?;
    Ok(Decoded { insn, offsets: insns.intel.get_constant_offsets(&insn) })
}

/// The instructions of some bytes, one after the other, up to the first error.
pub(super) struct Instructions<'a> {
    intel: Decoder<'a>,
    amd: Decoder<'a>,
}

impl<'a> Instructions<'a> {
    /// Begins at the start of `bytes`, which run at `at`.
    pub(super) fn new(bytes: &'a [u8], at: Gva) -> Self {
        let [intel, amd] = [DecoderOptions::NONE, DecoderOptions::AMD]
            .map(|options| Decoder::with_ip(64, bytes, at.0, options));
        Self { intel, amd }
    }

    fn decode(&mut self) -> Result<Instruction, DecodeError> {
        let intel = decode_next(&mut self.intel)?;
        // With an operand-size prefix a near branch is 16 bits wide on AMD and not on Intel (SDM
        // vol. 2, JMP and CALL; APM vol. 3, 1.2.2), UD0 has no ModRM byte on AMD, and so on. Which
        // vendor the guest runs on can even change with migration.
        let amd = decode_next(&mut self.amd)?;
        if intel != amd || intel.len() != amd.len() {
            return Err(DecodeError::VendorDependent);
        }
        Ok(intel)
    }
}

impl Iterator for Instructions<'_> {
    type Item = Result<Instruction, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.intel.can_decode().then(|| self.decode())
    }
}

fn decode_next(decoder: &mut Decoder<'_>) -> Result<Instruction, DecodeError> {
    let left = decoder.max_position() - decoder.position();
    let insn = decoder.decode();
    match decoder.last_error() {
        DecoderError::None => Ok(insn),
        DecoderError::NoMoreBytes if left < MAX_INSN_LEN => Err(DecodeError::Truncated),
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
