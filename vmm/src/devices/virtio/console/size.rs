//! The size of the terminal, as the driver reads it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::devices::virtio::device::Interrupt;

/// Columns and rows of a terminal; both 0 while they are not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct TerminalSize {
    /// Columns.
    pub columns: u16,
    /// Rows.
    pub rows: u16,
}

/// Bytes of the size in the device's configuration: columns, then rows.
const LEN: usize = 4;

#[derive(Default)]
struct State {
    size: TerminalSize,
    generation: u8,
    /// The driver has not read the size since it started, or since the last change.
    is_unread: bool,
    /// It changed while the device did not run.
    is_late: bool,
    /// Notifies the driver, while the device runs.
    changed: Option<Arc<dyn Interrupt>>,
}

/// The size, and its driver.
#[derive(Default)]
pub(super) struct Size(Mutex<State>);

impl Size {
    pub(super) fn new(size: TerminalSize) -> Self {
        Self(Mutex::new(State { size, ..State::default() }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self) -> TerminalSize {
        self.lock().size
    }

    /// Sets the size. Interrupts the driver if it does not have this size already: a driver that
    /// has not started is interrupted when it does.
    pub(super) fn set(&self, size: TerminalSize) {
        let mut state = self.lock();
        if state.size == size && !state.is_unread {
            return;
        }
        if state.size != size {
            state.generation = state.generation.wrapping_add(1);
        }
        (state.size, state.is_unread) = (size, true);
        match &state.changed {
            // Raised under the lock, so that none comes after the device has stopped.
            Some(changed) => changed.raise(),
            None => state.is_late = true,
        }
    }

    /// The device runs; `changed` notifies its driver.
    ///
    /// Linux before 6.12 reads the size only when it is notified: a size that it has not read is
    /// sent once more when it is set.
    pub(super) fn start(&self, changed: Arc<dyn Interrupt>) {
        let mut state = self.lock();
        state.is_unread = state.size != TerminalSize::default();
        if std::mem::take(&mut state.is_late) {
            changed.raise();
        }
        state.changed = Some(changed);
    }

    /// The device has stopped.
    pub(super) fn stop(&self) {
        self.lock().changed = None;
    }

    pub(super) fn generation(&self) -> u8 {
        self.lock().generation
    }

    /// A read of the device's configuration; 0 beyond the size.
    pub(super) fn read(&self, offset: u64, data: &mut [u8]) {
        let mut state = self.lock();
        let TerminalSize { columns, rows } = state.size;
        let config = [columns.to_le_bytes(), rows.to_le_bytes()];
        let config = config.as_flattened();
        let start = usize::try_from(offset).unwrap_or(LEN).min(LEN);
        data.fill(0);
        for (to, from) in data.iter_mut().zip(&config[start..]) {
            *to = *from;
        }
        if start < LEN {
            state.is_unread = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::virtio::raised::Raised;

    const SMALL: TerminalSize = TerminalSize { columns: 80, rows: 24 };
    const LARGE: TerminalSize = TerminalSize { columns: 0x1234, rows: 0x567 };

    fn read(size: &Size, offset: u64, len: usize) -> Vec<u8> {
        let mut data = vec![0xee; len];
        size.read(offset, &mut data);
        data
    }

    #[test]
    fn reads_have_the_size_and_zeroes_beyond() {
        let size = Size::new(LARGE);
        assert_eq!(read(&size, 0, 8), [0x34, 0x12, 0x67, 0x05, 0, 0, 0, 0]);
        assert_eq!(read(&size, 3, 2), [5, 0]);
        for offset in [4, 8, 0xfff, u64::MAX] {
            assert_eq!(read(&size, offset, 4), [0; 4]);
        }
    }

    #[test]
    fn the_driver_is_interrupted_once_a_change() {
        let (size, raised) = (Size::default(), Arc::new(Raised::default()));
        let interrupts = || raised.count();
        let driver = || Arc::clone(&raised) as Arc<dyn Interrupt>;
        size.start(driver());
        size.set(TerminalSize::default());
        assert_eq!((interrupts(), size.generation()), (0, 0), "nothing has changed");
        size.set(SMALL);
        assert_eq!((interrupts(), size.generation()), (1, 1));
        size.set(SMALL);
        assert_eq!((interrupts(), size.generation()), (2, 1), "it has not read it");
        read(&size, 2, 2);
        size.set(SMALL);
        read(&size, 4, 4);
        assert_eq!(interrupts(), 2, "it has it");
        size.set(LARGE);
        assert_eq!((interrupts(), size.generation(), size.get()), (3, 2, LARGE));
    }

    #[test]
    fn a_driver_that_starts_hears_of_a_change_meanwhile_and_of_nothing_else() {
        let (size, raised) = (Size::new(SMALL), Arc::new(Raised::default()));
        let interrupts = || raised.count();
        let driver = || Arc::clone(&raised) as Arc<dyn Interrupt>;
        size.start(driver());
        assert_eq!(interrupts(), 0);
        size.stop();
        size.set(LARGE);
        assert_eq!(interrupts(), 0, "it has stopped");
        size.start(driver());
        assert_eq!(interrupts(), 1);
        size.stop();
        size.start(driver());
        assert_eq!(interrupts(), 1);
        size.set(LARGE);
        assert_eq!(interrupts(), 2, "this driver may not have read it");
    }
}
