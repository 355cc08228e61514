//! Ids that a settings file cannot use.

/// The prefix of the limits that `CL.THROTTLE` and `THROTTLE` create, one for each bucket definition of a client.
pub const RESERVED: &str = "cl.throttle";

/// Whether limits with this id are created by commands. A file or an operator cannot define them.
pub fn is_reserved(id: &str) -> bool {
    id.strip_prefix(RESERVED).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}
