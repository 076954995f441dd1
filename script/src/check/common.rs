//! Types that two values have in common.

use crate::types::Type;

/// The type that values of both can have.
pub(super) fn common(one: &Type, two: &Type) -> Option<Type> {
    Some(match (one, two) {
        (Type::Unknown, other) | (other, Type::Unknown) => other.clone(),
        (one, two) if one == two => one.clone(),
        // The first decides about the sign.
        (one, two) if one.is_integer() && two.is_integer() => stored(one.clone()),
        (Type::Pointer(_), two) if two.is_integer() => one.clone(),
        (one, Type::Pointer(_)) if one.is_integer() => two.clone(),
        (Type::Pointer(to), Type::Pointer(_)) if **to != Type::Void => one.clone(),
        (Type::Pointer(_), Type::Pointer(_)) => two.clone(),
        (Type::Text(one), Type::Text(two)) => Type::Text(*one.max(two)),
        (Type::Bytes(one), Type::Bytes(two)) => Type::Bytes(*one.max(two)),
        (Type::Tuple(one), Type::Tuple(two)) if one.len() == two.len() => {
            let both = one.iter().zip(two.iter());
            Type::Tuple(both.map(|(one, two)| common(one, two)).collect::<Option<_>>()?)
        }
        (Type::Stack { user, mode }, Type::Stack { user: other, .. }) if user == other => {
            Type::Stack { user: *user, mode: *mode }
        }
        _ => return None,
    })
}

/// The type of a value in a map or variable: numbers take 8 bytes.
pub(super) fn stored(ty: Type) -> Type {
    match ty {
        Type::Integer { signed: true, .. } => Type::INT64,
        Type::Integer { signed: false, .. } => Type::UINT64,
        ty => ty,
    }
}
