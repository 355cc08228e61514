//! The settings file of the server: limits, and the sections `server`, `store`, `auth` and `activity`.
//!
//! [`tidegate_config`] reads the file and its limits. This module adds the schemas of the sections and checks their combination.
//! All mistakes are reported at once, and a file with any error gives no settings.
//!
//! ```
//! use tidegate_server::settings;
//!
//! let text = b"limits: [{id: api, items: [{policy: day, limit: 100}]}]\nserver: {workers: 2}";
//! let reading = settings::read("tidegate.yaml", text).unwrap();
//! assert_eq!(reading.settings.limits[0].id, "api");
//! assert_eq!(reading.settings.server.workers, Some(2));
//! ```

mod activity;
mod auth;
mod schema;
mod server;
mod store_url;

use tidegate::model::LimitSpec;
use tidegate_config::limits::{read_list, read_node};
use tidegate_config::{
    DiagnosticSink, Diagnostics, FieldPath, YamlNode, json_schema, read_document, read_mapping,
};

pub use activity::ActivitySpec;
pub use auth::{Role, TokenSpec};
pub use schema::SETTINGS;
pub use server::{Listen, MAX_OPEN_CONNECTIONS, MAX_WORKER_THREADS, MIN_MEMORY_BYTES, ServerSpec, StoreSpec};
pub use store_url::{StoreUrl, parse_store};

/// The settings of a file that has no errors.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Settings {
    /// The limits, in the order of the file. [`tidegate_core::Limit::new`] accepts each of them at
    /// [`tidegate_core::Tick::NANOSECOND`], and no two have the same id.
    pub limits: Vec<LimitSpec>,
    /// The valid tokens without duplicates; `None` if no token is required.
    pub tokens: Option<Vec<TokenSpec>>,
    /// Listen addresses and timeouts.
    pub server: ServerSpec,
    /// The store.
    pub store: StoreSpec,
    /// The section `activity`, if present. It defines the limit `activity`, which is not in `limits`.
    pub activity: Option<ActivitySpec>,
}

impl Settings {
    /// All limits: those of the list `limits`, and that of the section `activity`.
    pub fn all_limits(&self) -> Vec<LimitSpec> {
        let activity = self.activity.as_ref().map(|section| section.rules().spec());
        self.limits.iter().cloned().chain(activity).collect()
    }
}

/// A settings file without errors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParsedSettings {
    /// The settings.
    pub settings: Settings,
    /// Warnings about settings without effect.
    pub warnings: Diagnostics,
    /// Whether the file contains the list `limits`, even an empty one. A truncated or half-written file does not.
    pub lists_limits: bool,
}

/// Reads a settings file, YAML or JSON. The name is for messages only.
///
/// The error holds everything that is wrong with the file, and its warnings.
pub fn read(name: &str, bytes: &[u8]) -> Result<ParsedSettings, Diagnostics> {
    let ((settings, lists_limits), warnings) = read_document(name, bytes, |sink, tree| {
        let lists_limits = tree.field("limits").is_some_and(YamlNode::is_list);
        Some((read_settings(sink, tree), lists_limits))
    })?;
    Ok(ParsedSettings { settings, warnings, lists_limits })
}

/// Reads the limits of a text that is either one limit or a settings file.
///
/// ```
/// use tidegate_server::settings::read_limits;
///
/// let one = b"{id: api, items: [{policy: day, limit: 100}]}";
/// let many = b"limits: [{id: api, items: [{policy: day, limit: 100}]}]";
/// assert_eq!(read_limits("one", one), read_limits("many", many));
/// ```
pub fn read_limits(name: &str, bytes: &[u8]) -> Result<Vec<LimitSpec>, Diagnostics> {
    let limits = read_document(name, bytes, |sink, tree| {
        let has_sections = SETTINGS.names().any(|section| tree.field(section).is_some());
        if has_sections || tree.is_empty() {
            return Some(read_settings(sink, tree).all_limits());
        }
        read_node(sink, tree).map(|limit| vec![limit])
    });
    limits.map(|(limits, _)| limits)
}

/// The JSON Schema of a settings file, draft 2020-12. Published as `docs/limits.schema.json`.
pub fn schema() -> serde_json::Value {
    json_schema("Tidegate settings", &SETTINGS)
}

fn read_settings(sink: &mut DiagnosticSink<'_>, tree: &YamlNode) -> Settings {
    if tree.is_empty() {
        return Settings::default();
    }
    let mut file = read_mapping(sink, tree, &SETTINGS, &FieldPath::Top);
    let ids = file.list("limits").iter().filter_map(|limit| limit.text_and_span("id"));
    let activity_limit = ids.into_iter().find(|(id, _)| *id == activity::ID).map(|(_, span)| span);
    let limits = read_list(sink, &mut file, tree);
    let key = file.key_span(activity::ID).unwrap_or(tree.span);
    let activity = file.take_section(activity::ID);
    let activity = activity.map(|section| ActivitySpec::read(sink, section, key, activity_limit));
    let tokens = file.take_section("auth").map(|auth| auth::read_tokens(sink, auth));
    let server = file.take_section("server").map(ServerSpec::read).unwrap_or_default();
    let store = file.take_section("store").map(StoreSpec::read).unwrap_or_default();
    Settings { limits, tokens, server, store, activity }
}
