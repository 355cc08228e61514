//! Commands that talk to a server.
//!
//! ```text
//!   arguments ──▶ request ──▶ server ──▶ reply ──▶ text, or the server's own JSON
//!                    │                     └─ problem ──▶ message, advice, exit code
//!                    └─ limits in files are parsed here, so that errors have a line and a column
//! ```
//!
//! Requests are blocking, one per command. `--json` prints the server's reply byte for byte, so that programs need
//! one format only.
//!
//! There is no flag for a token, because command lines are visible to all users of a machine. Redirects are not
//! followed, because they may change the method of a request.

mod acquire;
pub(crate) mod ask;
pub(crate) mod client;
mod decision_text;
mod lease;
mod limit_source;
mod limits;
mod problem;
pub(crate) mod table;
pub(crate) mod url;
pub(crate) mod usage;

pub(crate) use acquire::{acquire, peek};
pub(crate) use lease::{release, renew, settle};
pub(crate) use limits::run as limit;
