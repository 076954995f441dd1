//! The statements of a probe, run over hits with values of all kinds.

use std::sync::Arc;

use exoprobe_script::{
    Collected, Datum, Format, Hit, Host, Limits, Memory, NoKernel, Options, Runtime, Script, check,
};

/// Memory of which every second page can be read.
pub(crate) struct Pages;

impl Memory for Pages {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        into.fill(b'a');
        address & 0x1000 == 0
    }
}

impl Host for Pages {
    fn memory(&self) -> Option<&dyn Memory> {
        Some(self)
    }
}

/// So small that inputs reach them.
pub(crate) const LIMITS: Limits = Limits {
    map_entries: 64,
    map_bytes: 1 << 16,
    text_bytes: 256,
    loop_rounds: 256,
    output_bytes: 1 << 16,
    value_bytes: 4096,
};

const STRUCT: &str = "struct s { int a; struct s *next; char name[8]; int low:3; int more[4]; };";

pub(crate) fn run(body: &[u8]) {
    let Ok(body) = std::str::from_utf8(body) else { return };
    let text = format!("{STRUCT}\nBEGIN {{ {body} }}");
    let options = Options { allow_unsafe: true, has_shell: true, ..Options::default() };
    let Ok(script) = Script::parse(&text, &[]) else { return };
    let Ok(program) = check(&script, &NoKernel, &options) else { return };
    let program = Arc::new(program);
    let limits = LIMITS;
    for format in [Format::Text, Format::Json] {
        let mut runtime = Runtime::new(Arc::clone(&program), format, limits);
        let mut out = Collected::default();
        let data =
            [Datum::Int(u64::MAX), Datum::Bytes(b"comm\0"), Datum::Stack(&[1, 2]), Datum::Fault];
        for first in 0..data.len() {
            let mut values = data;
            values.rotate_left(first);
            let hit = Hit { time: u64::MAX - 5, cpu: 1, values: &values };
            for (index, attachment) in program.attachments.iter().enumerate() {
                for body in &attachment.bodies {
                    let before = out.bytes.len();
                    let _ = runtime.run(index, *body, &hit, &Pages, &mut out);
                    assert!(out.bytes.len() - before <= limits.output_bytes);
                }
            }
        }
        finish(&mut runtime, format, &Pages, out);
    }
}

/// Ends a script, and checks its maps and all of its output.
pub(crate) fn finish(runtime: &mut Runtime, format: Format, host: &dyn Host, mut out: Collected) {
    runtime.finish(host, &mut out);
    let maps = serde_json::from_str::<serde_json::Value>(&runtime.maps_json(host));
    assert!(maps.expect("JSON").is_object());
    if format == Format::Json {
        for line in out.bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            assert!(std::str::from_utf8(line).is_ok());
        }
    }
}
