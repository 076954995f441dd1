//! The proxy of docs/security.md, as it stands there: TLS with clients' certificates, before the
//! unix socket; and TCP without it, on loopback alone.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use exoprobe_tests::harness::Case;
use exoprobe_tests::{PATIENCE, Running, Service, TestGuest, cases, finish};

use crate::support::refused::refused;

pub(crate) const CASES: &[Case] = cases![
    a_proxy_lets_clients_with_certificates_in needs [Kvm, Stunnel, Shell, Loopback, Repeat],
    tcp_is_served_on_loopback_alone needs [Kvm, Repeat],
];

/// Stands before each block of the document that this suite runs.
const MARK: &str = "<!-- run by suite/service/proxy.rs -->\n";
const DOCUMENT: &str = include_str!("../../../../docs/security.md");

/// The document's block of this language.
fn block(language: &str) -> &'static str {
    let start = format!("{MARK}```{language}\n");
    let (_, rest) = DOCUMENT.split_once(&start).expect("the document has the block");
    rest.split_once("```").expect("it ends").0
}

/// Makes certificates in a folder, as the document does.
fn certificates(dir: &Path) {
    std::fs::create_dir(dir).unwrap();
    let mut bash = Command::new("bash");
    let made = finish(bash.args(["-euc", block("sh")]).current_dir(dir), PATIENCE);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

fn a_proxy_lets_clients_with_certificates_in() {
    let dir = tempfile::tempdir().unwrap();
    let [ours, others] = ["ours", "others"].map(|name| dir.path().join(name));
    certificates(&ours);
    certificates(&others);
    let snapshot = TestGuest::snapshot(1);
    let service = Service::start(&["--restore", snapshot.to_str().unwrap()]);
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let config = block("ini")
        .replace("0.0.0.0:8443", &format!("127.0.0.1:{port}"))
        .replace("/run/exoprobe/guest1/jail/exoprobe.sock", service.socket().to_str().unwrap())
        .replace("/etc/exoprobe/tls", ours.to_str().unwrap());
    let file = dir.path().join("exoprobe.conf");
    std::fs::write(&file, format!("foreground = yes\npid =\n{config}")).unwrap();
    let proxy = Running::spawn(Command::new("stunnel").arg(&file));
    let curl = |certificate: Option<&Path>| -> Output {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--fail", "--cacert"])
            .arg(ours.join("authority.pem"));
        if let Some(of) = certificate {
            curl.arg("--cert").arg(of.join("client.pem")).arg("--key").arg(of.join("client.key"));
        }
        finish(curl.arg(format!("https://localhost:{port}/v1/vm")), PATIENCE)
    };
    let deadline = Instant::now() + PATIENCE;
    let answer = loop {
        let output = curl(Some(&ours));
        if output.status.success() {
            break String::from_utf8(output.stdout).unwrap();
        }
        assert!(Instant::now() < deadline, "{output:?}; {proxy}");
        std::thread::sleep(Duration::from_millis(100));
    };
    let vm: serde_json::Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(vm["state"], "running");
    for certificate in [None, Some(&*others)] {
        let output = curl(certificate);
        assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
    }
    let log = proxy.stderr();
    assert!(log.contains("peer did not return a certificate"), "{log}");
}

fn tcp_is_served_on_loopback_alone() {
    let snapshot = TestGuest::snapshot(1);
    let snapshot = snapshot.to_str().unwrap();
    for address in ["0.0.0.0:8080", "[::]:8080", "192.0.2.1:8080", "[::ffff:192.0.2.1]:8080"] {
        let error = refused(&["--restore", snapshot, "--listen", address]);
        assert!(
            error.contains("is no loopback address")
                && error.contains("ssh -L 8080:127.0.0.1:8080")
                && error.contains("docs/security.md"),
            "{error}"
        );
    }
    // With a loopback address, what is missing is the token.
    for address in ["127.0.0.2:0", "[::1]:0"] {
        let error = refused(&["--restore", snapshot, "--listen", address]);
        assert!(error.contains("needs a token"), "{error}");
    }
}
