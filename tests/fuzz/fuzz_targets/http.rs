//! HTTP requests to the routes that need no machine, and bodies and queries of those that do.
#![no_main]

use std::sync::LazyLock;

use exoprobe::http::DrivenHttp;
use libfuzzer_sys::fuzz_target;

static HTTP: LazyLock<DrivenHttp> = LazyLock::new(DrivenHttp::default);

fuzz_target!(|data: &[u8]| HTTP.drive(data));
