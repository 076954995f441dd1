//! Texts of the kernel's kprobes folder (kprobes.rst, "The kprobes debugfs interface").

use exoprobe_probes::{BlacklistEntry, ProbeKind, ProbeStatus, Reserved, StatusFlag};

/// The text of kprobes/list: a line for each probe.
#[must_use]
pub fn list_text(probes: &[ProbeStatus]) -> String {
    probes.iter().map(list_line).collect()
}

/// The text of kprobes/blacklist: a line for each range where no probe may be. Those where only
/// return probes may not be are left out, as the kernel has no list of them.
#[must_use]
pub fn blacklist_text(entries: &[BlacklistEntry]) -> String {
    let all = entries.iter().filter(|entry| entry.reason != Reserved::NoReturnAddress);
    all.map(|entry| format!("{}-{}\t{}\n", entry.start, entry.end, entry.symbol)).collect()
}

/// A line with the blanks of the kernel's own file: two between columns, one in place of a module's
/// name.
fn list_line(probe: &ProbeStatus) -> String {
    let flags: String = probe.flags.iter().map(|flag| tag(*flag)).collect();
    let addr = probe.addr.unwrap_or_default();
    let kind = match probe.kind {
        ProbeKind::Kprobe => 'k',
        ProbeKind::Kretprobe => 'r',
    };
    match &probe.symbol_name {
        Some(symbol) => {
            let (module, symbol) = symbol.split_once(':').unwrap_or((" ", symbol));
            format!("{:016x}  {kind}  {symbol}+{:#x}  {module} {flags}\n", addr.0, probe.offset)
        }
        None => format!("{:016x}  {kind}  {addr} {flags}\n", addr.0),
    }
}

fn tag(flag: StatusFlag) -> &'static str {
    match flag {
        StatusFlag::Gone => "[GONE]",
        StatusFlag::Pending => "[PENDING]",
        StatusFlag::Disabled => "[DISABLED]",
        StatusFlag::Optimized => "[OPTIMIZED]",
        StatusFlag::Clobbered => "[CLOBBERED]",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use exoprobe_guest::Gva;
    use exoprobe_probes::ProbeState;

    fn probe() -> ProbeStatus {
        ProbeStatus {
            id: 1,
            kind: ProbeKind::Kprobe,
            group: "kprobes".to_owned(),
            event: "e".to_owned(),
            symbol_name: Some("hello:hello_work".to_owned()),
            offset: 1,
            addr: Some(Gva(0xffff_ffff_c000_1001)),
            enabled: true,
            triggers: 0,
            state: ProbeState::Armed,
            flags: Vec::new(),
            optimized: false,
            reason: None,
            unoptimized_reason: None,
            hits: 0,
            nmissed: 0,
            recorded: 0,
            filtered: 0,
            lost: 0,
            maxactive: None,
            active: None,
            latency: None,
            return_mode: None,
            actions: Vec::new(),
            filter: None,
            instruction: None,
            displaced: None,
            definition: String::new(),
            sites: 1,
        }
    }

    #[test]
    fn probes_have_the_kernels_columns() {
        let module = probe();
        assert_eq!(list_line(&module), "ffffffffc0001001  k  hello_work+0x1  hello \n");
        let flags = vec![StatusFlag::Disabled, StatusFlag::Clobbered];
        let symbol_name = Some("work".to_owned());
        let kernel = ProbeStatus { kind: ProbeKind::Kretprobe, symbol_name, flags, ..probe() };
        let unknown = ProbeStatus { symbol_name: None, addr: None, ..kernel.clone() };
        let expected = "ffffffffc0001001  r  work+0x1    [DISABLED][CLOBBERED]\n\
            0000000000000000  r  0x0 [DISABLED][CLOBBERED]\n";
        assert_eq!(list_text(&[kernel, unknown]), expected);
    }

    #[test]
    fn the_blacklist_has_the_kernels_columns() {
        let entry = |symbol: &str, reason| BlacklistEntry {
            start: Gva(0xffff_ffff_8100_0010),
            end: Gva(0xffff_ffff_8100_0080),
            symbol: symbol.to_owned(),
            reason,
        };
        let entries =
            [entry("repeat_nmi", Reserved::NmiEntry), entry("thunk", Reserved::NoReturnAddress)];
        let line = "0xffffffff81000010-0xffffffff81000080\trepeat_nmi\n";
        assert_eq!(blacklist_text(&entries), line);
    }
}
