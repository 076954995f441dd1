//! The addresses of the symbols, in the order of their names.
//!
//! | kernels | where | form |
//! |---|---|---|
//! | any | before the number of symbols | 64 bits each (without CONFIG_KALLSYMS_BASE_RELATIVE) |
//! | to 6.3 | before the number of symbols, the base between | 32 bits each, from a base |
//! | from 6.4 on | behind the tokens' index, the base behind | 32 bits each, from a base |
//!
//! With CONFIG_KALLSYMS_ABSOLUTE_PERCPU (SMP kernels to 6.14) an offset of 0 or more is itself the value, and a
//! negative one counts from the base less one downwards: kallsyms_sym_address() of kernel/kallsyms.c. Symbols are in
//! the order of their addresses; that tells which form it is.

use super::error::KallsymsError;
use super::names::Names;
use super::tokens::Tokens;
use super::window::Window;
use crate::symbols::KERNEL_HALF;

const WORD: usize = 8;
const HALF: usize = 4;

/// How an offset becomes an address.
#[derive(Clone, Copy)]
enum Form {
    /// From the base up.
    Upwards,
    /// Of per-CPU symbols the value itself, of others downwards.
    AbsolutePerCpu,
}

impl Form {
    fn address(self, base: u64, offset: u32) -> u64 {
        match (self, offset.cast_signed()) {
            (Self::AbsolutePerCpu, 0..) => offset.into(),
            (Self::AbsolutePerCpu, negative) => {
                base.wrapping_sub(1).wrapping_sub(i64::from(negative).cast_unsigned())
            }
            (Self::Upwards, _) => base.wrapping_add(offset.into()),
        }
    }
}

/// The addresses, whichever way the kernel has them.
pub(super) fn find(
    window: &Window,
    tokens: &Tokens,
    names: &Names<'_>,
) -> Result<Vec<u64>, KallsymsError> {
    let count = names.count;
    let number = window.offset(names.number_at).ok_or(KallsymsError::NoAddresses)?;
    let behind = window.offset(tokens.end).ok_or(KallsymsError::NoAddresses)?;
    let before = |size: usize| number.checked_sub(size);
    [WORD, HALF]
        .into_iter()
        .find_map(|align| {
            let space = count.checked_mul(HALF)?.checked_next_multiple_of(align)?;
            let old = || {
                let base = before(WORD)?;
                relative(window, base.checked_sub(space)?, base, count)
            };
            let new = || {
                let offsets = window.aligned(behind, align as u64);
                let base = window.aligned(offsets.checked_add(count * HALF)?, align as u64);
                relative(window, offsets, base, count)
            };
            new().or_else(old)
        })
        .or_else(|| absolute(window, before(count.checked_mul(WORD)?)?, count))
        .ok_or(KallsymsError::NoAddresses)
}

fn relative(window: &Window, offsets: usize, base: usize, count: usize) -> Option<Vec<u64>> {
    let base = window.u64(base).filter(|base| *base >= KERNEL_HALF.0)?;
    let bytes = window.bytes.get(offsets..offsets.checked_add(count * HALF)?)?;
    let (offsets, _) = bytes.as_chunks::<HALF>();
    [Form::AbsolutePerCpu, Form::Upwards].into_iter().find_map(|form| {
        let addresses = offsets.iter().map(|o| form.address(base, u32::from_le_bytes(*o)));
        plausible(addresses.collect())
    })
}

fn absolute(window: &Window, first: usize, count: usize) -> Option<Vec<u64>> {
    let bytes = window.bytes.get(first..first.checked_add(count * WORD)?)?;
    let (words, _) = bytes.as_chunks::<WORD>();
    plausible(words.iter().map(|word| u64::from_le_bytes(*word)).collect())
}

/// They ascend, and end in the kernel's half.
fn plausible(addresses: Vec<u64>) -> Option<Vec<u64>> {
    let is_kernel = addresses.last().is_some_and(|last| *last >= KERNEL_HALF.0);
    (is_kernel && addresses.is_sorted()).then_some(addresses)
}
