//! The service `tidegate serve`: an HTTP API and RESP over a store.
//!
//! Each protocol turns its wire types into [`Order`](tidegate::model::Order)s and [`Replies`](tidegate::reply::Replies) into its wire types.
//! [`http`] and [`resp`] have no sockets: requests and bytes go in, responses and bytes come out. [`serve`] has the sockets and the
//! threads. The store is known by its trait only.

pub mod http;
pub mod live_settings;
pub mod metrics;
pub mod refusal_log;
pub mod resp;
pub mod serve;
pub mod settings;
pub mod settings_reloader;
pub mod tokens;
