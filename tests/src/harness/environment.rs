//! Variables and marks that a test program and what runs it agree on.

/// Takes the cases apart for several processes: `2/3` runs the second of three parts.
pub const PART_ENV: &str = "EXOPROBE_TEST_PART";

/// Names the file that a [`Record`](super::Record) is appended to as each test ends.
pub const REPORT_ENV: &str = "EXOPROBE_TEST_REPORT";

/// Set to 1, has [`BEGIN`] and the name written to standard error as each test begins, so that a hang
/// has a name.
pub const PROGRESS_ENV: &str = "EXOPROBE_TEST_PROGRESS";

/// What stands before the name of a test that begins.
pub const BEGIN: &str = "begin ";
