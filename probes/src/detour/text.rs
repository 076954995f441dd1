//! The parts of a detour that read memory of users and texts, by guarded loads.
//!
//! A text is read twice: to find its length before anything is counted, and into the record. If it
//! can no longer be read the second time, the record says so.

use exoprobe_guest::guarded_load;
use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::array::ArrayCopy;
use super::code::{Code, DetourFrame, WORD};
use super::loaded::in_bytes;
use super::ring::RECORD_ARGS;
use super::spec::{DetourEnv, Value};

/// Bytes of a word.
const BYTES: i32 = WORD as i32;
/// The flag that allows the kernel to read user memory (SMAP: Intel SDM vol. 3, 4.6).
const AC: i32 = 1 << 18;
/// Added to a word, it takes 1 from each byte.
const LESS_ONE: u64 = 0_u64.wrapping_sub(0x0101_0101_0101_0101);
const TOP_BITS: u64 = 0x8080_8080_8080_8080;

impl Code {
    /// Allows loads of user memory until the flags are restored. (`stac` does not exist
    /// everywhere.)
    pub(super) fn allow_user_memory(&mut self) -> Result<(), IcedError> {
        let a = &mut self.a;
        a.pushfq()?;
        a.or(dword_ptr(rsp), AC)?;
        a.popfq()
    }

    /// Loads the word of a user at RAX into RAX; uses RDX. Rings the doorbell if it faults.
    pub(super) fn load_of_user(&mut self) -> Result<(), IcedError> {
        self.mask_kernels()?;
        self.guarded_load(self.doorbell)?;
        self.a.mov(rax, rdx)
    }

    /// Replaces an address of the kernel's in RAX by one where nothing is, and clears CF; uses RDX.
    /// A branch would not keep the CPU from loading the kernel's memory speculatively.
    pub(super) fn mask_kernels(&mut self) -> Result<(), IcedError> {
        self.a.mov(rdx, rax)?;
        self.a.sar(rdx, 63)?;
        self.a.or(rax, rdx)
    }

    /// Loads the word at RAX into RDX; continues at `faulted` if it faults. CF must be clear.
    pub(super) fn guarded_load(&mut self, faulted: CodeLabel) -> Result<(), IcedError> {
        self.a.db(&guarded_load::CODE)?;
        self.a.jc(faulted)
    }

    /// Rings the doorbell if the text at RAX is in memory of the kernel's that may not be mapped.
    pub(super) fn is_text_there(&mut self, user: bool, env: &DetourEnv) -> Result<(), IcedError> {
        if user {
            return self.mask_kernels();
        }
        let mut of_user = self.a.create_label();
        self.a.test(rax, rax)?;
        self.a.jns(of_user)?;
        self.is_mapped(&env.mapped, WORD)?;
        // A place of its own for each label.
        self.a.zero_bytes()?;
        self.a.set_label(&mut of_user)?;
        self.a.zero_bytes()
    }

    /// Finds the end of the text at RAX. Stores its address, and the bytes of its words up to the
    /// NUL, in the next two words of the frame. Rings the doorbell if it faults, or has more than
    /// `most` bytes.
    pub(super) fn measure(&mut self, most: i32) -> Result<(), IcedError> {
        let (at, len) = (DetourFrame::loaded(self.loaded), DetourFrame::loaded(self.loaded + 1));
        let a = &mut self.a;
        let (mut next, mut found) = (a.create_label(), a.create_label());
        a.mov(at, rax)?;
        a.set_label(&mut next)?;
        // Clears CF.
        a.test(rax, rax)?;
        self.guarded_load(self.doorbell)?;
        let a = &mut self.a;
        // The top bit of a byte is set if it is 0, and of some above the first that is.
        a.mov(rcx, LESS_ONE)?;
        a.add(rcx, rdx)?;
        a.not(rdx)?;
        a.and(rcx, rdx)?;
        a.mov(rdx, TOP_BITS)?;
        a.test(rcx, rdx)?;
        a.jne(found)?;
        a.add(rax, BYTES)?;
        a.mov(rcx, rax)?;
        a.sub(rcx, at)?;
        a.cmp(rcx, most)?;
        a.jb(next)?;
        a.jmp(self.doorbell)?;
        a.set_label(&mut found)?;
        a.sub(rax, at)?;
        a.add(rax, BYTES)?;
        a.mov(len, rax)
    }

    /// Copies the texts and arrays of a record after its words. RCX is the record; RAX and RDX are
    /// free. The lengths are in the record.
    pub(super) fn copy_bytes(&mut self, values: &[Value]) -> Result<(), IcedError> {
        if !values.iter().any(Value::is_in_bytes) {
            return Ok(());
        }
        let (record, words) =
            (self.frame.record(), i32::try_from(values.len()).expect("at most 130"));
        let to = RECORD_ARGS + words * BYTES;
        self.a.mov(record, rcx)?;
        for (index, loaded) in in_bytes(self.recorded, values) {
            let word = RECORD_ARGS + i32::try_from(index).expect("at most 130") * BYTES;
            match &values[index] {
                Value::Array { bytes, user, .. } => {
                    let (bytes, user, at) = (*bytes, *user, DetourFrame::loaded(loaded));
                    self.copy_array(ArrayCopy { bytes, user, at, word, to })?;
                }
                _ => self.copy_text(loaded, word, to)?,
            }
        }
        self.a.mov(rcx, record)
    }

    /// Copies the text of which the frame has the address, at this index, and the length to `to`
    /// bytes after RCX, and moves RCX to the end of it.
    fn copy_text(&mut self, loaded: i32, word: i32, to: i32) -> Result<(), IcedError> {
        let (at, left) = (DetourFrame::loaded(loaded), DetourFrame::loaded(loaded + 1));
        let record = self.frame.record();
        let a = &mut self.a;
        let (mut next, mut torn) = (a.create_label(), a.create_label());
        let mut done = a.create_label();
        a.mov(rax, at)?;
        a.set_label(&mut next)?;
        // Clears CF.
        a.test(rax, rax)?;
        self.guarded_load(torn)?;
        let a = &mut self.a;
        a.mov(qword_ptr(rcx + to), rdx)?;
        a.add(rax, BYTES)?;
        a.add(rcx, BYTES)?;
        a.sub(left, BYTES)?;
        a.jne(next)?;
        a.jmp(done)?;
        // The rest stays zero.
        a.set_label(&mut torn)?;
        a.add(rcx, left)?;
        a.mov(rax, record)?;
        a.or(qword_ptr(rax + word), 1)?;
        a.set_label(&mut done)?;
        a.zero_bytes()
    }
}
