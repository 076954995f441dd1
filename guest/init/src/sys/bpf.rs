//! bpf(2): a program that counts the calls of a function in a map.

use super::{Errno, Fd, Result, address, close, nr, syscall};

/// Commands of bpf(2), from `include/uapi/linux/bpf.h`.
mod command {
    pub(super) const MAP_CREATE: usize = 0;
    pub(super) const MAP_LOOKUP_ELEM: usize = 1;
    pub(super) const PROG_LOAD: usize = 5;
    pub(super) const RAW_TRACEPOINT_OPEN: usize = 17;
}

/// `BPF_TRACE_FENTRY`.
pub(crate) const AT_ENTRY: u32 = 24;
/// `BPF_TRACE_FEXIT`.
pub(crate) const AT_EXIT: u32 = 25;

/// Bytes of an attribute's first words.
const WORD: usize = size_of::<u64>();

/// Executes bpf(2).
///
/// # Safety
/// `attribute` must be the beginning of a `union bpf_attr` whose pointers are valid for the
/// command.
unsafe fn bpf(command: usize, attribute: &[u64]) -> Result<usize> {
    let (pointer, len) = (address(attribute.as_ptr()), attribute.len() * WORD);
    // SAFETY: the kernel reads `len` bytes of `attribute`; the caller vouches for the rest.
    unsafe { syscall(nr::BPF, [command, pointer, len, 0, 0, 0]) }
}

/// Two 32-bit fields, the lower one first.
fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn word(pointer: usize) -> u64 {
    pointer as u64
}

/// The number of a descriptor as the kernel's `int`.
fn number(fd: Fd) -> Result<u32> {
    u32::try_from(fd.0).map_err(|_| Errno(9))
}

/// An array map with one value of 64 bits.
pub(crate) fn new_map() -> Result<Fd> {
    const ARRAY: u32 = 2;
    let (key, value, entries) = (4, 8, 1);
    // SAFETY: this command's attribute has no pointers.
    unsafe { bpf(command::MAP_CREATE, &[pair(ARRAY, key), pair(value, entries)]) }.map(Fd)
}

/// The map's value.
pub(crate) fn value(map: Fd) -> Result<u64> {
    let (key, mut value) = (0_u32, 0_u64);
    let keys = [word(address(&raw const key)), word((&raw mut value).expose_provenance())];
    let attribute = [number(map)?.into(), keys[0], keys[1], 0];
    // SAFETY: the kernel reads the 4 bytes of `key` and writes the 8 bytes of `value`.
    unsafe { bpf(command::MAP_LOOKUP_ELEM, &attribute) }?;
    Ok(value)
}

/// One instruction: its code, its registers, and its immediate value.
const fn instruction(code: u8, to: u8, from: u8, value: u32) -> u64 {
    u64::from_le_bytes({
        let [a, b, c, d] = value.to_le_bytes();
        [code, from << 4 | to, 0, 0, a, b, c, d]
    })
}

/// A program of the function with this number among the kernel's types, that adds one to the map's
/// value at each run. `at` is [`AT_ENTRY`] or [`AT_EXIT`].
pub(crate) fn load_counter(map: Fd, at: u32, function: u32) -> Result<Fd> {
    const TRACING: u32 = 26;
    /// The address of a map's value, in two instructions.
    const LOAD: u8 = 0x18;
    const MAP_VALUE: u8 = 2;
    const MOVE: u8 = 0xb7;
    const LOCKED_ADD: u8 = 0xdb;
    const EXIT: u8 = 0x95;
    let program = [
        instruction(LOAD, 1, MAP_VALUE, number(map)?),
        instruction(0, 0, 0, 0),
        instruction(MOVE, 2, 0, 1),
        instruction(LOCKED_ADD, 1, 2, 0),
        instruction(MOVE, 0, 0, 0),
        instruction(EXIT, 0, 0, 0),
    ];
    let licence = c"Apache-2.0 OR MIT";
    let mut attribute = [0; 14];
    attribute[0] = pair(TRACING, program.len().try_into().map_err(|_| Errno(7))?);
    attribute[1] = word(address(program.as_ptr()));
    attribute[2] = word(address(licence.as_ptr()));
    attribute[8] = pair(0, at);
    attribute[13] = pair(0, function);
    // SAFETY: the kernel reads the instructions, as many as it is given, and a string that ends in
    // a NUL.
    unsafe { bpf(command::PROG_LOAD, &attribute) }.map(Fd)
}

/// Attaches a program to its function, until the descriptor is closed.
pub(crate) fn attach(program: Fd) -> Result<Fd> {
    let attribute = [0, number(program)?.into()];
    // SAFETY: the name is null, and there are no other pointers.
    unsafe { bpf(command::RAW_TRACEPOINT_OPEN, &attribute) }.map(Fd)
}

/// Closes a descriptor of this module. Nothing is written to it, so no error is lost.
pub(crate) fn release(fd: Fd) {
    let _nothing_to_lose = close(fd);
}
