//! The parts of a detour that follow calls, and of the code that these return to.

use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::code::{Code, Labels, imm32, read_tsc, word_at};
use super::loaded::loads;
use super::pool::{ENTERED, FAULTS, KEY, NEXT, Pool, RETURN, SELF, SHOWS, STUB, kept_word};
use super::spec::{DetourEnv, DetourError, Mapped, Value};

impl Code {
    /// Saves the return address if several probes follow the call. Rings the doorbell if it is a
    /// trampoline's or a stub's: only the VMM knows that call.
    pub(super) fn is_first_to_follow(&mut self, hidden: &Mapped) -> Result<(), DetourError> {
        let a = &mut self.a;
        a.mov(rax, qword_ptr(rsp + self.frame.above()))?;
        if self.frame.keeps_return {
            a.mov(self.frame.kept_return(), rax)?;
        }
        a.sub(rax, imm32(hidden.start)?)?;
        a.cmp(rax, i32::try_from(hidden.len).expect("2 MiB"))?;
        Ok(a.jb(self.doorbell)?)
    }

    /// Takes a free instance, which keeps values, and writes its stub's address over the return
    /// address.
    pub(super) fn follow(
        &mut self,
        (pool, kept): (Pool, &[Value]),
        env: &DetourEnv,
        mut labels: Labels,
    ) -> Result<(), DetourError> {
        let head = word_at(pool.head())?;
        let (a, above) = (&mut self.a, self.frame.above());
        let mut again = a.create_label();
        a.mov(rax, head)?;
        a.set_label(&mut again)?;
        a.test(eax, eax)?;
        a.je(labels.full)?;
        a.movsxd(rcx, eax)?;
        self.exchange_head(head, NEXT, again)?;
        let a = &mut self.a;
        a.mov(rax, qword_ptr(rsp + above))?;
        a.mov(qword_ptr(rcx + RETURN), rax)?;
        if self.frame.keeps_return {
            a.mov(rax, self.frame.kept_return())?;
        }
        a.mov(qword_ptr(rcx + SHOWS), rax)?;
        read_tsc(a)?;
        a.mov(qword_ptr(rcx + ENTERED), rax)?;
        if pool.kept > 0 {
            a.mov(qword_ptr(rcx + FAULTS), 0)?;
        }
        for (at, index) in (0..pool.kept).zip(0..kept.len()) {
            let from = self.value_of(kept, index, env)?;
            self.a.mov(qword_ptr(rcx + kept_word(at)), from)?;
        }
        self.recorded += loads(kept);
        let a = &mut self.a;
        a.lea(rdx, ptr(rsp + above))?;
        a.mov(qword_ptr(rcx + KEY), rdx)?;
        a.mov(rax, qword_ptr(rcx + STUB))?;
        a.mov(qword_ptr(rsp + above), rax)?;
        Ok(a.set_label(&mut labels.done)?)
    }

    /// Rings the doorbell if the call is not the instance's, as at a second return.
    pub(super) fn is_of_instance(&mut self) -> Result<(), IcedError> {
        let (a, above) = (&mut self.a, self.frame.above());
        a.mov(rcx, qword_ptr(rsp + above))?;
        a.lea(rax, ptr(rsp + above))?;
        a.cmp(rax, qword_ptr(rcx + KEY))?;
        a.jne(self.doorbell)
    }

    /// Rings the doorbell if a word of the entry could not be read when the VMM kept them.
    pub(super) fn has_all_kept(&mut self) -> Result<(), IcedError> {
        let (a, above) = (&mut self.a, self.frame.above());
        a.mov(rcx, qword_ptr(rsp + above))?;
        a.cmp(qword_ptr(rcx + FAULTS), 0)?;
        a.jne(self.doorbell)
    }

    /// Skips the work of a probe while it is disabled.
    pub(super) fn skip_when_off(&mut self, pool: Pool, off: CodeLabel) -> Result<(), DetourError> {
        self.a.cmp(word_at(pool.enabled())?, 0)?;
        Ok(self.a.je(off)?)
    }

    /// Frees the instance, and restores the true return address.
    pub(super) fn give_back(&mut self, pool: Pool) -> Result<(), DetourError> {
        let head = word_at(pool.head())?;
        let (a, above) = (&mut self.a, self.frame.above());
        let mut again = a.create_label();
        a.mov(rcx, qword_ptr(rsp + above))?;
        a.mov(rax, qword_ptr(rcx + RETURN))?;
        a.mov(qword_ptr(rsp + above), rax)?;
        a.mov(qword_ptr(rcx + KEY), 0)?;
        a.mov(rax, head)?;
        a.set_label(&mut again)?;
        a.mov(edx, eax)?;
        a.mov(qword_ptr(rcx + NEXT), rdx)?;
        Ok(self.exchange_head(head, SELF, again)?)
    }

    /// Makes the address in a field of the instance at RCX the pool's head, in place of RAX, with
    /// the next change count above it; continues at `again` if RAX is no longer the head.
    fn exchange_head(
        &mut self,
        head: AsmMemoryOperand,
        field: i32,
        again: CodeLabel,
    ) -> Result<(), IcedError> {
        let a = &mut self.a;
        a.mov(rdx, rax)?;
        a.shr(rdx, 32)?;
        a.inc(edx)?;
        a.shl(rdx, 32)?;
        a.or(rdx, qword_ptr(rcx + field))?;
        a.lock().cmpxchg(head, rdx)?;
        a.jne(again)
    }
}
