//! A subject: something that can be asked whether a key may.
//!
//! The loops are methods of [`Asker`] with a body of their own, so that each subject gets its own copy of them, compiled
//! together with its own `ask`: one virtual call for a whole run, none for a decision.

use crate::keys::Keys;

/// How many decisions make a batch.
pub const BATCH: usize = 16;

/// Something that is measured.
pub trait Subject: Sync {
    /// What it is called in the tables.
    fn name(&self) -> &'static str;

    /// An asker for one thread.
    fn asker(&self) -> Box<dyn Asker + '_>;

    /// Whether it can be asked for several keys at once. One that cannot is asked for each by itself.
    fn knows_batches(&self) -> bool {
        false
    }

    /// How many keys it remembers, if it says.
    fn rows(&self) -> Option<u64> {
        None
    }
}

/// What a subject said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Said {
    /// It may.
    Granted,
    /// It may not.
    Refused,
    /// There was no room to remember it, and the answer was made by rule: yes.
    GrantedByRule,
    /// The same: no.
    RefusedByRule,
}

impl Said {
    /// Granted or refused.
    pub fn of(granted: bool) -> Said {
        if granted { Said::Granted } else { Said::Refused }
    }
}

/// Asks a subject, on one thread.
pub trait Asker {
    /// Asks for one unit for this key.
    fn ask(&mut self, key: &str) -> Said;

    /// Asks for one unit for each of these keys, as many as make a batch; how many were granted.
    fn ask_batch(&mut self, keys: &[&str]) -> usize {
        keys.iter().filter(|key| self.ask(key) == Said::Granted).count()
    }

    /// Asks for every key by itself; how many were granted.
    fn singles(&mut self, keys: &Keys) -> usize {
        keys.iter().filter(|key| self.ask(key) == Said::Granted).count()
    }

    /// Asks for all keys in batches; how many were granted.
    fn batches(&mut self, keys: &Keys) -> usize {
        let (mut granted, mut keys) = (0, keys.iter());
        let mut batch = [""; BATCH];
        loop {
            for place in &mut batch {
                let Some(key) = keys.next() else { return granted };
                *place = key;
            }
            granted += self.ask_batch(&batch);
        }
    }
}
