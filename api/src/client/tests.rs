//! The client against a fake service.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::RawQuery;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use super::testing::{Fake, broken, endless, event_json};
use super::*;

const PATIENCE: Patience =
    Patience { total: Duration::from_millis(500), first: Duration::from_millis(10) };

fn follow() -> EventQuery {
    EventQuery { follow: true, ..EventQuery::default() }
}

fn seqs(items: &[EventItem]) -> Vec<u64> {
    let seq = |item: &EventItem| match &item.line {
        EventLine::Event(event) => event.seq,
        EventLine::Lost { .. } => 0,
    };
    items.iter().map(seq).collect()
}

async fn read_all(reader: &mut EventReader<'_>) -> (Vec<u64>, Option<ClientError>) {
    let mut read = Vec::new();
    loop {
        match reader.next().await {
            Ok(Some(items)) => read.extend(seqs(&items)),
            Ok(None) => return (read, None),
            Err(error) => return (read, Some(error)),
        }
    }
}

/// Answers one request after the other with `bodies`, and notes the queries.
fn scripted(bodies: Vec<Body>) -> (Router, Arc<Mutex<Vec<String>>>) {
    let queries = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&queries);
    let bodies = Arc::new(Mutex::new(bodies.into_iter()));
    let answer = async move |RawQuery(query): RawQuery| {
        noted.lock().unwrap().push(query.unwrap_or_default());
        bodies.lock().unwrap().next().unwrap_or_else(|| broken(String::new()))
    };
    (Router::new().route("/v1/events", get(answer)), queries)
}

#[tokio::test]
async fn a_follower_goes_on_behind_the_last_event() {
    let first = format!("{}\n{}\n{{\"seq\":3", event_json(1), event_json(2));
    let second = format!("{}\n{{\"lost\":4,\"next\":8}}\n", event_json(3));
    let (router, queries) =
        scripted(vec![broken(first), broken(second), Body::from(event_json(8) + "\n")]);
    let fake = Fake::serve(router);
    let client = fake.client();
    let mut reader = EventReader::new(&client, follow(), PATIENCE);
    let (read, error) = read_all(&mut reader).await;
    assert!(matches!(error, Some(ClientError::Ended)), "an unexpected end: {error:?}");
    assert_eq!(read, [1, 2, 3, 0, 8]);
    assert_eq!(
        *queries.lock().unwrap(),
        ["follow=true", "from=3&follow=true", "from=8&follow=true"]
    );
}

#[tokio::test]
async fn a_follower_gives_up_when_nobody_comes_back() {
    let (router, _) = scripted(vec![broken(event_json(1) + "\n")]);
    let fake = Fake::serve(router);
    let client = fake.client();
    let mut reader = EventReader::new(&client, follow(), PATIENCE);
    assert_eq!(seqs(&reader.next().await.unwrap().unwrap()), [1]);
    fake.stop();
    let (read, error) = read_all(&mut reader).await;
    assert!(read.is_empty());
    assert!(matches!(error, Some(ClientError::Connect { .. })), "{error:?}");
}

#[tokio::test]
async fn a_stream_that_only_breaks_is_given_up() {
    let (router, queries) = scripted(Vec::new());
    let fake = Fake::serve(router);
    let client = fake.client();
    let (read, error) = read_all(&mut EventReader::new(&client, follow(), PATIENCE)).await;
    assert!(read.is_empty() && matches!(error, Some(ClientError::Broken(_))), "{error:?}");
    assert!(queries.lock().unwrap().len() > 2);
}

#[tokio::test]
async fn a_follower_stops_at_its_limit() {
    let text: String = (1..=5).map(|seq| event_json(seq) + "\n").collect();
    let (router, queries) = scripted(vec![endless(text)]);
    let fake = Fake::serve(router);
    let client = fake.client();
    let query = EventQuery { from: Some(1), limit: Some(3), follow: true, ..EventQuery::default() };
    let (read, error) = read_all(&mut EventReader::new(&client, query, PATIENCE)).await;
    assert_eq!((read, error.is_none()), (vec![1, 2, 3], true));
    assert_eq!(*queries.lock().unwrap(), ["from=1&limit=3&follow=true"]);
}

#[tokio::test]
async fn all_events_are_read_page_by_page() {
    let page = |seqs: std::ops::RangeInclusive<u64>| {
        Body::from(seqs.map(|seq| event_json(seq) + "\n").collect::<String>())
    };
    let (router, queries) = scripted(vec![page(1..=1000), page(1001..=1003)]);
    let fake = Fake::serve(router);
    let client = fake.client();
    let mut reader = EventReader::new(&client, EventQuery::default(), PATIENCE);
    let (read, error) = read_all(&mut reader).await;
    assert!(error.is_none(), "{error:?}");
    assert!(read.iter().copied().eq(1..=1003));
    assert_eq!(*queries.lock().unwrap(), ["limit=1000", "from=1001&limit=1000"]);
}

#[tokio::test]
async fn a_service_that_was_never_there_is_not_waited_for() {
    let target = Target::Unix("/nonexistent/socket".into());
    let client = Client::new(target, None).unwrap();
    let long = Patience { total: Duration::from_secs(60), ..PATIENCE };
    let error = EventReader::new(&client, follow(), long).next().await.unwrap_err();
    assert!(matches!(error, ClientError::Connect { .. }));
}

#[tokio::test]
async fn refusals_become_problems() {
    let refuse = async || {
        let body = r#"{"title":"t","status":409,"detail":"taken","code":"EEXIST","index":1}"#;
        (StatusCode::CONFLICT, body)
    };
    let fake = Fake::serve(Router::new().route("/v1/probes", get(refuse)));
    let error = fake.client().get(&ApiPath::new(&["probes"])).await.unwrap_err();
    let ClientError::Refused(problem) = error else { panic!("{error:?}") };
    assert_eq!((problem.status, problem.index), (409, Some(1)));
    assert_eq!(problem.to_string(), "taken (EEXIST)");
}

#[tokio::test]
async fn the_token_goes_over_tcp_only() {
    let show = async |headers: HeaderMap| {
        let header =
            |name: &str| headers.get(name).map_or("none", |v| v.to_str().unwrap()).to_owned();
        format!("{} {}", header("host"), header("authorization"))
    };
    let router = Router::new().route("/v1/vm", get(show));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let authority = listener.local_addr().unwrap().to_string();
    let server = tokio::spawn(async { axum::serve(listener, router).await.unwrap() });
    let target = Target::from_url(&format!("http://{authority}")).unwrap();
    let path = ApiPath::new(&["vm"]);
    let answer = Client::new(target.clone(), Some("secret")).unwrap().get(&path).await.unwrap();
    assert_eq!(answer, format!("{authority} Bearer secret"));
    assert!(matches!(Client::new(target, Some("a\nb")), Err(ClientError::Token)));
    server.abort();

    let fake = Fake::serve(Router::new().route("/v1/vm", get(show)));
    let client = Client::new(fake.client().target().clone(), Some("secret")).unwrap();
    assert_eq!(client.get(&path).await.unwrap(), "localhost none");
}

/// An answer to a command with this number.
type Answer = fn(u32) -> Body;

/// The number of a command line.
fn number(line: &[u8]) -> u32 {
    let line = std::str::from_utf8(line).unwrap();
    line.strip_prefix('#').unwrap().split(' ').next().unwrap().parse().unwrap()
}

/// A serial port that has `old` in its log and answers a command with `answers`, one a stream.
fn serial_port(old: &'static str, answers: Vec<Answer>) -> (Router, Arc<Mutex<Vec<u8>>>) {
    let answers = Arc::new(Mutex::new(answers.into_iter()));
    let written = Arc::new(Mutex::new(Vec::new()));
    let (writing, sent) = (Arc::clone(&written), Arc::clone(&written));
    let read = async move |RawQuery(query): RawQuery| -> Response {
        if query.is_none() {
            return ([("exoprobe-next-offset", old.len().to_string())], old).into_response();
        }
        assert_eq!(query, Some(format!("from={}&follow=true", old.len())));
        let answer = answers.lock().unwrap().next();
        let Some(answer) = answer else { return endless(String::new()).into_response() };
        answer(number(&sent.lock().unwrap())).into_response()
    };
    let write = async move |body: hyper::body::Bytes| {
        writing.lock().unwrap().extend_from_slice(&body);
        StatusCode::NO_CONTENT
    };
    (Router::new().route("/v1/vm/serial/1", get(read).post(write)), written)
}

#[tokio::test]
async fn a_command_gets_its_own_answer() {
    let answers: Vec<Answer> = vec![
        |n| broken(format!("noise\r\n#{n} do")),
        // Those of an earlier command, of another client's and of one typed by hand come first.
        |n| {
            let other = n.wrapping_add(1);
            endless(format!("done 1\r\n#{other} done 2\r\n#{n} done 5\r\n#{n} error 6\n"))
        },
    ];
    let (router, written) = serial_port("done 4\n", answers);
    let fake = Fake::serve(router);
    let reply = fake.client().command("getpid 5").await.unwrap();
    assert_eq!(reply, Reply::Done("done 5".to_owned()));
    assert!(written.lock().unwrap().ends_with(b" getpid 5\n"));
}

#[tokio::test]
async fn a_command_fails_or_ends() {
    let cases: [(Answer, Reply); 2] = [
        (|n| endless(format!("#{n} error no\n")), Reply::Failed("error no".to_owned())),
        (|_| Body::from("noise\n"), Reply::Ended),
    ];
    for (answer, expected) in cases {
        let fake = Fake::serve(serial_port("", vec![answer]).0);
        assert_eq!(fake.client().command("x").await.unwrap(), expected);
    }
}

#[test]
fn only_ones_own_services_and_roots_are_trusted() {
    assert!(may_serve(1000, 1000) && may_serve(0, 1000) && may_serve(0, 0));
    assert!(!may_serve(1000, 0) && !may_serve(1001, 1000));
}

/// As in `/tmp`, where any user can listen first.
#[tokio::test]
async fn a_service_of_another_user_is_sent_nothing() {
    if crate::user::id() != 0 {
        crate::log::say!("skipped, not run by root: a_service_of_another_user_is_sent_nothing");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), Permissions::from_mode(0o1777)).unwrap();
    let socket = dir.path().join("s");
    let path = socket.clone();
    let listen = move || {
        // SAFETY: the call takes numbers alone; made without the C library, it is this thread's.
        let changed = unsafe { libc::syscall(libc::SYS_setresuid, -1, 65534, -1) };
        assert_eq!(changed, 0);
        UnixListener::bind(path).unwrap()
    };
    let listener = std::thread::spawn(listen).join().unwrap();
    listener.set_nonblocking(true).unwrap();
    let client = Client::new(Target::Unix(socket), Some("the-token-of-root")).unwrap();
    let path = ApiPath::new(&["vm"]);
    let error = client.get(&path).await.unwrap_err();
    assert!(matches!(error, ClientError::ForeignPeer { owner: 65534, .. }), "{error}");
    let (mut accepted, _) = listener.accept().unwrap();
    assert_eq!(std::io::Read::read(&mut accepted, &mut [0; 16]).unwrap(), 0);
}

#[test]
fn the_owner_of_a_closed_folder_is_trusted_there() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let own = crate::user::id();
    assert!(owns_folder_of(&socket, own) && !owns_folder_of(&socket, own + 1));
    for mode in [0o1777, 0o770, 0o702] {
        std::fs::set_permissions(dir.path(), Permissions::from_mode(mode)).unwrap();
        assert!(!owns_folder_of(&socket, own), "{mode:o}");
    }
    assert!(!owns_folder_of(std::path::Path::new("/nonexistent/s"), own));
}
