//! The commands that talk to a server.
//!
//! ```text
//!   arguments ──▶ a request ──▶ server ──▶ an answer ──▶ words for people, or the server's own JSON
//!                    │                        └─ problem ──▶ what is wrong, what to do, which exit code
//!                    └─ limits are read from a file here, so that what is wrong has a line and a column
//! ```
//!
//! Decided: blocking, one request after another; a command asks one thing and ends. `--json` is what the server wrote, to
//! the byte, so that programs need to know one wire and not two.
//!
//! Refused: a token as a flag, because everybody on a machine can see what is typed; following redirects, because a
//! question that is repeated elsewhere as another method is another question.

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
