//! Arithmetic of 64 bits, as BPF has it.

use crate::syntax::ast::BinaryOp;

/// Applies an operator. Division and remainder are those of numbers without signs, as in BPF;
/// division by 0 gives 0, and the remainder of it the number itself.
pub(crate) fn arithmetic(op: BinaryOp, signed: bool, left: i64, right: i64) -> i64 {
    let (uleft, uright) = (left.cast_unsigned(), right.cast_unsigned());
    let shift = u32::try_from(uright & 63).unwrap_or(0);
    let order = if signed { left.cmp(&right) } else { uleft.cmp(&uright) };
    match op {
        BinaryOp::Add => left.wrapping_add(right),
        BinaryOp::Sub => left.wrapping_sub(right),
        BinaryOp::Mul => left.wrapping_mul(right),
        BinaryOp::Div => uleft.checked_div(uright).unwrap_or(0).cast_signed(),
        BinaryOp::Mod => uleft.checked_rem(uright).unwrap_or(uleft).cast_signed(),
        BinaryOp::And => left & right,
        BinaryOp::Or => left | right,
        BinaryOp::Xor => left ^ right,
        BinaryOp::Shl => (uleft << shift).cast_signed(),
        BinaryOp::Shr => (uleft >> shift).cast_signed(),
        BinaryOp::Lt => order.is_lt().into(),
        BinaryOp::Le => order.is_le().into(),
        BinaryOp::Gt => order.is_gt().into(),
        BinaryOp::Ge => order.is_ge().into(),
        BinaryOp::Eq => (left == right).into(),
        BinaryOp::Ne => (left != right).into(),
        BinaryOp::LogicAnd => (left != 0 && right != 0).into(),
        BinaryOp::LogicOr => (left != 0 || right != 0).into(),
    }
}

/// Cuts a number to so many bytes, and extends it by its sign or by zeros.
pub(crate) fn narrow(value: i64, bytes: u8, signed: bool) -> i64 {
    let shift = 64 - u32::from(bytes.clamp(1, 8)) * 8;
    match signed {
        true => (value << shift) >> shift,
        false => ((value << shift).cast_unsigned() >> shift).cast_signed(),
    }
}

/// Takes some bits of a number.
pub(crate) fn bits(value: i64, shift: u8, width: u8, signed: bool) -> i64 {
    let width = u32::from(width.clamp(1, 64));
    let moved = value.cast_unsigned() >> u32::from(shift & 63);
    let unused = 64 - width;
    let raised = (moved << unused).cast_signed();
    if signed { raised >> unused } else { (raised.cast_unsigned() >> unused).cast_signed() }
}

/// The number in up to 8 bytes, the lowest first.
pub(crate) fn from_bytes(bytes: &[u8], signed: bool) -> i64 {
    let mut all = [0; 8];
    let len = bytes.len().min(8);
    all[..len].copy_from_slice(&bytes[..len]);
    match u8::try_from(len) {
        Ok(len @ 1..) => narrow(i64::from_le_bytes(all), len, signed),
        _ => 0,
    }
}
