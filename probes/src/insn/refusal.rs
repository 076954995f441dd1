//! The reasons for which an instruction cannot be probed.

use exoprobe_guest::Gva;
use thiserror::Error;

/// The reason why an instruction cannot run displaced. The text gives the fact, the reason, and a
/// place to probe instead.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Refusal {
    /// No instruction has these bytes.
    #[error(
        "the bytes at {at} are no valid instruction (data in the text?); probe an address where \
         code runs"
    )]
    Undecodable {
        /// The probed address.
        at: Gva,
    },
    /// The instruction does not end within the given bytes.
    #[error(
        "the instruction at {at} runs past the end of its function, so it is probably not where \
         an instruction starts; probe an address inside the function"
    )]
    Truncated {
        /// The probed address.
        at: Gva,
    },
    /// Intel and AMD read the bytes differently.
    #[error(
        "the bytes at {at} mean different instructions to Intel and AMD CPUs (an operand-size \
         prefix on a branch, for one); probe the instruction before or after it"
    )]
    VendorDependent {
        /// The probed address.
        at: Gva,
    },
    /// An int3 is there that is not exoprobe's.
    #[error(
        "there is a breakpoint (int3) at {at} already, which the guest put there or pads with; \
         probe another instruction"
    )]
    GuestBreakpoint {
        /// The probed address.
        at: Gva,
    },
    /// ud0, ud1, ud2: Linux's BUG, WARN, UBSAN and CFI traps.
    #[error(
        "`{insn}` raises an exception on purpose, and Linux reads its bytes in its place (BUG, WARN), \
         where it would find the breakpoint; probe the branch that leads to it"
    )]
    Trap {
        /// The instruction.
        insn: String,
    },
    /// hlt, mwait.
    #[error(
        "`{insn}` waits for an interrupt: after a `sti` no interrupt may come between the two, \
         and the breakpoint would open that gap (a lost wake-up); probe the caller instead"
    )]
    Wait {
        /// The instruction.
        insn: String,
    },
    /// mov ss.
    #[error(
        "`{insn}` keeps interrupts off until the next instruction has run; displaced, that would be \
         another one; probe the instruction after it"
    )]
    InterruptShadow {
        /// The instruction.
        insn: String,
    },
    /// swapgs, sysret, iretq, without the [`Assurances`](super::Assurances) they need.
    #[error(
        "`{insn}` is entry code, which may run where hidden memory is not mapped (while page-table \
         isolation is on) or fault where only its own address tells why; probe the system call or \
         handler function after it"
    )]
    EntryCode {
        /// The instruction.
        insn: String,
    },
    /// Far call and jmp.
    #[error("`{insn}` transfers to another code segment; probe its target or its caller")]
    FarTransfer {
        /// The instruction.
        insn: String,
    },
    /// int n, int1, into.
    #[error(
        "`{insn}` raises an interrupt whose handler sees the address of a displaced copy; probe \
         the handler"
    )]
    SoftwareInterrupt {
        /// The instruction.
        insn: String,
    },
    /// Transactional memory.
    #[error(
        "`{insn}` belongs to a memory transaction, which every breakpoint aborts; probe the \
         fallback path or the function's start"
    )]
    Transaction {
        /// The instruction.
        insn: String,
    },
    /// VMX, SVM, hypercalls, SMX, SGX, TDX.
    #[error(
        "`{insn}` goes to a hypervisor, an enclave or a virtual machine, which act on its address; \
         probe the function around it"
    )]
    Virtualization {
        /// The instruction.
        insn: String,
    },
    /// Writes to CR0, CR3, CR4, while page-table isolation is on.
    #[error(
        "`{insn}` changes how memory is mapped, and hidden memory, from where it would run, is not \
         mapped everywhere (while page-table isolation is on); probe the instruction after it"
    )]
    ControlRegister {
        /// The instruction.
        insn: String,
    },
    /// Privileged or unusual, and not known to be safe.
    #[error(
        "`{insn}` is privileged or unusual, and running it displaced has not been shown to be \
         safe; probe the instruction before or after it"
    )]
    Unvetted {
        /// The instruction.
        insn: String,
    },
    /// An operand relative to EIP.
    #[error(
        "`{insn}` addresses memory relative to EIP (32 bits), which hidden memory cannot reproduce; \
         probe the instruction before or after it"
    )]
    EipRelative {
        /// The instruction.
        insn: String,
    },
    /// A call whose return address is no sign-extended 32-bit number.
    #[error(
        "`{insn}` would push the return address {next}, which does not fit the 32-bit immediate of \
         a displaced push; probe the called function or the instruction after the call"
    )]
    ReturnAddress {
        /// The instruction.
        insn: String,
        /// Its return address.
        next: Gva,
    },
    /// A branch with a prefix that has no certain meaning.
    #[error(
        "`{insn}` is a branch with a prefix whose effect is not certain; probe its target or the \
         instruction before"
    )]
    Prefix {
        /// The instruction.
        insn: String,
    },
    /// A direct branch to a non-canonical address, which faults.
    #[error("`{insn}` branches to {target}, which is no canonical address; this is not code")]
    Target {
        /// The instruction.
        insn: String,
        /// The target of the branch.
        target: Gva,
    },
}
