//! What the server does, seen from outside.

mod api;
mod paper;
mod reloading;
mod resp;
mod rules;
mod serve;
mod settings;
