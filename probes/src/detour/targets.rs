//! The targets of jumps and calls in a kernel's text: addresses that control reaches other than
//! from the instruction before.

use std::collections::HashMap;
use std::ops::Range;

use exoprobe_guest::Gva;
use iced_x86::{Decoder, DecoderOptions, FlowControl};

use super::region::jumps_indirectly;

/// Most bytes of text that are examined: ten times a distribution kernel's.
const TEXT_MAX: u64 = 256 << 20;

/// Targets of the direct branches and calls in all of a text, and added ones; and the functions
/// that jump indirectly.
pub struct Targets {
    text: Range<u64>,
    /// One bit per byte of `text`.
    bits: Vec<u64>,
    /// The same for the addresses after calls.
    after_calls: Vec<u64>,
    /// By functions' starts: the first indirect jmp.
    indirect: HashMap<Gva, Gva>,
}

impl Targets {
    /// Targets of a text whose functions [`Self::add_function`] will add.
    #[must_use]
    pub fn new(text: Range<Gva>) -> Self {
        let end = text.end.0.min(text.start.0.saturating_add(TEXT_MAX));
        let text = text.start.0..end.max(text.start.0);
        let words =
            usize::try_from((text.end - text.start).div_ceil(64)).expect("at most 4 million");
        let bits = vec![0; words];
        Self { text, after_calls: bits.clone(), bits, indirect: HashMap::new() }
    }

    /// Decodes a function from its start to its end, or to the first invalid instruction.
    /// `is_thunk` recognizes thunks, which jump to the address in a register
    /// (`__x86_indirect_thunk_rax`).
    pub fn add_function(
        &mut self,
        start: Gva,
        bytes: &[u8],
        is_thunk: impl Fn(Gva) -> bool + Copy,
    ) {
        for insn in Decoder::with_ip(64, bytes, start.0, DecoderOptions::NONE).iter() {
            let target = Gva(insn.near_branch_target());
            if target != Gva(0) {
                self.add(target);
            }
            let calls =
                matches!(insn.flow_control(), FlowControl::Call | FlowControl::IndirectCall);
            if calls && let Some((word, bit)) = self.place(Gva(insn.next_ip())) {
                self.after_calls[word] |= 1 << bit;
            }
            if jumps_indirectly(&insn, is_thunk) {
                self.indirect.entry(start).or_insert(Gva(insn.ip()));
            }
        }
    }

    /// Adds a target that control reaches in another way.
    pub fn add(&mut self, at: Gva) {
        if let Some((word, bit)) = self.place(at) {
            self.bits[word] |= 1 << bit;
        }
    }

    /// Returns true if control reaches `at`.
    #[must_use]
    pub fn contains(&self, at: Gva) -> bool {
        self.place(at).is_some_and(|(word, bit)| self.bits[word] >> bit & 1 != 0)
    }

    /// Returns true if a call returns to `at`.
    #[must_use]
    pub fn follows_call(&self, at: Gva) -> bool {
        self.place(at).is_some_and(|(word, bit)| self.after_calls[word] >> bit & 1 != 0)
    }

    /// The first indirect jmp of the function that starts at `start`.
    #[must_use]
    pub fn indirect_jump(&self, start: Gva) -> Option<Gva> {
        self.indirect.get(&start).copied()
    }

    fn place(&self, at: Gva) -> Option<(usize, u64)> {
        let offset = self.text.contains(&at.0).then(|| at.0 - self.text.start)?;
        Some((usize::try_from(offset / 64).expect("at most 4 million"), offset % 64))
    }
}
