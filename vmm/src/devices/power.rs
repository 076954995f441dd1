//! ACPI's fixed registers (ACPI 6.5, 4.8.3): the power button, and the way to switch the machine
//! off. The guest's driver writes them by bytes or words.
//!
//! | the driver | the device |
//! |---|---|
//! | asks for a state of sleep other than "off" | ignores it |
//! | leaves the button's event disabled | refuses a press |
//! | reads or writes across the registers' end | the rest is all ones, or ignored |

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::effect::PortEffect;
use crate::layout::{PM1_EVENT, SLEEP_TYPE_OFF};

/// Status and enable bit of the power button.
const POWER_BUTTON: u16 = 1 << 8;
/// Control: the machine is in ACPI mode.
const SCI_ENABLE: u16 = 1;
/// Control: the state of sleep, and to enter it.
const SLEEP_TYPE_SHIFT: u16 = 10;
const SLEEP_TYPE_MASK: u16 = 0b111;
const SLEEP_ENABLE: u16 = 1 << 13;
/// Bytes of the three registers, one after the other.
const LEN: u16 = 6;

/// The registers' content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct PowerSnapshot {
    status: u16,
    enable: u16,
    control: u16,
}

/// The level of the interrupt line.
type Line = Box<dyn Fn(bool) + Send + Sync>;

/// The registers, and the line of the system control interrupt (SCI).
pub(crate) struct PowerManagement {
    registers: Mutex<PowerSnapshot>,
    sci: Line,
}

impl PowerManagement {
    /// The registers as they were; `sci` sets the line's level.
    pub(crate) fn new(from: PowerSnapshot, sci: impl Fn(bool) + Send + Sync + 'static) -> Self {
        let power = Self { registers: Mutex::new(from), sci: Box::new(sci) };
        power.drive(&power.lock());
        power
    }

    pub(crate) fn save(&self) -> PowerSnapshot {
        *self.lock()
    }

    /// As at power-on.
    pub(crate) fn reset(&self) {
        let mut registers = self.lock();
        *registers = PowerSnapshot::default();
        self.drive(&registers);
    }

    /// Presses the power button. Returns false if the guest does not watch it.
    pub(crate) fn press_button(&self) -> bool {
        let mut registers = self.lock();
        let is_watched = registers.enable & POWER_BUTTON != 0;
        if is_watched {
            registers.status |= POWER_BUTTON;
            self.drive(&registers);
        }
        is_watched
    }

    /// An `in`; `false` if the port is none of these.
    pub(crate) fn read(&self, port: u16, data: &mut [u8]) -> bool {
        let Some(offset) = offset(port) else { return false };
        let PowerSnapshot { status, enable, control } = *self.lock();
        let words = [status, enable, control | SCI_ENABLE].map(u16::to_le_bytes);
        let bytes = words.as_flattened();
        for (at, byte) in (usize::from(offset)..).zip(data) {
            *byte = bytes.get(at).copied().unwrap_or(0xff);
        }
        true
    }

    /// An `out`, with its effect on the machine; `None` if the port is none of these.
    pub(crate) fn write(&self, port: u16, data: &[u8]) -> Option<PortEffect> {
        let offset = offset(port)?;
        let mut registers = self.lock();
        for (at, byte) in (offset..LEN).zip(data) {
            registers.write(at, *byte);
        }
        self.drive(&registers);
        let sleeps = registers.control & SLEEP_ENABLE != 0;
        registers.control &= !SLEEP_ENABLE;
        let kind = registers.control >> SLEEP_TYPE_SHIFT & SLEEP_TYPE_MASK;
        let is_off = sleeps && kind == u16::from(SLEEP_TYPE_OFF);
        Some(if is_off { PortEffect::PowerOff } else { PortEffect::None })
    }

    fn drive(&self, registers: &PowerSnapshot) {
        (self.sci)(registers.status & registers.enable != 0);
    }

    fn lock(&self) -> MutexGuard<'_, PowerSnapshot> {
        self.registers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn offset(port: u16) -> Option<u16> {
    port.checked_sub(PM1_EVENT).filter(|offset| *offset < LEN)
}

impl PowerSnapshot {
    /// Writes one byte; ones clear the status.
    fn write(&mut self, offset: u16, byte: u8) {
        let (register, shift) = match offset {
            0 | 1 => {
                self.status &= !(u16::from(byte) << (8 * offset));
                return;
            }
            2 | 3 => (&mut self.enable, 8 * (offset - 2)),
            _ => (&mut self.control, 8 * (offset - 4)),
        };
        *register = *register & !(0xff << shift) | u16::from(byte) << shift;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::layout::PM1_CONTROL;

    const ENABLE: u16 = PM1_EVENT + 2;

    fn device() -> (PowerManagement, Arc<AtomicBool>) {
        let level = Arc::new(AtomicBool::new(false));
        let line = Arc::clone(&level);
        let set = move |level| line.store(level, Ordering::SeqCst);
        (PowerManagement::new(PowerSnapshot::default(), set), level)
    }

    fn word(power: &PowerManagement, port: u16) -> u16 {
        let mut data = [0; 2];
        assert!(power.read(port, &mut data));
        u16::from_le_bytes(data)
    }

    #[test]
    fn a_press_interrupts_until_it_is_acknowledged() {
        let (power, line) = device();
        assert!(!power.press_button() && word(&power, PM1_EVENT) == 0, "nothing watches it");
        assert_eq!(power.write(ENABLE, &[0, 1]), Some(PortEffect::None));
        assert!(!line.load(Ordering::SeqCst));
        assert!(power.press_button() && line.load(Ordering::SeqCst));
        assert_eq!(word(&power, PM1_EVENT), POWER_BUTTON);
        let copy = PowerManagement::new(power.save(), |level| assert!(level, "as it was"));
        assert_eq!(copy.save(), power.save());
        power.write(PM1_EVENT, &[0xff, 0]);
        assert!(line.load(Ordering::SeqCst), "the other byte");
        power.write(PM1_EVENT + 1, &[1]);
        assert!(!line.load(Ordering::SeqCst) && word(&power, PM1_EVENT) == 0);
        power.press_button();
        power.reset();
        assert!(!line.load(Ordering::SeqCst) && power.save() == PowerSnapshot::default());
    }

    #[test]
    fn only_the_state_off_ends_the_machine() {
        let (power, _) = device();
        assert_eq!(word(&power, PM1_CONTROL), SCI_ENABLE, "in ACPI mode from the start");
        let kind = |kind: u16| (kind << SLEEP_TYPE_SHIFT).to_le_bytes();
        let enter = |kind: u16| (kind << SLEEP_TYPE_SHIFT | SLEEP_ENABLE).to_le_bytes();
        let off = u16::from(SLEEP_TYPE_OFF);
        assert_eq!(power.write(PM1_CONTROL, &kind(off)), Some(PortEffect::None));
        assert_eq!(power.write(PM1_CONTROL, &enter(1)), Some(PortEffect::None));
        assert_eq!(word(&power, PM1_CONTROL), 1 << SLEEP_TYPE_SHIFT | SCI_ENABLE);
        assert_eq!(power.write(PM1_CONTROL, &enter(off)), Some(PortEffect::PowerOff));
        assert_eq!(power.write(PM1_CONTROL + 1, &enter(off)[1..]), Some(PortEffect::PowerOff));
    }

    #[test]
    fn other_ports_and_ends_are_left_alone() {
        let (power, _) = device();
        let mut data = [0; 4];
        assert!(!power.read(PM1_EVENT + LEN, &mut data) && !power.read(PM1_EVENT - 1, &mut data));
        assert_eq!(power.write(PM1_EVENT + LEN, &[0; 4]), None);
        assert!(power.read(PM1_CONTROL, &mut data) && data[2..] == [0xff, 0xff]);
        assert_eq!(power.write(PM1_CONTROL, &[0xff; 4]), Some(PortEffect::None));
        assert_eq!(power.write(PM1_EVENT, &[0xff; 8]), Some(PortEffect::None), "type 7");
    }
}
