//! The tracer's options: `trace_options`, and the files of the folder `options`.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::error::TracerError;
use crate::numbers::parse_count;

/// An option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TraceOption {
    /// Functions of back-traces are shown with an offset.
    SymOffset,
    /// Symbols are shown with their addresses.
    SymAddr,
    /// Lines begin with the task, the CPU and the time.
    ContextInfo,
    /// Lines have the five flags.
    IrqInfo,
    /// `trace_marker` takes texts.
    Markers,
}

impl TraceOption {
    /// In the kernel's order.
    pub(crate) const ALL: [Self; 5] =
        [Self::SymOffset, Self::SymAddr, Self::ContextInfo, Self::IrqInfo, Self::Markers];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::SymOffset => "sym-offset",
            Self::SymAddr => "sym-addr",
            Self::ContextInfo => "context-info",
            Self::IrqInfo => "irq-info",
            Self::Markers => "markers",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|option| option.name() == name)
    }

    fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// The options that are set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Options(u8);

impl Default for Options {
    fn default() -> Self {
        let set = [TraceOption::ContextInfo, TraceOption::IrqInfo, TraceOption::Markers];
        Self(set.into_iter().map(TraceOption::bit).sum())
    }
}

impl Options {
    pub(crate) fn has(self, option: TraceOption) -> bool {
        self.0 & option.bit() != 0
    }

    #[cfg(test)]
    pub(crate) fn with(self, option: TraceOption, on: bool) -> Self {
        Self(if on { self.0 | option.bit() } else { self.0 & !option.bit() })
    }

    /// The text of `trace_options`.
    pub(crate) fn listing(self) -> String {
        let line = |option: TraceOption| {
            format!("{}{}\n", if self.has(option) { "" } else { "no" }, option.name())
        };
        TraceOption::ALL.into_iter().map(line).collect()
    }

    /// The text of a file of the folder `options`.
    pub(crate) fn text(self, option: TraceOption) -> String {
        format!("{}\n", u8::from(self.has(option)))
    }
}

/// The options of a tracer.
pub(crate) struct SharedOptions(AtomicU8);

impl Default for SharedOptions {
    fn default() -> Self {
        Self(AtomicU8::new(Options::default().0))
    }
}

impl SharedOptions {
    pub(crate) fn get(&self) -> Options {
        Options(self.0.load(Ordering::Relaxed))
    }

    fn set(&self, option: TraceOption, on: bool) {
        match on {
            true => self.0.fetch_or(option.bit(), Ordering::Relaxed),
            false => self.0.fetch_and(!option.bit(), Ordering::Relaxed),
        };
    }

    /// Writes to `trace_options`: the name of an option sets it, with `no` before it clears it.
    ///
    /// # Errors
    /// [`TracerError`], `EINVAL`.
    pub(crate) fn write(&self, text: &str) -> Result<(), TracerError> {
        let name = text.trim_ascii();
        let (on, plain) = match name.strip_prefix("no") {
            Some(plain) => (false, plain),
            None => (true, name),
        };
        let option = TraceOption::named(plain).ok_or_else(|| {
            let shown: String = name.chars().take(40).collect();
            let message = format!("there is no option `{shown}` here: see trace_options");
            TracerError::new("EINVAL", message)
        })?;
        self.set(option, on);
        Ok(())
    }

    /// Writes to a file of the folder `options`.
    ///
    /// # Errors
    /// [`TracerError`], `EINVAL`.
    pub(crate) fn write_one(&self, option: TraceOption, text: &str) -> Result<(), TracerError> {
        match parse_count(text)? {
            0 => self.set(option, false),
            1 => self.set(option, true),
            _ => return Err(TracerError::new("EINVAL", "write 1 or 0")),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_set_and_cleared_by_name_and_file() {
        let options = SharedOptions::default();
        let defaults = "nosym-offset\nnosym-addr\ncontext-info\nirq-info\nmarkers\n";
        assert_eq!(options.get().listing(), defaults);
        options.write("sym-offset\n").unwrap();
        options.write(" noirq-info ").unwrap();
        options.write_one(TraceOption::Markers, "0\n").unwrap();
        let listing = "sym-offset\nnosym-addr\ncontext-info\nnoirq-info\nnomarkers\n";
        assert_eq!(options.get().listing(), listing);
        for refused in ["", "no", "overwrite", "nonosym-addr", "sym-offset markers", "1"] {
            assert_eq!(options.write(refused).unwrap_err().errno, "EINVAL", "{refused}");
        }
        for refused in ["", "2", "on", "-1"] {
            let error = options.write_one(TraceOption::SymAddr, refused).unwrap_err();
            assert_eq!(error.errno, "EINVAL", "{refused}");
        }
        assert_eq!(options.get().listing(), listing);
        assert_eq!(options.get().text(TraceOption::SymOffset), "1\n");
        assert_eq!(options.get().text(TraceOption::Markers), "0\n");
    }
}
