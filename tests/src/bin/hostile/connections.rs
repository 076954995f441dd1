//! Clients on TCP without the token, and clients that send anything but a request.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use exoprobe_tests::Service;

use crate::attack::{Ground, LOG_MAX, TOKEN, Tally, check_alive, end};

/// Open files of the attacked service.
const DESCRIPTORS: u32 = 256;
/// Connections of a flood: more than the service takes.
const FLOOD: usize = 400;
/// Longest that a connection of ours waits.
const WAIT: Duration = Duration::from_secs(2);
/// Most memory that a flood may cost, in KiB.
const MOST_KIB: u64 = 64 << 10;

fn target(service: &Service) -> SocketAddr {
    service.tcp_address().parse().expect("an address")
}

fn connect(target: &SocketAddr) -> Option<TcpStream> {
    let stream = TcpStream::connect_timeout(target, WAIT).ok()?;
    stream.set_read_timeout(Some(WAIT)).ok()?;
    stream.set_write_timeout(Some(WAIT)).ok()?;
    Some(stream)
}

/// Connections that send nothing, a head that does not end, or a body that does not.
pub(crate) fn silent(ground: &mut Ground, tally: &mut Tally) {
    let service = ground.tcp_service(DESCRIPTORS);
    let target = target(&service);
    let before = service.resident_kib();
    while ground.goes_on(tally) {
        let mut open = Vec::new();
        for index in 0..FLOOD {
            // No more are taken, and the queue is full.
            let Some(mut stream) = connect(&target) else { break };
            let part: &[u8] = match index % 4 {
                0 => b"",
                1 => b"GET /v1/vm HTTP/1.1\r\nx: ",
                2 => b"POST /v1/probes HTTP/1.1\r\nhost: h\r\ncontent-length: 1000000\r\n\r\nab",
                _ => b"POST /v1/probes HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\nfffffff\r\n",
            };
            drop(stream.write_all(part));
            open.push(stream);
            tally.times += 1;
            if index % 50 == 0 {
                check_alive(&service, tally);
            }
        }
        let dripping_ends = Instant::now() + WAIT;
        while Instant::now() < dripping_ends {
            for stream in open.iter_mut().step_by(7) {
                drop(stream.write_all(b"y"));
            }
            check_alive(&service, tally);
            std::thread::sleep(Duration::from_millis(200));
        }
        let now = service.resident_kib();
        tally.check(now.saturating_sub(before) < MOST_KIB, || {
            format!("{} connections: {before} KiB, then {now} KiB", open.len())
        });
    }
    tally.check(service.log().len() < LOG_MAX, || format!("a log of {}", service.log().len()));
    end(service, tally);
}

/// Heads that are too large, and bytes that are no HTTP, on both sockets.
pub(crate) fn broken(ground: &mut Ground, tally: &mut Tally) {
    let service = ground.tcp_service(DESCRIPTORS);
    let target = target(&service);
    let before = service.resident_kib();
    while ground.goes_on(tally) {
        let large = vec![b'x'; 400 << 10];
        let noise: Vec<u8> = (0..2000).flat_map(|_| ground.dice.roll().to_le_bytes()).collect();
        let requests = [
            [b"GET /v1/vm HTTP/1.1\r\nhost: h\r\nx: ", &large[..], b"\r\n\r\n"].concat(),
            [b"GET /", &large[..], b" HTTP/1.1\r\nhost: h\r\n\r\n"].concat(),
            [b"GET /v1/vm HTTP/1.1\r\n", &b"a: b\r\n".repeat(3000)[..], b"\r\n"].concat(),
            b"POST /v1/probes HTTP/1.1\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nabcdef"
                .to_vec(),
            b"POST /v1/probes HTTP/1.1\r\ncontent-length: 18446744073709551616\r\n\r\n".to_vec(),
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
            noise,
        ];
        for request in &requests {
            if let Some(stream) = connect(&target) {
                send(stream, request, tally);
            }
            if let Ok(stream) = UnixStream::connect(service.socket()) {
                drop(stream.set_read_timeout(Some(WAIT)));
                drop(stream.set_write_timeout(Some(WAIT)));
                send(stream, request, tally);
            }
            tally.times += 2;
        }
        check_alive(&service, tally);
    }
    let now = service.resident_kib();
    tally.check(now.saturating_sub(before) < MOST_KIB, || format!("{before} KiB, then {now} KiB"));
    end(service, tally);
}

/// Sends; what comes back, if anything does, refuses it.
fn send(mut stream: impl Read + Write, request: &[u8], tally: &mut Tally) {
    drop(stream.write_all(request));
    let mut answer = Vec::new();
    drop(stream.take(4096).read_to_end(&mut answer));
    let answer = String::from_utf8_lossy(&answer);
    let taken = answer.starts_with("HTTP/1.1 2") || answer.starts_with("HTTP/1.1 5");
    tally.check(!taken, || format!("a broken request: {answer}"));
}

/// Tokens that are wrong, without end.
pub(crate) fn tokens(ground: &mut Ground, tally: &mut Tally) {
    const AT_ONCE: usize = 16;
    let service = ground.tcp_service(DESCRIPTORS);
    let target = target(&service);
    while ground.goes_on(tally) {
        let wrong: Vec<String> = (0..AT_ONCE)
            .map(|at| match at {
                0 => String::new(),
                1 => TOKEN[..TOKEN.len() - 1].to_owned(),
                2 => format!("{TOKEN}x"),
                _ => format!("{:016x}", ground.dice.roll()),
            })
            .collect();
        // Each waits its second.
        let mut streams = Vec::new();
        for token in wrong {
            let Some(mut stream) = connect(&target) else { continue };
            let request = format!(
                "GET /v1/vm HTTP/1.1\r\nhost: h\r\nconnection: close\r\nauthorization: Bearer {token}\r\n\r\n"
            );
            drop(stream.write_all(request.as_bytes()));
            streams.push(stream);
        }
        for mut stream in streams {
            let mut answer = String::new();
            drop(stream.read_to_string(&mut answer));
            // A slow answer is none of this attack's findings.
            let refused = answer.is_empty() || answer.starts_with("HTTP/1.1 401");
            tally.check(refused, || format!("a wrong token: {answer}"));
            tally.times += 1;
        }
        check_alive(&service, tally);
    }
    tally.check(service.log().len() < LOG_MAX, || format!("a log of {}", service.log().len()));
    end(service, tally);
}
