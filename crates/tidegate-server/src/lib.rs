//! The server's doors.

pub mod http;
pub mod tokens;
