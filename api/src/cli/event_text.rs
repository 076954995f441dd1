//! An event for people.

use anstyle::Style;
use serde_json::Value;

use super::color::Palette;
use super::format::{printable, scalar};
use super::latency::duration;
use crate::client::{EventRecord, StackFrame};

/// An event as ftrace's `trace` shows it, its back-trace on lines of their own. `caller` is where a
/// return probe's function returned to, where that is known by name.
pub(super) fn event_text(event: &EventRecord, caller: Option<&str>, palette: &Palette) -> String {
    let Palette { when, task, name, .. } = palette;
    let EventRecord { vcpu, time, .. } = event;
    let comm = printable(event.comm.as_deref().unwrap_or("<...>"));
    let pid = event.pid.map_or("?".to_owned(), |pid| pid.to_string());
    let mut text = format!(
        "{task}{comm:>16}-{pid:<7}{task:#} {when}[{vcpu:03}] {time:>13.6}:{when:#} {name}{}{name:#}: {}",
        printable(&event.event),
        hit(event, caller, palette.place),
    );
    let key = palette.key;
    for (name, value) in &event.args {
        let name = printable(name);
        text.push_str(&format!(" {key}{name}{key:#}={}", argument(value, palette)));
    }
    let style = palette.place;
    for frame in &event.stack {
        let place = frame_place(frame);
        text.push_str(&format!("\n        => {style}{}{style:#}", printable(&place)));
    }
    text
}

/// Line in place of events that this reader was too slow for.
pub(super) fn lost_text(lost: u64, palette: &Palette) -> String {
    let style = palette.lost;
    format!("{style}-- lost {lost} events --{style:#}")
}

fn hit(event: &EventRecord, caller: Option<&str>, style: Style) -> String {
    let EventRecord { symbol_name, offset, addr, .. } = event;
    match &event.ret_addr {
        Some(ret_addr) => {
            let to = printable(caller.unwrap_or(ret_addr));
            let from = printable(symbol_name.as_ref().unwrap_or(addr));
            let took = event.duration_ns.map(|took| format!(" {}", duration(took)));
            let took = took.unwrap_or_default();
            format!("({style}{to}{style:#} <- {style}{from}{style:#}){took}")
        }
        None => {
            let place = printable(&place(symbol_name.as_deref(), *offset, addr));
            format!("({style}{place}{style:#})")
        }
    }
}

/// `SYMBOL+0xOFFSET`, or the address outside all symbols.
pub(super) fn place(symbol: Option<&str>, offset: u64, addr: &str) -> String {
    match symbol {
        Some(symbol) => format!("{symbol}+{offset:#x}"),
        None => addr.to_owned(),
    }
}

/// The place of a frame of a back-trace.
pub(super) fn frame_place(frame: &StackFrame) -> String {
    place(frame.symbol_name.as_deref(), frame.offset, &frame.addr)
}

/// An argument's value, text in quotes as ftrace shows it.
fn argument(value: &Value, palette: &Palette) -> String {
    match value {
        Value::String(text) if is_fault(text) => {
            let style = palette.fault;
            format!("{style}{text}{style:#}")
        }
        Value::String(text) if number(text).is_none() => format!("\"{}\"", printable(text)),
        other => printable(&scalar(other)),
    }
}

/// Text of a value that could not be read.
pub(super) fn is_fault(text: &str) -> bool {
    text == "(fault)"
}

/// A number in hexadecimal digits as events have it, which in JSON is text, too.
pub(super) fn number(text: &str) -> Option<u64> {
    let number = u64::from_str_radix(text.strip_prefix("0x")?, 16).ok()?;
    (format!("{number:#x}") == text).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(event: &EventRecord, caller: Option<&str>) -> String {
        event_text(event, caller, &Palette::PLAIN)
    }

    #[test]
    fn events_look_like_ftrace() {
        let mut event: EventRecord = serde_json::from_str(
            r#"{"seq":7,"time":12.5,"vcpu":1,"pid":1,"comm":"init","group":"kprobes","event":"getpid",
                "symbol_name":"__x64_sys_getpid","offset":4,"addr":"0xffffffff81000004",
                "args":{"arg1":"0x1f","b":-3,"c":"(fault)","d":"a\u001bb","e":"0x01"}}"#,
        )
        .unwrap();
        assert_eq!(
            plain(&event, None),
            "            init-1       [001]     12.500000: getpid: (__x64_sys_getpid+0x4) \
             arg1=0x1f b=-3 c=(fault) d=\"a\\u{1b}b\" e=\"0x01\""
        );
        event.symbol_name = None;
        event.args.clear();
        (event.pid, event.comm) = (None, None);
        assert_eq!(
            plain(&event, None),
            "           <...>-?       [001]     12.500000: getpid: (0xffffffff81000004)"
        );
    }

    #[test]
    fn returns_tell_where_to_and_back_traces_follow() {
        let mut event: EventRecord = serde_json::from_str(
            r#"{"seq":7,"time":12.5,"vcpu":1,"group":"kprobes","event":"ret",
                "symbol_name":"vfs_read","offset":0,"addr":"0xffffffff81000000",
                "ret_addr":"0xffffffff81000104","duration_ns":1250,"args":{"arg1":"0x1"},
                "stack":[{"addr":"0xffffffff81000000","symbol_name":"vfs_read","offset":0},
                    {"addr":"0xffffffffc0000000","symbol_name":null,"offset":0}]}"#,
        )
        .unwrap();
        let start = "           <...>-?       [001]     12.500000: ret: ";
        let frames = "\n        => vfs_read+0x0\n        => 0xffffffffc0000000";
        assert_eq!(
            plain(&event, None),
            format!("{start}(0xffffffff81000104 <- vfs_read) 1.25us arg1=0x1{frames}")
        );
        assert_eq!(
            plain(&event, Some("ksys_read+0x4f")),
            format!("{start}(ksys_read+0x4f <- vfs_read) 1.25us arg1=0x1{frames}")
        );
        event.stack.clear();
        event.symbol_name = None;
        assert_eq!(
            plain(&event, None),
            format!("{start}(0xffffffff81000104 <- 0xffffffff81000000) 1.25us arg1=0x1")
        );
    }

    #[test]
    fn colours_change_nothing_else_and_the_guest_has_none() {
        let event: EventRecord = serde_json::from_str(
            r#"{"seq":7,"time":12.5,"vcpu":1,"pid":1,"comm":"\u001b[2J","group":"kprobes","event":"e",
                "symbol_name":"f","offset":4,"addr":"0x4","ret_addr":"0x9",
                "args":{"c":"(fault)","d":"\u001b[0m\u009b"},
                "stack":[{"addr":"0x4","symbol_name":"\u001b[1m","offset":0}]}"#,
        )
        .unwrap();
        let colored = event_text(&event, Some("g\u{1b}[5m"), &Palette::COLORED);
        assert_eq!(
            anstream::adapter::strip_str(&colored).to_string(),
            plain(&event, Some("g\u{1b}[5m"))
        );
        assert!(!plain(&event, None).contains(['\u{1b}', '\u{9b}']));
        for (style, text) in [
            (Palette::COLORED.task, "       \\u{1b}[2J-1      "),
            (Palette::COLORED.place, "g\\u{1b}[5m"),
            (Palette::COLORED.fault, "(fault)"),
            (Palette::COLORED.key, "d"),
        ] {
            let styled = format!("{style}{text}{style:#}");
            assert!(colored.contains(&styled), "{styled:?} in {colored:?}");
        }
        let lost = lost_text(3, &Palette::COLORED);
        assert_eq!(lost, "\u{1b}[1m\u{1b}[31m-- lost 3 events --\u{1b}[0m");
    }
}
