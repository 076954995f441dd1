//! The errors that routes are documented with: each group is a set of statuses, all with problem
//! documents.

use std::collections::BTreeMap;

use utoipa::IntoResponses;
use utoipa::openapi::{Content, Ref, RefOr, Response, ResponseBuilder};

use super::problem::PROBLEM_JSON;

type Responses = BTreeMap<String, RefOr<Response>>;

macro_rules! answers {
    ($($(#[doc = $doc:literal])+ $name:ident { $($status:literal $what:literal),+ $(,)? })+) => {
        $(
            $(#[doc = $doc])+
            pub(crate) struct $name;

            impl IntoResponses for $name {
                fn responses() -> Responses {
                    [$(problem($status, $what)),+].into()
                }
            }
        )+
    };
}

answers! {
    /// Of every route. The document adds what can be wrong with parameters and bodies: 400, 413,
    /// 415.
    Problems {
        "401" "TCP only: the token is missing or wrong",
        "500" "The service or its host failed",
    }
    /// Of a route that asks the guest.
    NeedsGuest {
        "409" "The guest has stopped, or does not have what this needs",
        "503" "Later: the guest's kernel has not begun",
    }
    /// Of a route that writes a file and asks the guest, also one that has stopped.
    WritesFile {
        "409" "There is a file already",
        "503" "Later: the guest has not begun",
    }
    /// Of a route that names something.
    NotFound { "404" "There is no such thing" }
    /// Of a route that takes something.
    Refused { "422" "The request is as this document says, and cannot be done: `detail` says why" }
    /// Of a route that needs room.
    NoRoom { "507" "There is no room for it" }
    /// Of files.
    NoSuchAccess {
        "403" "The file cannot be read or written",
        "405" "It is a folder",
    }
}

/// A problem document with a status.
pub(super) fn problem(status: &str, description: &str) -> (String, RefOr<Response>) {
    let schema = Ref::from_schema_name("Problem");
    let response = ResponseBuilder::new()
        .description(description)
        .content(PROBLEM_JSON, Content::new(Some(schema)))
        .build();
    (status.to_owned(), response.into())
}
