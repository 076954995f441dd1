//! File descriptors: how many connections there may be.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Descriptors that the service asks its host for.
const WANTED: u64 = 1024;
/// Descriptors that are for no connection: vCPUs, files, pipes.
const RESERVED: u64 = 256;

/// Most connections of each listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Connections {
    pub(super) unix: usize,
    pub(super) tcp: usize,
}

/// Divides the descriptors that this process may have among the listeners. Raises the limit of the
/// process first, as far as its hard limit, where it is low.
pub(super) fn connections() -> Connections {
    let limit = descriptors().unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot learn how many files may be open");
        WANTED
    });
    let connections = divide(limit);
    if limit < WANTED {
        tracing::warn!(
            limit,
            ?connections,
            "few files may be open (ulimit -n): fewer connections are taken"
        );
    }
    connections
}

fn descriptors() -> nix::Result<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let wanted = WANTED.min(hard);
    if soft >= wanted {
        return Ok(soft);
    }
    setrlimit(Resource::RLIMIT_NOFILE, wanted, hard)?;
    Ok(wanted)
}

/// The unix socket has twice the share of TCP: clients of TCP, with a token or without, never take
/// the descriptors of its clients.
fn divide(limit: u64) -> Connections {
    let limit = limit.min(WANTED);
    let share = limit.saturating_sub(RESERVED).max(limit / 2) / 3;
    let tcp = usize::try_from(share).unwrap_or(usize::MAX).max(1);
    Connections { unix: 2 * tcp, tcp }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_descriptors_for_the_rest() {
        assert_eq!(divide(1024), Connections { unix: 512, tcp: 256 });
        assert_eq!(divide(u64::MAX), divide(1024));
        for limit in [8, 64, 256, 300, 1024] {
            let Connections { unix, tcp } = divide(limit);
            assert!(unix > 0 && tcp > 0, "{limit}");
            assert!(((unix + tcp) as u64) <= limit * 3 / 4, "{limit}");
        }
    }
}
