//! HTTP requests to the routes that need no machine, and bodies and queries of those that do.

use std::sync::LazyLock;

use exoprobe::http::DrivenHttp;

static HTTP: LazyLock<DrivenHttp> = LazyLock::new(DrivenHttp::default);

pub(crate) fn run(data: &[u8]) {
    HTTP.drive(data);
}
