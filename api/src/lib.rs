//! The service around the probe engine: HTTP with JSON, and the command line.
//!
//! This layer verifies what comes in, converts it, and hands it on; it decides nothing. A
//! [`service::Service`] owns one guest and its engine, [`http`] speaks to clients, and [`run`] is
//! `exoprobe run`, which ties them to sockets and signals. [`client`] speaks to a service, and
//! [`cli`] is the program around it all.

pub mod cli;
pub mod client;
mod fast_boot;
pub mod http;
mod log;
pub mod machine_file;
mod mount;
pub mod run;
mod runtime_folder;
pub mod sandbox;
mod scripts;
pub mod service;
mod token_file;
mod user;

use std::path::PathBuf;

pub use http::openapi_json;
#[cfg(any(test, feature = "testing"))]
pub use mount::DrivenMount;
#[cfg(feature = "testing")]
pub use scripts::DrivenScript;

/// Where the service listens, and clients look for it, by default:
/// `$XDG_RUNTIME_DIR/exoprobe.sock`. Without that variable `/run/user/UID/exoprobe.sock`, and
/// `/tmp/exoprobe-UID.sock` where that folder is not there.
#[must_use]
pub fn default_socket() -> PathBuf {
    match runtime_folder::of_session() {
        Some(dir) => dir.join("exoprobe.sock"),
        None => PathBuf::from(format!("/tmp/exoprobe-{}.sock", user::id())),
    }
}
