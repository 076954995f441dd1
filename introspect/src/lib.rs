//! introspect
