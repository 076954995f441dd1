//! Recognises prologues and epilogues, where a function has no frame: frame pointers leave out its
//! caller there.

/// endbr64.
const ENDBR64: &[u8] = &[0xf3, 0x0f, 0x1e, 0xfa];
/// The function tracer's nop, of five bytes.
const TRACER: &[u8] = &[0x0f, 0x1f, 0x44, 0x00, 0x00];
const PUSH_RBP: u8 = 0x55;
/// mov rbp, rsp, in its two encodings.
const MOV_RBP_RSP: [&[u8]; 2] = [&[0x48, 0x89, 0xe5], &[0x48, 0x8b, 0xec]];
const RET: u8 = 0xc3;

/// Bytes from the stack pointer up to the return address, where the function with this `code` has
/// no frame before its instruction at the offset `at`; `None` where it has one, or may have.
#[must_use]
pub fn return_offset(code: &[u8], at: usize) -> Option<u64> {
    let mut push = 0;
    for skipped in [ENDBR64, TRACER] {
        if code.get(push..)?.starts_with(skipped) {
            push += skipped.len();
        }
    }
    let after_push = push + 1;
    if at <= push || code.get(at) == Some(&RET) {
        Some(0)
    } else if at == after_push && code.get(push) == Some(&PUSH_RBP) {
        let frame = code.get(after_push..)?;
        MOV_RBP_RSP.iter().any(|mov| frame.starts_with(mov)).then_some(8)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_without_its_frame_has_the_return_address_on_top_or_below_rbp() {
        // push rbp; mov rbp, rsp; nop; pop rbp; ret
        let body = [0x55, 0x48, 0x89, 0xe5, 0x90, 0x5d, 0xc3];
        let found =
            |code: &[u8]| (0..=code.len()).map(|at| return_offset(code, at)).collect::<Vec<_>>();
        let expected = [Some(0), Some(8), None, None, None, None, Some(0), None];
        assert_eq!(found(&body), expected);
        let traced = [ENDBR64, TRACER, &body].concat();
        let before: Vec<Option<u64>> = (0..9).map(|_| Some(0)).chain(expected).collect();
        assert_eq!(found(&traced), before);
    }

    #[test]
    fn one_that_makes_no_frame_is_known_at_its_entry_alone() {
        // mov eax, edi; push rbp; ret
        let code = [0x89, 0xf8, 0x55, 0xc3];
        assert_eq!(return_offset(&code, 0), Some(0));
        assert_eq!([1, 2].map(|at| return_offset(&code, at)), [None; 2]);
        // push rbp, which is saved only.
        assert_eq!(return_offset(&[0x55, 0x90, 0x90], 1), None);
        assert_eq!(return_offset(&[], 0), Some(0), "whatever it is");
        assert_eq!(return_offset(&[], 7), None);
    }
}
