//! Back-traces from outside: by the kernel's ORC tables, or by frame pointers, where it has none.
//!
//! Stacks and tables are the guest's, so nothing on them is trusted: a walk has at most
//! [`FRAMES_MAX`] frames, and within one stack it only ever goes up.

pub mod orc;
pub mod prologue;
mod stack;
#[cfg(test)]
mod tests;
mod user;

use exoprobe_guest::{Gva, kvm_regs};

pub use orc::{OrcError, OrcTables};
pub use stack::{FRAMES_MAX, Stack};
pub use user::{UserPlace, user_frames};

use orc::{Base, OrcEntry, OrcType};
use stack::KERNEL_HALF;

/// Most changes from one stack to another: there are those of a task, of interrupts, and of several
/// exceptions.
const SWITCHES_MAX: u32 = 8;
/// Largest stack of a kernel, in bytes.
const STACK_SPAN: u64 = 64 << 10;
/// Of a code segment's selector: the privilege level, which is 3 in user mode.
const USER_RPL: u64 = 3;
/// Selectors of user mode: its code (64 bits), its code (32 bits), its stack
/// (arch/x86/include/asm/segment.h).
const USER_CS: u64 = 0x33;
const USER32_CS: u64 = 0x23;
const USER_DS: u64 = 0x2b;
/// Bit 0 of a frame pointer: it is the address of all registers (ENCODE_FRAME_POINTER).
const ENCODED: u64 = 1;

/// Offsets in `struct pt_regs`, and from RIP on in the frame that an exception pushes (Intel SDM
/// vol. 3, 6.14.2).
mod pt_regs {
    pub(super) const R13: u64 = 16;
    pub(super) const BP: u64 = 32;
    pub(super) const R10: u64 = 56;
    pub(super) const AX: u64 = 80;
    pub(super) const DX: u64 = 96;
    pub(super) const DI: u64 = 112;
    pub(super) const IP: u64 = 128;
    pub(super) const CS: u64 = 8;
    pub(super) const SP: u64 = 24;
    pub(super) const SS: u64 = 32;
}

/// Where a frame is.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    ip: Gva,
    /// `ip` is the next instruction to run, and not the one after a call.
    is_exact: bool,
    sp: u64,
    bp: u64,
    /// Address of its return address, if it has no frame of its own.
    return_at: Option<Gva>,
    rest: Rest,
}

/// Registers that few frames are found by.
#[derive(Clone, Copy, Debug)]
enum Rest {
    /// They are not known.
    Unknown,
    /// A vCPU's.
    Live { ax: u64, dx: u64, di: u64, r10: u64, r13: u64 },
    /// On the stack, in a `struct pt_regs` there.
    Saved(Gva),
}

impl Place {
    /// Where a vCPU with these registers is, in kernel mode, at the instruction `ip`.
    #[must_use]
    pub fn at(ip: Gva, regs: &kvm_regs) -> Self {
        let rest =
            Rest::Live { ax: regs.rax, dx: regs.rdx, di: regs.rdi, r10: regs.r10, r13: regs.r13 };
        Self { ip, is_exact: true, sp: regs.rsp, bp: regs.rbp, return_at: None, rest }
    }

    /// The same where `ip` is an address that a call has just returned to.
    #[must_use]
    pub fn returned(self) -> Self {
        Self { is_exact: false, ..self }
    }

    /// The same of a function without a frame of its own, whose return address is so many bytes
    /// above the stack pointer. ORC tables know that by themselves.
    #[must_use]
    pub fn without_frame(self, offset: u64) -> Self {
        Self { return_at: Some(Gva(self.sp.wrapping_add(offset))), ..self }
    }
}

/// Result of a step.
enum Step {
    /// A frame of the kernel. It may be on another stack.
    Kernel { place: Place, may_switch: bool },
    /// User mode.
    User(UserPlace),
}

/// A walk up the stack: an iterator of the addresses that frames return to, the place that it
/// begins at not included.
pub struct Walk<'a, S: ?Sized> {
    tables: Option<&'a OrcTables>,
    stack: &'a S,
    at: Place,
    /// Where the walk came onto the present stack.
    bottom: u64,
    switches: u32,
    frames: usize,
    ended: bool,
    user: Option<UserPlace>,
}

impl<'a, S: Stack + ?Sized> Walk<'a, S> {
    /// A walk that begins at a place of the kernel: by its ORC tables, or else by frame pointers.
    #[must_use]
    pub fn new(tables: Option<&'a OrcTables>, stack: &'a S, at: Place) -> Self {
        let bottom = at.sp;
        Self { tables, stack, at, bottom, switches: 0, frames: 0, ended: false, user: None }
    }

    /// Where the kernel was entered from user mode, once the walk has come to its end there.
    #[must_use]
    pub fn user(&self) -> Option<UserPlace> {
        self.user
    }

    fn step(&self) -> Option<Step> {
        let ip = if self.at.is_exact { self.at.ip } else { Gva(self.at.ip.0.wrapping_sub(1)) };
        match self.tables.map(|tables| (tables, tables.find(ip))) {
            Some((tables, Some(entry))) => self.by_entry(tables, &entry),
            // Generated code has frame pointers, also where the kernel has none.
            Some((_, None)) => self.by_frame_pointer(),
            None => self.by_encoded_pointer().or_else(|| self.by_frame_pointer()),
        }
    }

    fn by_entry(&self, tables: &OrcTables, entry: &OrcEntry) -> Option<Step> {
        let Place { sp, bp, .. } = self.at;
        let offset = i64::from(entry.sp_offset);
        let (base, may_switch) = match entry.sp {
            Base::Sp => (sp.wrapping_add_signed(offset), false),
            Base::Bp => (bp.wrapping_add_signed(offset), false),
            Base::BpIndirect => (self.word(bp.wrapping_add_signed(offset))?, true),
            Base::SpIndirect if tables.adds_before() => {
                (self.word(sp.wrapping_add_signed(offset))?, true)
            }
            Base::SpIndirect => (self.word(sp)?.wrapping_add_signed(offset), true),
            other => (self.register(other)?, false),
        };
        match entry.kind {
            OrcType::Undefined | OrcType::EndOfStack => None,
            OrcType::Call => {
                let bp = match entry.bp {
                    Base::Undefined => bp,
                    Base::PrevSp => self.word(base.wrapping_add_signed(entry.bp_offset.into()))?,
                    Base::Bp => self.word(bp.wrapping_add_signed(entry.bp_offset.into()))?,
                    _ => return None,
                };
                let place = self.caller(base.wrapping_sub(8), bp)?;
                let place = Place { is_exact: entry.signal, ..place };
                Some(Step::Kernel { place, may_switch })
            }
            OrcType::Regs => self.by_registers(base),
            OrcType::RegsPartial => {
                let place = Place { is_exact: entry.signal, ..self.at };
                self.by_exception(base, place)
            }
        }
    }

    /// A register that is known only at a frame's beginning or from an exception.
    fn register(&self, base: Base) -> Option<u64> {
        let saved = |regs: Gva, offset: u64| self.stack.word(regs.wrapping_add(offset));
        match (self.at.rest, base) {
            (Rest::Live { ax, .. }, Base::Ax) => Some(ax),
            (Rest::Live { dx, .. }, Base::Dx) => Some(dx),
            (Rest::Live { di, .. }, Base::Di) => Some(di),
            (Rest::Live { r10, .. }, Base::R10) => Some(r10),
            (Rest::Live { r13, .. }, Base::R13) => Some(r13),
            (Rest::Saved(regs), Base::Ax) => saved(regs, pt_regs::AX),
            (Rest::Saved(regs), Base::Dx) => saved(regs, pt_regs::DX),
            (Rest::Saved(regs), Base::Di) => saved(regs, pt_regs::DI),
            (Rest::Saved(regs), Base::R10) => saved(regs, pt_regs::R10),
            (Rest::Saved(regs), Base::R13) => saved(regs, pt_regs::R13),
            _ => None,
        }
    }

    /// By a `struct pt_regs`.
    fn by_registers(&self, at: u64) -> Option<Step> {
        let bp = self.word(at.wrapping_add(pt_regs::BP))?;
        let place = Place { is_exact: true, bp, rest: Rest::Saved(Gva(at)), ..self.at };
        self.by_exception(at.wrapping_add(pt_regs::IP), place)
    }

    /// By the registers that an exception pushes; `place` has the registers beside.
    fn by_exception(&self, at: u64, place: Place) -> Option<Step> {
        let (ip, sp) = (self.word(at)?, self.word(at.wrapping_add(pt_regs::SP))?);
        let cs = self.word(at.wrapping_add(pt_regs::CS))?;
        if cs & USER_RPL == USER_RPL {
            // Frames of 32-bit code have another form.
            let bp = if cs & 0xffff == USER_CS { place.bp } else { 0 };
            return Some(Step::User(UserPlace { ip: Gva(ip), sp: Gva(sp), bp: Gva(bp) }));
        }
        let ip = self.stack.stands_for(Gva(ip));
        let place = Place { ip, sp, return_at: None, ..place };
        Some(Step::Kernel { place, may_switch: true })
    }

    /// At the end of frame pointers, or where one is the address of registers: user mode's, or
    /// those of the code that was interrupted.
    fn by_encoded_pointer(&self) -> Option<Step> {
        let Place { sp, bp, return_at: None, .. } = self.at else { return None };
        if bp & ENCODED != 0 {
            let regs = bp & !ENCODED;
            return if is_within(sp, regs) { self.by_registers(regs) } else { None };
        }
        // The system call's entry has cleared RBP, and has the registers right above.
        let frame = sp.wrapping_add(pt_regs::IP);
        let cs = (bp == 0).then(|| self.word(frame.wrapping_add(pt_regs::CS))).flatten()?;
        let ss = self.word(frame.wrapping_add(pt_regs::SS))?;
        let is_user = [USER_CS, USER32_CS].contains(&cs) && ss == USER_DS;
        if is_user { self.by_registers(sp) } else { None }
    }

    fn by_frame_pointer(&self) -> Option<Step> {
        let Place { sp, bp, return_at, .. } = self.at;
        let place = match return_at {
            Some(at) => self.caller(at.0, bp)?,
            None if is_within(sp, bp) => self.caller(bp.wrapping_add(8), self.word(bp)?)?,
            None => return None,
        };
        Some(Step::Kernel { place, may_switch: false })
    }

    /// The frame whose return address is at `at`.
    fn caller(&self, at: u64, bp: u64) -> Option<Place> {
        let ip = self.stack.returns_to(Gva(self.word(at)?));
        let sp = at.wrapping_add(8);
        Some(Place { ip, is_exact: false, sp, bp, return_at: None, rest: Rest::Unknown })
    }

    fn word(&self, at: u64) -> Option<u64> {
        self.stack.word(Gva(at))
    }

    /// Returns true if a frame can be at this address.
    fn accepts(&mut self, place: &Place, may_switch: bool) -> bool {
        if place.ip.0 & KERNEL_HALF == 0 || place.sp & KERNEL_HALF == 0 {
            return false;
        }
        let goes_up = place.sp > self.at.sp && place.sp.wrapping_sub(self.bottom) <= STACK_SPAN;
        if !goes_up {
            if !may_switch || self.switches == SWITCHES_MAX {
                return false;
            }
            (self.switches, self.bottom) = (self.switches + 1, place.sp);
        }
        true
    }
}

impl<S: Stack + ?Sized> Iterator for Walk<'_, S> {
    type Item = Gva;

    fn next(&mut self) -> Option<Gva> {
        if self.ended || self.frames == FRAMES_MAX {
            return None;
        }
        match self.step() {
            Some(Step::Kernel { place, may_switch }) if self.accepts(&place, may_switch) => {
                (self.at, self.frames) = (place, self.frames + 1);
                return Some(place.ip);
            }
            Some(Step::User(place)) => self.user = Some(place),
            _ => {}
        }
        self.ended = true;
        None
    }
}

/// Whether a frame may be at `at` on the stack whose pointer is `sp`.
fn is_within(sp: u64, at: u64) -> bool {
    at.is_multiple_of(8) && at >= sp && at - sp < STACK_SPAN
}
