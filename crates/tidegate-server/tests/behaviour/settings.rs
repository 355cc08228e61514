//! The settings file.

mod json_schema;
mod sections;
