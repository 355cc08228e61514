//! The access log: one line for every request. [`AccessLogEntry`] formats a line and [`AccessLogWriter`]
//! writes it on its own thread.

mod entry;
mod writer;

pub use entry::{AccessLogEntry, AccessLogFormat};
pub(crate) use writer::AccessLogBuffer;
pub use writer::AccessLogWriter;
