//! Ids that a settings file cannot use.

/// The prefix of the limits that `CL.THROTTLE` and `THROTTLE` create, one for each bucket that a client describes.
pub const RESERVED: &str = "cl.throttle";

/// Whether a limit of this id is created by commands, so that a file or an operator cannot define it.
pub fn is_reserved(id: &str) -> bool {
    id.strip_prefix(RESERVED).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}
