//! What users wait for: requests with a thousand probes.

pub(crate) fn run() {}
