//! Numbers and switches that are written to files.

use crate::error::TracerError;

/// Reads `0`, `1` and what the kernel's kstrtobool takes beside.
///
/// # Errors
/// [`TracerError`], `EINVAL`.
pub fn parse_switch(text: &str) -> Result<bool, TracerError> {
    let text = text.trim_ascii();
    match text.to_ascii_lowercase().as_str() {
        "1" | "y" | "yes" | "t" | "true" | "on" => Ok(true),
        "0" | "n" | "no" | "f" | "false" | "off" => Ok(false),
        _ => {
            let shown: String = text.chars().take(20).collect();
            let message = format!("`{shown}` is neither on nor off: write 1 or 0");
            Err(TracerError::new("EINVAL", message))
        }
    }
}

/// Reads a decimal number as the kernel's kstrtoul does, with at most a line's end after it.
///
/// # Errors
/// [`TracerError`], `EINVAL`.
pub(crate) fn parse_count(text: &str) -> Result<u64, TracerError> {
    let digits = text.strip_suffix('\n').unwrap_or(text);
    let digits = digits.strip_prefix('+').unwrap_or(digits);
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|_| is_number).ok_or_else(|| no_number(text))
}

/// Reads the `0` or `1` of a file `enable`.
///
/// # Errors
/// [`TracerError`], `EINVAL`.
pub(crate) fn parse_enable(text: &str) -> Result<bool, TracerError> {
    match parse_count(text)? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(no_number(text)),
    }
}

fn no_number(text: &str) -> TracerError {
    let shown: String = text.trim_end().chars().take(20).collect();
    TracerError::new("EINVAL", format!("`{shown}` is not what this file takes: write 1 or 0"))
}
