//! `hist` and `stacks` against a fake service.

use super::*;

/// A service with room for one probe; the requests that it had.
fn with_histogram(
    trigger: &'static str,
    histograms: &'static str,
) -> (Fake, Arc<Mutex<Vec<String>>>) {
    let log = Arc::new(Mutex::new(Vec::new()));
    let note = |what: &'static str| {
        let log = Arc::clone(&log);
        move |body: &str| log.lock().unwrap().push(format!("{what} {body}"))
    };
    let (added, set, removed) = (note("add"), note("set"), note("remove"));
    let add = async move |body: String| {
        added(&body);
        (StatusCode::CREATED, PROBE)
    };
    let set = async move |body: String| {
        set(&body);
        let problem = r#"{"detail":"`dx.log2`: no","code":"EINVAL","id":"BAD_FIELD_MODIFIER"}"#;
        match body.starts_with(trigger) {
            true => (StatusCode::NO_CONTENT, ""),
            false => (StatusCode::UNPROCESSABLE_ENTITY, problem),
        }
    };
    let remove = async move || {
        removed("");
        StatusCode::NO_CONTENT
    };
    let router = Router::new()
        .route("/v1/probes", post(add))
        .route("/v1/probes/exoprobe/{event}", get(async || PROBE).delete(remove))
        .route("/v1/probes/exoprobe/{event}/histograms", get(async move || histograms))
        .route("/v1/tracefs/events/exoprobe/{event}/trigger", post(set));
    (Fake::serve(router), log)
}

#[tokio::test]
async fn a_histogram_has_a_probe_of_its_own_and_removes_it() {
    const FOUND: &str = r#"[{"trigger":"","keys":["dx"],"values":[],"hits":9,"dropped":2,
        "entries":[{"keys":["a\u001b"],"hits":5,"sums":[]},{"keys":["(fault)"],"hits":2,"sums":[]}]}]"#;
    let (fake, log) = with_histogram("hist:keys=dx:sort=hitcount.descending:size=2048 if ", FOUND);
    let line = "p:mine f if common_pid == 1";
    let (out, result) = exoprobe(&fake, &["hist", "--for", "0.1", line, "dx=+0(%dx):string"]).await;
    result.unwrap();
    let log = std::mem::take(&mut *log.lock().unwrap());
    let [add, log2, plain, remove] = log.as_slice() else { panic!("{log:?}") };
    let added: serde_json::Value = serde_json::from_str(add.strip_prefix("add ").unwrap()).unwrap();
    assert!(added["event"].as_str().unwrap().starts_with("tmp_"), "{added}");
    assert_eq!(
        (&added["group"], &added["flags"], &added["args"]),
        (
            &"exoprobe".into(),
            &serde_json::json!(["DISABLED"]),
            &serde_json::json!(["dx=+0(%dx):string"])
        )
    );
    assert!(added["filter"].is_null(), "it is the trigger's");
    assert_eq!(log2, "set hist:keys=dx.log2:sort=dx:size=2048 if common_pid == 1");
    assert!(plain.ends_with(" if common_pid == 1") && remove.starts_with("remove"), "{log:?}");
    let lines: Vec<&str> = out.lines().collect();
    assert!(lines[1].starts_with("a\\u{1b} ") && lines[2].starts_with("(fault) "), "{out}");
    assert_eq!(lines[3], "hits 9, entries 2, dropped 2, lost 0, nmissed 0");

    let (fake, log) = with_histogram("none", FOUND);
    let (out, result) = exoprobe(&fake, &["hist", "--for", "60", "f", "dx=%dx"]).await;
    assert_eq!((result.unwrap_err().status(), out.as_str()), (1, ""));
    assert_eq!(log.lock().unwrap().last().unwrap(), "remove ", "refused, and removed");

    let (fake, log) = with_histogram("hist", "[]");
    let (_, result) = exoprobe(&fake, &["stacks", "--for", "0.1", "f"]).await;
    assert!(result.unwrap_err().to_string().contains("another client"), "its trigger has gone");
    assert_eq!(log.lock().unwrap().last().unwrap(), "remove ");
}

#[tokio::test]
async fn stacks_are_shown_as_the_kernel_does_and_folded() {
    const FOUND: &str = r#"[{"trigger":"","keys":["comm","common_stacktrace"],"values":[],"hits":5,"dropped":0,
        "entries":[{"keys":["sh",[{"addr":"0x1","symbol_name":"f","offset":0},
        {"addr":"0x2","symbol_name":"g","offset":16}]],"hits":5,"sums":[]}]}]"#;
    let (fake, log) = with_histogram("hist:keys=comm,common_stacktrace:", FOUND);
    let (out, result) = exoprobe(&fake, &["stacks", "--for", "0.1", "f"]).await;
    result.unwrap();
    let stack = "         5 sh\n           => f+0x0\n           => g+0x10\n\n";
    assert_eq!(out, format!("{stack}hits 5, entries 1, dropped 0, lost 0, nmissed 0\n"));
    let (out, _) = exoprobe(&fake, &["stacks", "--for", "0.1", "--folded", "f"]).await;
    assert_eq!(out, "sh;g;f 5\n");
    let (out, _) = exoprobe(&fake, &["stacks", "--for", "0.1", "--json", "f"]).await;
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&json["hits"], &json["lost"], &json["nmissed"]), (&5.into(), &0.into(), &0.into()));
    assert_eq!(log.lock().unwrap().iter().filter(|line| line.starts_with("remove")).count(), 3);
    for wrong in [&["exoprobe", "stacks", "f", "--for", "0"][..], &["exoprobe", "hist"]] {
        assert!(Cli::try_parse_from(wrong).is_err(), "{wrong:?}");
    }
}
