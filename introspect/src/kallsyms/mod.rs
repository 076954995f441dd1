//! The kernel's own table of symbols, read from its memory: the kernel's own part of
//! /proc/kallsyms, for kernels from 4.19 on with CONFIG_KALLSYMS.
//!
//! The tables have no header. `tokens` are found by their content, and everything else by where it
//! must be from there and by agreeing with it: every table is confirmed by a second one. All of it
//! is the guest's memory: every step is bounded.

mod addresses;
mod error;
mod names;
#[doc(hidden)]
#[cfg(any(test, feature = "testing"))]
pub mod sample;
#[cfg(test)]
mod tests;
mod tokens;
mod window;

use exoprobe_guest::Gva;

use crate::kernel_image::KernelImage;
use crate::symbols::{Listing, SymbolTable};
use crate::view::GuestView;
use crate::virt::VirtualMemory;

pub use error::KallsymsError;
use names::Names;
use tokens::Tokens;
use window::Window;

/// Reads the symbols of the kernel that has `inside` mapped, such as its system-call entry
/// (IA32_LSTAR). They are where the kernel has them: with KASLR the table's slide is 0 all the
/// same.
///
/// # Errors
/// [`KallsymsError`].
pub fn read<V: GuestView + ?Sized>(
    memory: &VirtualMemory<'_, V>,
    inside: Gva,
) -> Result<SymbolTable, KallsymsError> {
    let image = KernelImage::find(memory, inside)?;
    let windows = Window::all(memory, &image);
    let tokens = Tokens::find(&windows)?;
    let window = windows.iter().find(|window| window.offset(tokens.start).is_some());
    let window = window.ok_or(KallsymsError::NoTokens)?;
    let names = Names::find(window, &tokens)?;
    let addresses = addresses::find(window, &tokens, &names)?;
    let mut listing = Listing::new(names.count, names.count * 16);
    names.for_each(&tokens, |index, kind, name| match str::from_utf8(name) {
        Ok(name) => listing.push(addresses[index], kind, name),
        // No compiler generates such names, and none can be looked up.
        Err(_) => Ok(()),
    })?;
    Ok(listing.finish()?)
}
