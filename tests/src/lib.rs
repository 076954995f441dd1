//! End-to-end tests of exoprobe.
