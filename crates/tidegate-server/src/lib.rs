//! The server's doors: how answers are spoken to programs elsewhere.
//!
//! A door turns its wire types into [`Order`](tidegate::Order)s and [`Replies`](tidegate::Replies) into its wire types. It knows no
//! store but by the contract, and no socket: requests and bytes go in, responses and bytes come out. [`serve`] has the sockets, and
//! decides when.

pub mod http;
pub mod live_settings;
pub mod metrics;
pub mod refusal_log;
pub mod resp;
pub mod serve;
pub mod settings;
pub mod settings_reloader;
pub mod tokens;
