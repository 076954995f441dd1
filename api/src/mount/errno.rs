//! Errno of a failed request.

use std::io;

use fuser::Errno;

use crate::client::{ClientError, Problem};

/// Names of errnos with their numbers on this host.
macro_rules! errnos {
    ($($name:ident)*) => { [$((stringify!($name), libc::$name)),*] };
}

/// Errors that a service may answer with. Left out are those that the kernel takes as the file
/// system's own (ENOSYS, ENOTCONN) or of the wait (EINTR).
const ERRNOS: [(&str, i32); 34] = errnos![
    E2BIG EACCES EADDRNOTAVAIL EAGAIN EBADF EBUSY EDOM EEXIST EFAULT EFBIG EILSEQ EINVAL EIO EISDIR ELOOP
    EMEDIUMTYPE EMSGSIZE ENAMETOOLONG ENODATA ENODEV ENOENT ENOMEM ENOSPC ENOTDIR ENOTEMPTY ENXIO
    EOPNOTSUPP EOVERFLOW EPERM ERANGE EROFS ESHUTDOWN ESRCH ETXTBSY
];

/// The errno of a request that failed. A service that is gone is ECONNREFUSED: ENOTCONN would be
/// the sign of a mount whose process is gone.
pub(super) fn errno_of(error: &ClientError) -> Errno {
    match error {
        ClientError::Connect { source, .. } => of_connect(source),
        ClientError::ForeignPeer { .. } => Errno::EACCES,
        ClientError::Refused(problem) => of_problem(problem),
        ClientError::Broken(_)
        | ClientError::Ended
        | ClientError::Request(_)
        | ClientError::Token
        | ClientError::Answer(_)
        | ClientError::NoHeader(_) => Errno::EIO,
    }
}

fn of_connect(source: &io::Error) -> Errno {
    match source.raw_os_error() {
        Some(known @ (libc::EACCES | libc::EHOSTUNREACH | libc::ENETUNREACH | libc::ETIMEDOUT)) => {
            Errno::from_i32(known)
        }
        // Also for a socket whose file is gone: ENOENT would be about the file that was asked for.
        _ => Errno::ECONNREFUSED,
    }
}

fn of_problem(problem: &Problem) -> Errno {
    match ERRNOS.iter().find(|(name, _)| *name == problem.code) {
        Some((_, number)) => Errno::from_i32(*number),
        None => of_status(problem.status),
    }
}

/// Of an answer without a code that is known, as of a proxy.
fn of_status(status: u16) -> Errno {
    match status {
        400 | 422 => Errno::EINVAL,
        401 | 403 => Errno::EACCES,
        404 => Errno::ENOENT,
        409 => Errno::EBUSY,
        413 => Errno::EMSGSIZE,
        _ => Errno::EIO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Target;

    fn refused(status: u16, code: &str) -> Errno {
        let problem = Problem { status, code: code.to_owned(), ..Problem::default() };
        errno_of(&ClientError::Refused(Box::new(problem)))
    }

    #[test]
    fn the_code_of_a_refusal_is_the_errno() {
        assert_eq!(refused(422, "EINVAL"), Errno::EINVAL);
        assert_eq!(refused(422, "EILSEQ"), Errno::EILSEQ);
        assert_eq!(refused(409, "EBUSY"), Errno::EBUSY);
        assert_eq!(refused(500, "ENODEV"), Errno::ENODEV);
        assert_eq!(refused(500, "EISDIR").code(), libc::EISDIR);
    }

    #[test]
    fn what_has_no_code_goes_by_its_status_and_what_would_mislead_is_an_io_error() {
        assert_eq!(refused(404, "HTTP 404"), Errno::ENOENT);
        assert_eq!(refused(401, ""), Errno::EACCES);
        assert_eq!(refused(502, "HTTP 502"), Errno::EIO);
        for code in ["ENOSYS", "ENOTCONN", "EINTR", "EWHAT"] {
            assert_eq!(refused(500, code), Errno::EIO, "{code}");
        }
    }

    #[test]
    fn a_service_that_is_gone_refuses_connections() {
        let connect = |number| {
            let target = Target::Unix("/s".into());
            let source = io::Error::from_raw_os_error(number);
            errno_of(&ClientError::Connect { target, source })
        };
        for number in [libc::ENOENT, libc::ECONNREFUSED, libc::ENOTCONN, libc::EAGAIN] {
            assert_eq!(connect(number), Errno::ECONNREFUSED, "{number}");
        }
        assert_eq!(connect(libc::EHOSTUNREACH), Errno::EHOSTUNREACH);
        assert_eq!(connect(libc::EACCES), Errno::EACCES);
    }
}
