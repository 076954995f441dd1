//! Numbers in definitions.

/// A number without a sign: hexadecimal after 0x, octal after another 0, else decimal.
pub(crate) fn parse_number(text: &str) -> Option<u64> {
    let (digits, radix) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => (hex, 16),
        None => match text.strip_prefix('0') {
            Some(octal) if !octal.is_empty() => (octal, 8),
            _ => (text, 10),
        },
    };
    // from_str_radix alone would accept a sign.
    digits.chars().all(|c| c.is_digit(radix)).then_some(())?;
    u64::from_str_radix(digits, radix).ok()
}

/// A number of 64 bits; a negative one in two's complement.
pub(crate) fn parse_signed(text: &str) -> Option<u64> {
    match text.strip_prefix('-') {
        None => parse_number(text),
        Some(digits) => parse_number(digits).filter(|n| *n <= 1 << 63).map(u64::wrapping_neg),
    }
}

/// A number after `+` or `-`.
pub(super) fn parse_offset(text: &str) -> Option<i64> {
    let number = |digits| i64::try_from(parse_number(digits)?).ok();
    match text.strip_prefix('-') {
        Some(digits) => number(digits).map(|n| -n),
        None => number(text.strip_prefix('+')?),
    }
}

/// 64-bit numbers in JSON: written as hexadecimal text (a double holds only 53 bits), read as text
/// or number, also a negative one (-12 is -ENOMEM).
pub(super) mod hex_number {
    use serde::{Deserialize, Deserializer, Serializer};

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
    pub(in crate::definition) fn serialize<S: Serializer>(
        number: &u64,
        s: S,
    ) -> Result<S::Ok, S::Error> {
        s.collect_str(&format_args!("{number:#x}"))
    }

    #[derive(Deserialize)]
    #[serde(untagged, expecting = "\"0x...\" or a number of 64 bits")]
    enum Either {
        Number(u64),
        Negative(i64),
        Text(String),
    }

    pub(in crate::definition) fn deserialize<'de, D: Deserializer<'de>>(
        d: D,
    ) -> Result<u64, D::Error> {
        match Either::deserialize(d)? {
            Either::Number(number) => Ok(number),
            Either::Negative(number) => Ok(number.cast_unsigned()),
            Either::Text(text) => super::parse_signed(&text)
                .ok_or_else(|| serde::de::Error::custom(format!("`{text}` is no number"))),
        }
    }
}

/// As [`hex_number`], for an address that may be absent.
pub(super) mod hex_address {
    use exoprobe_guest::Gva;
    use serde::{Deserialize, Deserializer, Serializer};

    #[derive(Deserialize)]
    struct Address(#[serde(with = "super::hex_number")] u64);

    #[expect(clippy::ref_option, reason = "serde's signature")]
    pub(in crate::definition) fn serialize<S: Serializer>(
        addr: &Option<Gva>,
        s: S,
    ) -> Result<S::Ok, S::Error> {
        match addr {
            Some(addr) => s.collect_str(addr),
            None => s.serialize_none(),
        }
    }

    pub(in crate::definition) fn deserialize<'de, D: Deserializer<'de>>(
        d: D,
    ) -> Result<Option<Gva>, D::Error> {
        Ok(Option::<Address>::deserialize(d)?.map(|address| Gva(address.0)))
    }
}
