//! The effect of port I/O beyond the devices.

/// The effect of an access to a port on the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PortEffect {
    /// Nothing beyond the access.
    None,
    /// The guest pulsed the reset line.
    Reset,
    /// The guest switched the machine off.
    PowerOff,
}
