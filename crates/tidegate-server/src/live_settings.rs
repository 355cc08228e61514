//! The settings in use: limits, tokens and activity rules from the file.
//!
//! Startup and reload use the same call. All settings are checked first. Then the limits change in one transaction
//! ([`Catalog::apply`](tidegate::catalog::Catalog::apply)), and the tokens change when that is durable. A failure changes nothing, with one
//! exception: if the store's log fails during the change, the error says so, and the limits after a restart are unknown.
//!
//! The file wins. A limit that was created over the API and later appears in the file is managed by the file from then on, with the
//! counts of items that keep their name. A limit that disappears from the file is unknown at once; if it returns within
//! [`RETIREMENT`](tidegate::catalog::RETIREMENT), its counts return too.
//!
//! Before the first settings are applied all tokens are refused.
//!
//! The section `activity` is a limit of the file, and configures the [`Activity`]. Environment variables override the section; without a
//! section they are applied to the store directly. Without either, the limit is what the store has.
//!
//! A server without a file applies nothing and removes nothing. A server whose file lacks limits that another server's file
//! has retires them and logs it.
//!
//! The sections `server` and `store` are read at startup only. A reload compares them and reports which need a restart.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use std::collections::HashSet;

use crate::settings::{ActivitySpec, ServerSpec, Settings, StoreSpec};
use tidegate::activity::{self, Activity, RulesSource};
use tidegate::catalog::{ApplyError, Origin, PutError};
use tidegate::catalog::{Edit, EditOutcome, ExpectedVersion, RemovalMode};
use tidegate::model::{LimitSpec, SpecError};
use tidegate::store::LimitStore;
use tidegate::store::{Unavailable, wait_durable};
use tidegate_config::limits::is_reserved;

use crate::resp::described_buckets::RESERVED_ID_MESSAGE;
use crate::tokens::{SharedTokens, TokenTable};

/// Applies settings to a store, tokens and activity rules.
pub struct LiveSettings {
    store: Arc<dyn LimitStore>,
    tokens: Arc<SharedTokens>,
    auth_policy: AuthPolicy,
    /// The activity to configure, and the overrides from the environment.
    activity: Option<(Activity, ActivitySpec)>,
    /// Ids of the limits that the file manages.
    from_file: RwLock<HashSet<Box<str>>>,
    /// Locked while settings are applied.
    in_force: Mutex<CurrentSettings>,
}

/// Whether settings without tokens are accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AuthPolicy {
    Optional,
    TokenTable,
}

#[derive(Default)]
struct CurrentSettings {
    settings: Arc<Settings>,
    /// Ids of the limits that this process put from its file.
    put: HashSet<Box<str>>,
    /// The sections that are read at startup only.
    at_start: Option<(ServerSpec, StoreSpec)>,
}

/// The changes that settings made.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SettingsApplied {
    /// Limits that were added.
    pub added: usize,
    /// Limits that were changed.
    pub changed: usize,
    /// Limits that were removed.
    pub removed: usize,
    /// Limits that stayed the same.
    pub unchanged: usize,
    /// Removed limits that another process had put from its file.
    pub retired_foreign: Vec<String>,
    /// Sections that changed since startup and need a restart.
    pub needs_restart: Vec<&'static str>,
}

impl fmt::Display for SettingsApplied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SettingsApplied { added, changed, removed, unchanged, .. } = self;
        write!(f, "{added} limits added, {changed} changed, {removed} removed, {unchanged} unchanged")
    }
}

/// Why settings were rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingsRejected {
    /// All errors, with their place in the file.
    pub flaws: Vec<SpecError>,
}

impl fmt::Display for SettingsRejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the settings cannot be used")?;
        self.flaws.iter().try_for_each(|flaw| write!(f, "\n  {flaw}"))
    }
}

impl std::error::Error for SettingsRejected {}

impl LiveSettings {
    /// Empty settings over this store; all tokens are refused until settings are applied.
    pub fn new(store: Arc<dyn LimitStore>) -> LiveSettings {
        // A persistent store remembers which limits a file managed.
        let from_file = store.applied().into_iter().map(String::into_boxed_str).collect();
        LiveSettings {
            store,
            tokens: Arc::new(SharedTokens::new(TokenTable::deny_all())),
            auth_policy: AuthPolicy::Optional,
            activity: None,
            from_file: RwLock::new(from_file),
            in_force: Mutex::default(),
        }
    }

    /// Rejects settings without `auth`, for a server that other machines can reach.
    pub fn require_tokens(mut self) -> LiveSettings {
        self.auth_policy = AuthPolicy::TokenTable;
        self
    }

    /// Configures this activity from the section `activity`; `over` overrides the section.
    pub fn with_activity(mut self, activity: Activity, over: ActivitySpec) -> LiveSettings {
        self.activity = Some((activity, over));
        self
    }

    /// The current tokens, shared by all protocols.
    pub fn tokens(&self) -> &Arc<SharedTokens> {
        &self.tokens
    }

    /// The current settings; empty before the first are applied.
    pub fn in_force(&self) -> Arc<Settings> {
        Arc::clone(&self.in_force.lock().unwrap_or_else(PoisonError::into_inner).settings)
    }

    /// Whether a limit is managed by this file, or by that of another server of the same store.
    pub fn is_from_file(&self, id: &str) -> bool {
        let is_ours = self.from_file.read().unwrap_or_else(PoisonError::into_inner).contains(id);
        is_ours || self.store.applied().iter().any(|applied| applied == id)
    }

    /// Replaces the current settings, or changes nothing. Blocks until the limits are durable; not for async tasks.
    pub fn apply(&self, settings: Settings) -> Result<SettingsApplied, SettingsRejected> {
        let mut in_force = self.in_force.lock().unwrap_or_else(PoisonError::into_inner);
        let tokens = self.check(&settings)?;
        let rules = self.activity_rules(&settings)?;
        let section = settings.activity.map(|_| rules.spec());
        let limits: Vec<LimitSpec> = settings.limits.iter().cloned().chain(section).collect();
        let written: HashSet<Box<str>> = limits.iter().map(|limit| limit.id.as_str().into()).collect();
        let former = self.from_file.read().unwrap_or_else(PoisonError::into_inner).clone();
        let removed_ids: Vec<&str> = former.difference(&written).map(|id| &**id).collect();
        let removals = removed_ids.iter().map(|id| Edit::Remove((*id).to_owned(), RemovalMode::Retire));
        let put = limits.iter().map(|limit| Edit::Put(limit.clone(), ExpectedVersion::Anything));
        let edits = put.chain(removals).collect();

        // Old and new limits are protected from the API during the change.
        self.set_managed(former.union(&written).cloned().collect());
        let edited = match self.store.apply(edits) {
            Ok(edited) => edited,
            Err(error) => {
                self.set_managed(former);
                return Err(SettingsRejected { flaws: flaws_of(error, &limits) });
            }
        };
        if let Some(lsn) = self.store.log_end() {
            wait_durable(&*self.store, lsn).map_err(|error| not_durable(&error))?;
        }
        let removed = removed_ids
            .iter()
            .zip(&edited[limits.len()..])
            .filter(|(_, it)| matches!(it, EditOutcome::Removed(_)));
        let mut retired_foreign: Vec<String> =
            removed.map(|(id, _)| (*id).to_owned()).filter(|id| !in_force.put.contains(&**id)).collect();
        retired_foreign.sort();
        log_retired(&retired_foreign);
        self.configure_activity(rules, written.contains(activity::ID))?;
        in_force.put.clone_from(&written);
        self.set_managed(written);
        self.tokens.set(tokens);
        let at_start =
            in_force.at_start.get_or_insert_with(|| (settings.server.clone(), settings.store.clone()));
        let needs_restart = sections_needing_restart(at_start, &settings);
        let applied = SettingsApplied { retired_foreign, needs_restart, ..count_outcomes(&edited) };
        in_force.settings = Arc::new(settings);
        Ok(applied)
    }

    /// Starts without a file: no tokens required if that is allowed, and the limits of the store. Environment overrides of the
    /// activity are applied. Blocks until they are durable; not for async tasks.
    pub fn apply_defaults(&self) -> Result<(), SettingsRejected> {
        let _in_turn = self.in_force.lock().unwrap_or_else(PoisonError::into_inner);
        let nothing = Settings::default();
        let tokens = self.check(&nothing)?;
        let rules = self.activity_rules(&nothing)?;
        self.configure_activity(rules, false)?;
        self.tokens.set(tokens);
        Ok(())
    }

    /// Configures the activity. Overrides without a file are put into the store here and not on first use, so that a process
    /// without overrides never changes the limit.
    fn configure_activity(
        &self,
        rules: activity::ActivityRules,
        from_file: bool,
    ) -> Result<(), SettingsRejected> {
        let Some((activity, over)) = &self.activity else { return Ok(()) };
        if !from_file && *over != ActivitySpec::default() {
            let edit = vec![Edit::Put(rules.spec(), ExpectedVersion::Anything)];
            let edited =
                self.store.edit(edit, Origin::Put).wait(&*self.store).map_err(|error| not_durable(&error))?;
            edited.map_err(|error| SettingsRejected { flaws: flaws_of(error, &[]) })?;
            if let Some(lsn) = self.store.log_end() {
                wait_durable(&*self.store, lsn).map_err(|error| not_durable(&error))?;
            }
        }
        let source = if from_file { RulesSource::LimitsFile } else { RulesSource::Store };
        // The rules were validated before anything changed.
        let _valid = activity.set_rules(rules, source);
        Ok(())
    }

    /// The rules of the activity: the section with its overrides.
    fn activity_rules(&self, settings: &Settings) -> Result<activity::ActivityRules, SettingsRejected> {
        let over = self.activity.as_ref().map(|(_, over)| *over).unwrap_or_default();
        let rules = over.over(settings.activity.unwrap_or_default()).rules();
        let in_section =
            |flaw: SpecError| SpecError::new(format!("{}.{}", activity::ID, flaw.field), flaw.message);
        let mut flaws: Vec<SpecError> = rules.flaws().into_iter().map(in_section).collect();
        let index = settings.limits.iter().position(|limit| limit.id == activity::ID);
        if let (Some(index), true) = (index, over != ActivitySpec::default()) {
            let message = "is the limit of activities, and the environment configures it; write the section activity instead";
            flaws.push(SpecError::new(format!("limits[{index}].id"), message));
        }
        if flaws.is_empty() { Ok(rules) } else { Err(SettingsRejected { flaws }) }
    }

    /// Checks what the store does not, and builds the token table.
    fn check(&self, settings: &Settings) -> Result<TokenTable, SettingsRejected> {
        let reserved = settings.limits.iter().enumerate().filter(|(_, limit)| is_reserved(&limit.id));
        let mut flaws: Vec<SpecError> = reserved
            .map(|(index, _)| SpecError::new(format!("limits[{index}].id"), RESERVED_ID_MESSAGE))
            .collect();
        let tokens = match &settings.tokens {
            None if self.auth_policy == AuthPolicy::TokenTable => {
                let message = "is missing; this server can be reached from other machines, and callers would not need a token";
                Err(vec![SpecError::new("auth", message)])
            }
            None => Ok(TokenTable::allow_all()),
            Some(tokens) => TokenTable::new(tokens.clone()).map_err(|flaws| {
                flaws
                    .into_iter()
                    .map(|flaw| SpecError::new(format!("auth.{}", flaw.field), flaw.message))
                    .collect()
            }),
        };
        match tokens {
            Ok(tokens) if flaws.is_empty() => Ok(tokens),
            tokens => {
                flaws.extend(tokens.err().unwrap_or_default());
                Err(SettingsRejected { flaws })
            }
        }
    }

    fn set_managed(&self, ids: HashSet<Box<str>>) {
        *self.from_file.write().unwrap_or_else(PoisonError::into_inner) = ids;
    }
}

impl fmt::Debug for LiveSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limits = self.from_file.read().unwrap_or_else(PoisonError::into_inner).len();
        f.debug_struct("LiveSettings").field("limits", &limits).finish_non_exhaustive()
    }
}

/// Logs limits of other servers that were retired.
fn log_retired(retired_foreign: &[String]) {
    const MOST_NAMED: usize = 10;
    if retired_foreign.is_empty() {
        return;
    }
    let named = retired_foreign.iter().take(MOST_NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    let more = if retired_foreign.len() > MOST_NAMED { ", …" } else { "" };
    tracing::warn!(
        limits = %format!("{named}{more}"),
        count = retired_foreign.len(),
        "these limits came from the file of another server or of an earlier start; they are not in this file, and were retired"
    );
}

fn count_outcomes(edited: &[EditOutcome]) -> SettingsApplied {
    let mut applied = SettingsApplied::default();
    for each in edited {
        match each {
            EditOutcome::Added(_) => applied.added += 1,
            EditOutcome::Replaced(_) => applied.changed += 1,
            EditOutcome::Unchanged(_) => applied.unchanged += 1,
            EditOutcome::Removed(_) => applied.removed += 1,
            EditOutcome::Absent => {}
        }
    }
    applied
}

fn sections_needing_restart(
    (server, store): &(ServerSpec, StoreSpec),
    settings: &Settings,
) -> Vec<&'static str> {
    let sections = [("server", *server != settings.server), ("store", *store != settings.store)];
    sections.into_iter().filter(|(_, changed)| *changed).map(|(name, _)| name).collect()
}

/// The error when the store's log fails during a change.
fn not_durable(error: &Unavailable) -> SettingsRejected {
    let message = format!(
        "the limits could not be written to the log: {}; repair it and restart the server, which reads the settings again",
        error.reason
    );
    SettingsRejected { flaws: vec![SpecError::new("store", message)] }
}

/// Errors of the store, with their place in the file.
fn flaws_of(error: ApplyError, limits: &[LimitSpec]) -> Vec<SpecError> {
    let mut flaws = Vec::new();
    for (id, why) in error.refused {
        let index = limits.iter().rposition(|limit| limit.id == id).unwrap_or_default();
        match why {
            PutError::Invalid(found) => flaws.extend(
                found
                    .into_iter()
                    .map(|flaw| SpecError::new(format!("limits[{index}].{}", flaw.field), flaw.message)),
            ),
            PutError::Unavailable(why) => flaws.extend(not_durable(&why).flaws),
            other => flaws.push(SpecError::new(format!("limits[{index}].id"), other.to_string())),
        }
    }
    flaws
}
