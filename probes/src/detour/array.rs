//! The parts of a detour that read arrays.
//!
//! An array of a user is read by guarded loads, at both of its ends before anything is counted, and
//! into the record. If it can no longer be read the second time, the record says so.

use exoprobe_guest::guarded_load;
use exoprobe_guest::paging::PAGE_SIZE;
use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::code::{Code, DetourFrame, WORD};
use super::ring::padded;
use super::spec::DetourEnv;
use crate::definition::ARRAY_MAX;

// Its ends are in all of its pages.
const _: () = assert!(ARRAY_MAX as u64 * WORD as u64 <= PAGE_SIZE);

/// An array in a record.
#[derive(Clone, Copy)]
pub(super) struct ArrayCopy {
    /// Its length in bytes.
    pub(super) bytes: u16,
    /// It is user memory.
    pub(super) user: bool,
    /// The word with its address.
    pub(super) at: AsmMemoryOperand,
    /// Offset of its word from the record.
    pub(super) word: i32,
    /// Offset of its bytes from RCX.
    pub(super) to: i32,
}

impl ArrayCopy {
    /// Bytes in whole words, and the rest.
    fn parts(self) -> (i32, i32) {
        let rest = self.bytes % WORD;
        ((self.bytes - rest).into(), rest.into())
    }
}

impl Code {
    /// Stores the address of an array, which is in RAX, in the next word of the frame. Rings the
    /// doorbell if the array may not be mapped, or faults.
    pub(super) fn find_array(
        &mut self,
        bytes: u16,
        user: bool,
        env: &DetourEnv,
    ) -> Result<(), IcedError> {
        let at = DetourFrame::loaded(self.loaded);
        if !user {
            self.is_mapped(&env.mapped, bytes.max(WORD))?;
            return self.a.mov(at, rax);
        }
        self.mask_kernels()?;
        self.guarded_load(self.doorbell)?;
        self.a.mov(at, rax)?;
        if bytes > WORD {
            self.a.add(rax, i32::from(bytes - WORD))?;
            // Clears CF.
            self.a.test(rax, rax)?;
            self.guarded_load(self.doorbell)?;
        }
        Ok(())
    }

    /// Copies an array into its record, whose address is in the frame, and moves RCX to the end of
    /// it. RAX and RDX are free.
    pub(super) fn copy_array(&mut self, array: ArrayCopy) -> Result<(), IcedError> {
        let (whole, rest) = array.parts();
        let word = i32::from(WORD);
        let (mut next, mut torn) = (self.a.create_label(), self.a.create_label());
        self.a.mov(rax, array.at)?;
        if whole > 0 {
            self.a.set_label(&mut next)?;
            self.load_of_array(array.user, 0, torn)?;
            let a = &mut self.a;
            a.mov(qword_ptr(rcx + array.to), rdx)?;
            a.add(rax, word)?;
            a.add(rcx, word)?;
            a.mov(rdx, rax)?;
            a.sub(rdx, array.at)?;
            a.cmp(rdx, whole)?;
            a.jb(next)?;
        }
        if rest > 0 {
            // Ends with the array, unless that is shorter than a word.
            let before = if whole > 0 { word - rest } else { 0 };
            self.load_of_array(array.user, before, torn)?;
            let a = &mut self.a;
            if before > 0 {
                a.shr(rdx, before * 8)?;
            }
            a.mov(qword_ptr(rcx + array.to), rdx)?;
            a.add(rcx, word)?;
        }
        if !array.user {
            return Ok(());
        }
        let a = &mut self.a;
        let mut done = a.create_label();
        a.jmp(done)?;
        // The rest stays zero.
        a.set_label(&mut torn)?;
        a.sub(rcx, rax)?;
        a.add(rcx, array.at)?;
        a.add(rcx, i32::try_from(padded(array.bytes)).expect("some hundred bytes"))?;
        a.mov(rax, self.frame.record())?;
        a.or(qword_ptr(rax + array.word), 1)?;
        a.set_label(&mut done)?;
        a.zero_bytes()
    }

    /// Loads the word that is so many bytes before RAX into RDX; continues at `torn` if it faults.
    fn load_of_array(&mut self, user: bool, before: i32, torn: CodeLabel) -> Result<(), IcedError> {
        if !user {
            return self.a.mov(rdx, qword_ptr(rax - before));
        }
        if before == 0 {
            // Clears CF.
            self.a.test(rax, rax)?;
            return self.guarded_load(torn);
        }
        let a = &mut self.a;
        a.lea(rax, ptr(rax - before))?;
        // Clears CF, which LEA keeps.
        a.test(rax, rax)?;
        a.db(&guarded_load::CODE)?;
        a.lea(rax, ptr(rax + before))?;
        a.jc(torn)
    }
}
