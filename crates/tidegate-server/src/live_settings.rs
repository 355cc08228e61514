//! The rules in force: which limits and tokens come from the file.
//!
//! Decided: one path. What a server starts with is applied to a store without limits by the same call that applies an edit later. All of
//! it is checked first; then limits change together ([`Catalog::apply`](tidegate::Catalog::apply)) and, when that is durable, tokens
//! behind them. What fails changes nothing; but if the store's log fails while limits change, whoever applies is told so, and nobody
//! knows which limits there will be after a restart.
//!
//! Decided: the file wins. A limit that was made over the API and is written in the file later is the file's from then on, with the counts of
//! its items that survive. A limit that is no longer written is unknown at once; if it comes back within
//! [`RETIREMENT`](tidegate::catalog::RETIREMENT), so do its counts.
//!
//! Decided: until the first settings are applied nobody has a token, so that nobody comes in before it is known who may.
//!
//! Decided: the section `activity` is a limit of the file like those below `limits`, and the rules of the [`Activity`] with it. What the
//! environment says goes over what is written, and is put where nothing is written, so that whoever starts a server so gets these numbers.
//! Without either the limit is whatever the store has, whoever put it there, and nobody's file removes or changes it by a request.
//!
//! Decided: a server without a file applies nothing, and so removes nothing that others have from theirs. Caller applies a file in which
//! limits are missing that another process had in its own retires them, and says so in the log.
//!
//! Sockets and stores stay what they were at the start: `server` and `store` are compared with what they were then, and whoever
//! applies is told which of them wait for a restart.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use std::collections::HashSet;

use crate::settings::{ActivitySpec, ServerSpec, Settings, StoreSpec};
use tidegate::activity::{self, Activity, TaskOwner};
use tidegate::catalog::{ApplyError, Origin, PutError};
use tidegate::store::{Unavailable, wait_durable};
use tidegate::{Edit, EditOutcome, ExpectedVersion, LimitSpec, LimitStore, RemovalMode, SpecError};
use tidegate_config::limits::is_reserved;

use crate::resp::described_buckets::RESERVED_ID_MESSAGE;
use crate::tokens::{SharedTokens, TokenTable};

/// Which limits and tokens come from the file.
pub struct LiveSettings {
    store: Arc<dyn LimitStore>,
    tokens: Arc<SharedTokens>,
    auth_policy: AuthPolicy,
    /// What is told its rules, and what goes over those that are written.
    activity: Option<(Activity, ActivitySpec)>,
    /// The ids of the limits that are written in the file.
    from_file: RwLock<HashSet<Box<str>>>,
    /// Held while settings are applied.
    in_force: Mutex<CurrentSettings>,
}

/// Whether settings may let everybody in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AuthPolicy {
    Optional,
    TokenTable,
}

#[derive(Default)]
struct CurrentSettings {
    settings: Arc<Settings>,
    /// The ids of the limits that this process has put from its file.
    put: HashSet<Box<str>>,
    /// The sections that are read once, as they were then.
    at_start: Option<(ServerSpec, StoreSpec)>,
}

/// What became of the limits when settings were applied.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SettingsApplied {
    /// Limits that were not there before.
    pub added: usize,
    /// Limits that say something else by now.
    pub changed: usize,
    /// Limits that are no longer written.
    pub removed: usize,
    /// Limits that say what they said.
    pub unchanged: usize,
    /// Limits that another process had from its file, and that are removals because this one does not have them.
    pub retired_foreign: Vec<String>,
    /// The sections that have changed since the start and wait for a restart.
    pub needs_restart: Vec<&'static str>,
}

impl fmt::Display for SettingsApplied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SettingsApplied { added, changed, removed, unchanged, .. } = self;
        write!(f, "{added} limits added, {changed} changed, {removed} removed, {unchanged} unchanged")
    }
}

/// Why settings were not applied: all that is wrong with them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingsRejected {
    /// What is wrong, with its place in the file.
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
    /// No rules yet, over this store. Nobody may come in until the first are applied.
    pub fn new(store: Arc<dyn LimitStore>) -> LiveSettings {
        // A store that outlives its servers knows which limits were a file's when it was last open.
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

    /// Refuses settings without `auth`: strangers can reach the server, and must not be let in by an edit.
    pub fn require_tokens(mut self) -> LiveSettings {
        self.auth_policy = AuthPolicy::TokenTable;
        self
    }

    /// Tells this activity the rules of the section `activity`, with what is said here over them.
    pub fn with_activity(mut self, activity: Activity, over: ActivitySpec) -> LiveSettings {
        self.activity = Some((activity, over));
        self
    }

    /// Caller may come in; the same for every door, and as the latest settings say.
    pub fn tokens(&self) -> &Arc<SharedTokens> {
        &self.tokens
    }

    /// The settings in force; empty ones before the first are applied.
    pub fn in_force(&self) -> Arc<Settings> {
        Arc::clone(&self.in_force.lock().unwrap_or_else(PoisonError::into_inner).settings)
    }

    /// Whether the limit of this id is written in the file, or in that of another server of the same store, and changed there only.
    pub fn is_from_file(&self, id: &str) -> bool {
        let is_ours = self.from_file.read().unwrap_or_else(PoisonError::into_inner).contains(id);
        is_ours || self.store.applied().iter().any(|applied| applied == id)
    }

    /// Puts these settings in place of those in force, or changes nothing. Blocks until the limits are durable: not for tasks.
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

        // Whatever is or will be the file's is nobody else's to change meanwhile.
        self.set_managed(former.union(&written).cloned().collect());
        let edited = match self.store.apply(edits) {
            Ok(edited) => edited,
            Err(error) => {
                self.set_managed(former);
                return Err(SettingsRejected { flaws: flaws_of(error, &limits) });
            }
        };
        if let Some(lsn) = self.store.tip() {
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

    /// There is no file: everybody may come in, if that is allowed at all, and limits are those of the store. What is said over the section
    /// `activity` is put. Blocks until that is durable: not for tasks.
    pub fn apply_defaults(&self) -> Result<(), SettingsRejected> {
        let _in_turn = self.in_force.lock().unwrap_or_else(PoisonError::into_inner);
        let nothing = Settings::default();
        let tokens = self.check(&nothing)?;
        let rules = self.activity_rules(&nothing)?;
        self.configure_activity(rules, false)?;
        self.tokens.set(tokens);
        Ok(())
    }

    /// Tells the activity its rules. If no file has the limit, but somebody says numbers for it, they are put here and not when somebody
    /// asks: who says nothing must be able to ask without changing anything.
    fn configure_activity(&self, rules: activity::Rules, from_file: bool) -> Result<(), SettingsRejected> {
        let Some((activity, over)) = &self.activity else { return Ok(()) };
        if !from_file && *over != ActivitySpec::default() {
            let edit = vec![Edit::Put(rules.spec(), ExpectedVersion::Anything)];
            let edited =
                self.store.edit(edit, Origin::Put).wait(&*self.store).map_err(|error| not_durable(&error))?;
            edited.map_err(|error| SettingsRejected { flaws: flaws_of(error, &[]) })?;
            if let Some(lsn) = self.store.tip() {
                wait_durable(&*self.store, lsn).map_err(|error| not_durable(&error))?;
            }
        }
        let kept_by = if from_file { TaskOwner::SomebodyElse } else { TaskOwner::Store };
        // They were found to make sense before anything was changed.
        let _told = activity.set_rules(rules, kept_by);
        Ok(())
    }

    /// The rules of the activity: what is written, and what goes over it.
    fn activity_rules(&self, settings: &Settings) -> Result<activity::Rules, SettingsRejected> {
        let over = self.activity.as_ref().map(|(_, over)| *over).unwrap_or_default();
        let rules = over.over(settings.activity.unwrap_or_default()).rules();
        let in_section =
            |flaw: SpecError| SpecError::new(format!("{}.{}", activity::ID, flaw.field), flaw.message);
        let mut flaws: Vec<SpecError> = rules.flaws().into_iter().map(in_section).collect();
        let index = settings.limits.iter().position(|limit| limit.id == activity::ID);
        if let (Some(index), true) = (index, over != ActivitySpec::default()) {
            let message = "is the limit of activities, and the environment has numbers for it; write the section activity instead";
            flaws.push(SpecError::new(format!("limits[{index}].id"), message));
        }
        if flaws.is_empty() { Ok(rules) } else { Err(SettingsRejected { flaws }) }
    }

    /// Checks what the store does not, and makes the tokens.
    fn check(&self, settings: &Settings) -> Result<TokenTable, SettingsRejected> {
        let reserved = settings.limits.iter().enumerate().filter(|(_, limit)| is_reserved(&limit.id));
        let mut flaws: Vec<SpecError> = reserved
            .map(|(index, _)| SpecError::new(format!("limits[{index}].id"), RESERVED_ID_MESSAGE))
            .collect();
        let tokens = match &settings.tokens {
            None if self.auth_policy == AuthPolicy::TokenTable => {
                let message = "is missing; this server can be reached from other machines, and nobody would need a token";
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

/// Says which limits of others are removals: some of them by name.
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

/// What is said when the store's log fails meanwhile.
fn not_durable(error: &Unavailable) -> SettingsRejected {
    let message = format!(
        "could not write the limits down: {}; see to it and start the server again, which reads the settings anew",
        error.reason
    );
    SettingsRejected { flaws: vec![SpecError::new("store", message)] }
}

/// What the store refuses, by its place in the file.
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
