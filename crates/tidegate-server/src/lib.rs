//! The server's doors.

pub mod tokens;
