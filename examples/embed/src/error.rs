//! Any error: the program prints it and ends.

pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
