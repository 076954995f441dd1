//! A 16550 (vm-superio) with its output kept in a log and its input queued beyond the FIFO.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use vm_superio::serial::{NoEvents, SerialState};
use vm_superio::{Serial, Trigger};

use super::console_watch::{ConsoleWatch, Stream};
use super::input::{InputFull, InputQueue};
use super::output::OutputLog;

/// Sends an edge on the port's ISA interrupt line.
pub(crate) type EdgeLine = Arc<dyn Fn() -> Result<(), kvm_ioctls::Error> + Send + Sync>;

struct Line(EdgeLine);

impl Trigger for Line {
    type E = kvm_ioctls::Error;
    fn trigger(&self) -> Result<(), Self::E> {
        (self.0)()
    }
}

/// Where the device writes the guest's bytes.
struct Sink {
    log: Arc<OutputLog>,
    watch: Option<Arc<ConsoleWatch>>,
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.log.append(bytes);
        if let Some(watch) = &self.watch {
            watch.feed(Stream::Serial, bytes);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

type Uart = Serial<Line, NoEvents, Sink>;

struct Device {
    uart: Uart,
    input: InputQueue,
}

/// The connections of a port, which stay when its registers are reset.
struct Wiring {
    line: EdgeLine,
    log: Arc<OutputLog>,
    watch: Option<Arc<ConsoleWatch>>,
}

impl Wiring {
    fn uart(&self, state: &SerialState) -> Result<Uart, SerialStateError> {
        let line = Line(Arc::clone(&self.line));
        let sink = Sink { log: Arc::clone(&self.log), watch: self.watch.clone() };
        Serial::from_state(state, line, NoEvents, sink)
            .map_err(|e| SerialStateError(format!("{e:?}")))
    }
}

/// A device state that cannot be a 16550's: the snapshot it came from is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the snapshot's state of a serial port is not valid: {0}")]
pub(crate) struct SerialStateError(String);

/// One serial port of the guest.
pub struct SerialPort {
    device: Mutex<Device>,
    wiring: Wiring,
}

/// A port's registers, as kept in a snapshot.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct SerialSnapshot {
    divisor: [u8; 2],
    interrupt_enable: u8,
    interrupt_identification: u8,
    line_control: u8,
    line_status: u8,
    modem_control: u8,
    modem_status: u8,
    scratch: u8,
    in_buffer: Vec<u8>,
    input: Vec<u8>,
}

impl SerialPort {
    /// A port as `from` has it, or in its power-on state; `watch` sees all output.
    pub(crate) fn new(
        line: EdgeLine,
        watch: Option<Arc<ConsoleWatch>>,
        from: Option<&SerialSnapshot>,
    ) -> Result<Self, SerialStateError> {
        let wiring = Wiring { line, log: Arc::default(), watch };
        let state = from.map_or_else(SerialState::default, SerialSnapshot::registers);
        let uart = wiring.uart(&state)?;
        let input = from.map_or_else(InputQueue::default, |s| InputQueue::restored(&s.input));
        Ok(Self { device: Mutex::new(Device { uart, input }), wiring })
    }

    /// Resets the port to the power-on state. Waiting input was for the previous boot and is
    /// dropped; the log stays.
    pub(crate) fn reset(&self) {
        let uart = self.wiring.uart(&SerialState::default()).expect("a new port has this state");
        *self.device() = Device { uart, input: InputQueue::default() };
    }

    fn device(&self) -> std::sync::MutexGuard<'_, Device> {
        self.device.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The output of the guest.
    #[must_use]
    pub fn log(&self) -> &Arc<OutputLog> {
        &self.wiring.log
    }

    /// Sends bytes to the guest; they wait in a queue while its FIFO is full.
    ///
    /// # Errors
    /// [`InputFull`]: nothing was queued.
    pub fn send(&self, bytes: &[u8]) -> Result<(), InputFull> {
        let mut device = self.device();
        device.input.push(bytes)?;
        device.pump();
        Ok(())
    }

    pub(crate) fn write_register(&self, offset: u8, value: u8) {
        let mut device = self.device();
        // Fails only when raising the interrupt does, which KVM does for no edge-triggered line.
        if let Err(error) = device.uart.write(offset, value) {
            tracing::warn!(?error, offset, "serial port write");
        }
        device.pump();
    }

    pub(crate) fn read_register(&self, offset: u8) -> u8 {
        let mut device = self.device();
        let value = device.uart.read(offset);
        device.pump();
        value
    }

    pub(crate) fn snapshot(&self) -> SerialSnapshot {
        let device = self.device();
        let s = device.uart.state();
        SerialSnapshot {
            divisor: [s.baud_divisor_low, s.baud_divisor_high],
            interrupt_enable: s.interrupt_enable,
            interrupt_identification: s.interrupt_identification,
            line_control: s.line_control,
            line_status: s.line_status,
            modem_control: s.modem_control,
            modem_status: s.modem_status,
            scratch: s.scratch,
            in_buffer: s.in_buffer,
            input: device.input.save(),
        }
    }
}

impl Device {
    /// Moves waiting input into the FIFO as far as it has room, once the guest has opened its port:
    /// a starting driver discards the input that it finds there.
    fn pump(&mut self) {
        if self.input.is_empty() || !is_open(&self.uart.state()) {
            return;
        }
        while !self.input.is_empty() && self.uart.fifo_capacity() > 0 {
            match self.uart.enqueue_raw_bytes(self.input.waiting()) {
                // Loop-back mode takes none.
                Ok(0) | Err(_) => return,
                Ok(taken) => self.input.consume(taken),
            }
        }
    }
}

/// Returns true if the receive interrupt is enabled and "data terminal ready" is set: while it
/// looks for ports, a driver sets only one of them.
fn is_open(state: &SerialState) -> bool {
    const IER_RECEIVE: u8 = 1;
    const MCR_DATA_TERMINAL_READY: u8 = 1;
    state.interrupt_enable & IER_RECEIVE != 0 && state.modem_control & MCR_DATA_TERMINAL_READY != 0
}

impl SerialSnapshot {
    fn registers(&self) -> SerialState {
        SerialState {
            baud_divisor_low: self.divisor[0],
            baud_divisor_high: self.divisor[1],
            interrupt_enable: self.interrupt_enable,
            interrupt_identification: self.interrupt_identification,
            line_control: self.line_control,
            line_status: self.line_status,
            modem_control: self.modem_control,
            modem_status: self.modem_status,
            scratch: self.scratch,
            in_buffer: self.in_buffer.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::devices::input::INPUT_MAX;

    const DATA: u8 = 0;
    const INTERRUPT_ENABLE: u8 = 1;
    const MODEM_CONTROL: u8 = 4;
    /// Modem control: "data terminal ready", without and with loop-back.
    const READY: u8 = 1;
    const LOOP: u8 = 0x11;
    /// Bytes of the FIFO of vm-superio's 16550.
    const FIFO: usize = 64;

    fn port(from: Option<&SerialSnapshot>) -> SerialPort {
        SerialPort::new(Arc::new(|| Ok(())), None, from).unwrap()
    }

    /// Firecracker, and vm-superio (CVE-2020-27173): input that the guest does not read.
    #[test]
    fn cve_2020_27174_input_that_is_not_read_has_a_bound() {
        let port = port(None);
        let full = std::iter::repeat_with(|| port.send(&[b'x'; 1000])).find_map(Result::err);
        let full = full.unwrap();
        assert!(full.waiting <= INPUT_MAX && full.waiting > INPUT_MAX - 1000);
        port.write_register(INTERRUPT_ENABLE, 1);
        port.write_register(MODEM_CONTROL, READY);
        assert_eq!(port.snapshot().in_buffer.len(), FIFO, "the port is open");
        port.write_register(MODEM_CONTROL, LOOP);
        (0..100_000).for_each(|_| port.write_register(DATA, b'y'));
        let saved = port.snapshot();
        assert_eq!((saved.in_buffer.len(), saved.input.len()), (FIFO, full.waiting - FIFO));
        // All of it arrives, in the end.
        port.write_register(MODEM_CONTROL, READY);
        assert!((0..full.waiting).all(|_| port.read_register(DATA) == b'x'));
        assert_eq!(port.read_register(DATA), 0);
    }

    proptest! {
        /// Whatever a guest writes: no panic, bounds hold, and what is saved can be restored.
        #[test]
        fn any_accesses_are_survived(
            accesses in prop::collection::vec((any::<bool>(), 0..8_u8, any::<u8>()), 0..200),
        ) {
            let port = port(None);
            for (writes, offset, value) in accesses {
                if writes {
                    port.write_register(offset, value);
                } else {
                    port.read_register(offset);
                    port.send(&[value; 9]).unwrap();
                }
            }
            let saved = port.snapshot();
            prop_assert!(saved.in_buffer.len() <= FIFO);
            let copy = super::tests::port(Some(&saved));
            prop_assert_eq!(copy.snapshot().in_buffer, saved.in_buffer);
        }
    }
}
