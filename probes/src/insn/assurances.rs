//! What the rest of exoprobe provides for the code in slots.

/// What holds in a guest for the code in its slots, on which some instructions depend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Assurances {
    /// An exception of code in a slot shows the guest the address in the slot's last bytes
    /// ([`SLOT_ADDRESS_OFFSET`](super::SLOT_ADDRESS_OFFSET)), the instruction's own: #DE, #UD, #NM, #DF, #NP, #SS, #GP, #PF, #MF, #AC
    /// and #XF. (#DF is for iretq, which can fault on a stack of its own: espfix64.)
    pub faults_show_original: bool,
    /// Hidden memory is mapped in every page table that probed code runs on or switches to:
    /// page-table isolation is off.
    pub mapped_everywhere: bool,
}

impl Assurances {
    /// Nothing is assured.
    pub const NONE: Self = Self { faults_show_original: false, mapped_everywhere: false };
    /// Everything is.
    pub const ALL: Self = Self { faults_show_original: true, mapped_everywhere: true };
}
