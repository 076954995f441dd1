//! The targets of jumps and calls in a kernel's text: addresses that control reaches other than
//! from the instruction before.
//!
//! A whole text takes long to decode. So all of it is scanned for what may be the displacement of a
//! branch, and a function is decoded once it may matter for an address that is asked about.

use std::collections::HashMap;
use std::ops::Range;

use exoprobe_guest::Gva;
use iced_x86::{Decoder, DecoderOptions, FlowControl};

use super::region::{JMP_LEN, jumps_indirectly};

/// Most bytes of text that are examined: ten times a distribution kernel's.
const TEXT_MAX: u64 = 256 << 20;
/// Most branches that [`Targets::scan`] should note, 32 MiB of them: several times a distribution
/// kernel's. The guest chooses its text.
pub const BRANCHES_MAX: usize = 4 << 20;
/// Bytes of a branch's long displacement, which ends it.
const LONG: u32 = 4;
/// Of xbegin's other one.
const XBEGIN_SHORT: u32 = 2;
/// The last byte of xbegin's opcode.
const XBEGIN: u8 = 0xf8;
/// Farthest that a branch with a displacement of one byte is from its target, with its own bytes.
const SHORT_REACH: u32 = 128 + 15;
/// Bytes of `jmp rel32`.
const JMP: u32 = 5;
const _: () = assert!(JMP as usize == JMP_LEN);

/// Targets of the direct branches and calls in a text, and added ones; and the functions that jump
/// indirectly. Of an address that [`Self::functions_near`] was decoded for, all of them.
pub struct Targets {
    text: Range<u64>,
    /// One bit per byte of `text`.
    bits: Vec<u64>,
    /// The same for the addresses after calls.
    after_calls: Vec<u64>,
    /// By functions' starts: the first indirect jmp.
    indirect: HashMap<Gva, Gva>,
    /// In order of their starts.
    functions: Vec<Function>,
    /// In order of their targets.
    branches: Vec<LongBranch>,
    /// There are more branches than may be noted: each address is a target.
    has_more: bool,
}

/// A function, by offsets in the text.
struct Function {
    start: u32,
    end: u32,
    /// The last end of this function and of all that start before it.
    reach: u32,
    is_decoded: bool,
}

/// Bytes that are the displacement of a branch, if one ends there: offsets in the text.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct LongBranch {
    target: u32,
    displacement: u32,
}

impl Targets {
    /// Targets of a text with these functions, no two of one start. Their starts are targets.
    #[must_use]
    pub fn new(text: Range<Gva>, functions: impl IntoIterator<Item = Range<Gva>>) -> Self {
        let end = text.end.0.min(text.start.0.saturating_add(TEXT_MAX));
        let text = text.start.0..end.max(text.start.0);
        let words =
            usize::try_from((text.end - text.start).div_ceil(64)).expect("at most 4 million");
        let bits = vec![0; words];
        let after_calls = bits.clone();
        let mut new = Self {
            text,
            after_calls,
            bits,
            indirect: HashMap::new(),
            functions: Vec::new(),
            branches: Vec::new(),
            has_more: false,
        };
        for function in functions {
            new.add(function.start);
            let last = function.end.0.max(function.start.0 + 1) - 1;
            if let (Some(start), Some(last)) = (new.offset(function.start), new.offset(Gva(last))) {
                new.functions.push(Function { start, end: last + 1, reach: 0, is_decoded: false });
            }
        }
        new.functions.sort_unstable_by_key(|function| function.start);
        let mut reach = 0;
        for function in &mut new.functions {
            reach = reach.max(function.end);
            function.reach = reach;
        }
        new
    }

    /// Scans the bytes of all functions for at most `most` branches: `read` gives those of a range.
    pub fn scan(&mut self, most: usize, mut read: impl FnMut(Range<Gva>) -> Option<Vec<u8>>) {
        let len = u32::try_from(self.text.end - self.text.start).expect("at most TEXT_MAX");
        for function in &self.functions {
            let Some(bytes) = read(self.range(function)) else { continue };
            for branch in long_branches(&bytes) {
                let target = function.start.wrapping_add(branch.target);
                let displacement = function.start + branch.displacement;
                // Functions' starts, the targets of calls, are known.
                if target < len && !is_set(&self.bits, target) {
                    if self.branches.len() == most {
                        self.has_more = true;
                        self.branches = Vec::new();
                        return;
                    }
                    self.branches.push(LongBranch { target, displacement });
                }
            }
        }
        self.branches.sort_unstable();
    }

    /// Adds each address that a branch in these bytes may lead to, wherever its instructions begin:
    /// for text that is no function's. Returns the first place that may have an indirect jmp.
    pub fn add_any(&mut self, start: Gva, bytes: &[u8]) -> Option<Gva> {
        let at = |offset: usize| start.wrapping_add(offset as u64);
        for LongBranch { target, .. } in long_branches(bytes) {
            self.add(start.wrapping_add(i64::from(target.cast_signed()).cast_unsigned()));
        }
        for (offset, pair) in bytes.windows(2).enumerate() {
            // jcc, loop, jrcxz and jmp.
            if matches!(pair[0], 0x70..=0x7f | 0xe0..=0xe3 | 0xeb) {
                let distance = i64::from(pair[1].cast_signed());
                self.add(at(offset + 2).wrapping_add(distance.cast_unsigned()));
            }
        }
        let mut pairs = bytes.windows(2);
        pairs.position(|pair| pair[0] == 0xff && is_indirect_jmp(pair[1])).map(at)
    }

    /// Number of noted branches.
    #[must_use]
    pub fn branches(&self) -> usize {
        self.branches.len()
    }

    /// The functions that are to be decoded before it is known which of the addresses from `at` on
    /// that a jmp covers are targets, and whether a call returns to `at`.
    #[must_use]
    pub fn functions_near(&self, at: Gva) -> Vec<Range<Gva>> {
        let Some(at) = self.offset(at) else { return Vec::new() };
        let mut found = Vec::new();
        self.undecoded(at.saturating_sub(SHORT_REACH)..at + JMP + SHORT_REACH, &mut found);
        let first = self.branches.partition_point(|branch| branch.target <= at);
        for branch in &self.branches[first..] {
            if branch.target >= at + JMP {
                break;
            }
            self.undecoded(branch.displacement..branch.displacement + 1, &mut found);
        }
        found.sort_unstable();
        found.dedup();
        found.into_iter().map(|index| self.range(&self.functions[index])).collect()
    }

    /// The function that starts at `start`, unless it is decoded.
    #[must_use]
    pub fn function_from(&self, start: Gva) -> Option<Range<Gva>> {
        let function = &self.functions[self.index_of(start)?];
        (!function.is_decoded).then(|| self.range(function))
    }

    fn index_of(&self, start: Gva) -> Option<usize> {
        let start = self.offset(start)?;
        self.functions.binary_search_by_key(&start, |function| function.start).ok()
    }

    /// Adds those functions to `found` that are not decoded and have a byte in a range.
    fn undecoded(&self, range: Range<u32>, found: &mut Vec<usize>) {
        let end = self.functions.partition_point(|function| function.start < range.end);
        let before = self.functions[..end].iter().enumerate().rev();
        for (index, function) in before.take_while(|(_, function)| function.reach > range.start) {
            if function.end > range.start && !function.is_decoded {
                found.push(index);
            }
        }
    }

    /// Decodes a function, or to its first invalid instruction. `is_thunk` recognizes thunks, which
    /// jump to the address in a register (`__x86_indirect_thunk_rax`).
    pub fn decode(&mut self, start: Gva, bytes: &[u8], is_thunk: impl Fn(Gva) -> bool + Copy) {
        for insn in Decoder::with_ip(64, bytes, start.0, DecoderOptions::NONE).iter() {
            let target = Gva(insn.near_branch_target());
            if target != Gva(0) {
                self.add(target);
            }
            let calls =
                matches!(insn.flow_control(), FlowControl::Call | FlowControl::IndirectCall);
            if calls && let Some(next) = self.offset(Gva(insn.next_ip())) {
                set(&mut self.after_calls, next);
            }
            if jumps_indirectly(&insn, is_thunk) {
                self.indirect.entry(start).or_insert(Gva(insn.ip()));
            }
        }
        if let Some(index) = self.index_of(start) {
            self.functions[index].is_decoded = true;
        }
    }

    /// Adds a target that control reaches in another way.
    pub fn add(&mut self, at: Gva) {
        if let Some(at) = self.offset(at) {
            set(&mut self.bits, at);
        }
    }

    /// Returns true if control reaches `at`, or may, as there are too many branches to know.
    #[must_use]
    pub fn contains(&self, at: Gva) -> bool {
        self.offset(at).is_some_and(|at| self.has_more || is_set(&self.bits, at))
    }

    /// Returns true if a call returns to `at`.
    #[must_use]
    pub fn follows_call(&self, at: Gva) -> bool {
        self.offset(at).is_some_and(|at| is_set(&self.after_calls, at))
    }

    /// The first indirect jmp of the function that starts at `start`.
    #[must_use]
    pub fn indirect_jump(&self, start: Gva) -> Option<Gva> {
        self.indirect.get(&start).copied()
    }

    fn offset(&self, at: Gva) -> Option<u32> {
        let offset = self.text.contains(&at.0).then(|| at.0 - self.text.start)?;
        Some(u32::try_from(offset).expect("below TEXT_MAX"))
    }

    fn range(&self, function: &Function) -> Range<Gva> {
        let at = |offset: u32| Gva(self.text.start + u64::from(offset));
        at(function.start)..at(function.end)
    }
}

/// Possible branches with long displacements, relative to the begin of the bytes: the displacements
/// come after the opcodes of jmp, call, jcc and xbegin (Intel SDM vol. 2, Appendix A).
fn long_branches(bytes: &[u8]) -> impl Iterator<Item = LongBranch> {
    let may_be = |at: &usize| match bytes[*at] {
        0xe8 | 0xe9 => true,
        0x80..=0x8f => *at > 0 && bytes[at - 1] == 0x0f,
        XBEGIN => *at > 0 && bytes[at - 1] == 0xc7,
        _ => false,
    };
    (0..bytes.len()).filter(may_be).flat_map(|opcode| branches_of(bytes, opcode))
}

/// The branches that the last byte of an opcode may be of: with a displacement of 4 bytes, and of 2
/// for xbegin.
fn branches_of(bytes: &[u8], opcode: usize) -> impl Iterator<Item = LongBranch> {
    let displacement = u32::try_from(opcode + 1).expect("a text has at most TEXT_MAX bytes");
    let (rest, is_xbegin) = (&bytes[opcode + 1..], bytes[opcode] == XBEGIN);
    let long = rest.first_chunk().map(|four| (LONG, i32::from_le_bytes(*four)));
    let short = rest.first_chunk().filter(|_| is_xbegin);
    let short = short.map(|two| (XBEGIN_SHORT, i16::from_le_bytes(*two).into()));
    long.into_iter().chain(short).map(move |(len, distance)| {
        let target = (displacement + len).wrapping_add(distance.cast_unsigned());
        LongBranch { target, displacement }
    })
}

/// Returns true if this byte after 0xff makes it a jmp to what an operand says: near, or far, which
/// is not in a register (Intel SDM vol. 2, A.4).
fn is_indirect_jmp(modrm: u8) -> bool {
    match modrm >> 3 & 7 {
        4 => true,
        5 => modrm >> 6 != 3,
        _ => false,
    }
}

fn set(bits: &mut [u64], at: u32) {
    bits[at as usize / 64] |= 1 << (at % 64);
}

fn is_set(bits: &[u64], at: u32) -> bool {
    bits[at as usize / 64] >> (at % 64) & 1 != 0
}
