//! Sessions of histograms whose variables others refer to.

use super::super::session::Session;

/// Histograms that refer to the variables of another event's, at the top or in an instance, whose
/// folder `at` is. No shell hits them.
pub(super) fn of_other_events(at: &str, texts: impl Iterator<Item = String>) -> Vec<Session> {
    let file = |event: &str| match event {
        "g" => format!("{at}events/g/e/trigger"),
        event => format!("{at}events/kprobes/{event}/trigger"),
    };
    let define = || {
        let defined = Session::of_definitions(&[
            "p:e __x64_sys_sethostname a=%di b=%si",
            "p:f __x64_sys_setdomainname a=%di b=%si",
            "p:g/e __x64_sys_sethostname a=%di",
        ]);
        let made = at.strip_suffix('/').into_iter().fold(defined, Session::make_folder);
        made.append(&file("e"), "hist:keys=a:qa=a,qc=5,qz=0,qt=common_timestamp.usecs")
    };
    let read = |session: Session| {
        let session = session.read(&file("e")).read(&file("f")).read(&file("g"));
        let session = session.read(&format!("{at}events/kprobes/f/hist"));
        if at.is_empty() { session } else { session.read(&format!("{at}error_log")) }
    };
    let mut sessions = Vec::new();
    for text in texts {
        let words = text.split(" ; ").map(|word| word.split_once(' ').expect("an event"));
        let written =
            words.fold(define(), |session, (event, command)| session.append(&file(event), command));
        sessions.push(read(written));
    }
    let referring = || define().append(&file("f"), "hist:keys=a:z=b-$qa");
    sessions.push(read(referring().replace(&file("e"), "hist:keys=a.hex")));
    sessions.push(read(referring().replace(&file("f"), "hist:keys=a.hex")));
    if at.is_empty() {
        let deleted = ["-:kprobes/e", "-:kprobes/f"];
        sessions.push(read(referring().append_each("kprobe_events", deleted)));
    }
    sessions
}
