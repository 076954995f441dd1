//! Values, maps and formats as bpftrace shows them.

mod histogram;
mod json;
mod map;
mod printer;
mod printf;
mod series;
mod time;
mod value;

pub use printer::Format;
pub(crate) use printer::Printer;
pub(crate) use time::is_time_format;

/// Output that is text of the script's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    Printf,
    Time,
    Join,
    Cat,
    System,
}

/// The line before all other output.
pub(crate) fn attached(format: Format, probes: usize) -> Vec<u8> {
    let plural = if probes == 1 { "" } else { "s" };
    match format {
        Format::Text => format!("Attaching {probes} probe{plural}...\n"),
        Format::Json => {
            format!("{{\"type\": \"attached_probes\", \"data\": {{\"probes\": {probes}}}}}\n")
        }
    }
    .into_bytes()
}

/// A line of JSON of a text.
pub(crate) fn record_line(record: Record, text: &[u8]) -> Vec<u8> {
    let name = match record {
        Record::Printf => "printf",
        Record::Time => "time",
        Record::Join => "join",
        Record::Cat => "cat",
        Record::System => "syscall",
    };
    printer::line(name, &printer::quoted(&String::from_utf8_lossy(text)))
}
