//! Guarantees for the code in slots.

/// Guarantees for code in slots, on which some instructions depend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Assurances {
    /// An exception of code in a slot shows the guest the address in the slot's last bytes
    /// ([`SLOT_ADDRESS_OFFSET`](super::SLOT_ADDRESS_OFFSET)), the instruction's own: #DE, #UD, #NM,
    /// #DF, #NP, #SS, #GP, #PF, #MF, #AC and #XF. (#DF is for iretq, which can fault on a stack of
    /// its own: espfix64.)
    pub faults_show_original: bool,
    /// Hidden memory is mapped in every page table that probed code runs on or switches to:
    /// page-table isolation is off.
    pub mapped_everywhere: bool,
}

impl Assurances {
    /// No assurances.
    pub const NONE: Self = Self { faults_show_original: false, mapped_everywhere: false };
    /// All assurances.
    pub const ALL: Self = Self { faults_show_original: true, mapped_everywhere: true };
}
