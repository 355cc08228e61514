//! The peers: other rate limiting libraries, each used as documented.

pub(crate) mod governor;
pub(crate) mod pingora;
pub(crate) mod throttlecrab;
