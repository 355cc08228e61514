//! What the server does, seen from outside.

mod api;
mod reloading;
mod resp;
mod rules;
mod serve;
