//! Behavior of the server from the outside.

mod api;
mod live_settings;
mod refusal_recorder;
mod resp;
mod serve;
mod settings;
mod settings_reloader;
