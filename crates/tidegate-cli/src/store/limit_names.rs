//! Limit ids and item names by generation: records refer to limits by number.

use std::sync::Arc;

use hashbrown::HashMap;
use tidegate::model::Tick;
use tidegate::store::memory::restore::StoredLimit;
use tidegate_core::Limit;

/// Names of the limits read so far.
#[derive(Debug, Default)]
pub(super) struct LimitNames {
    by_generation: HashMap<u64, LimitGeneration>,
    by_id: HashMap<String, Arc<Limit>>,
}

#[derive(Debug)]
struct LimitGeneration {
    id: String,
    /// Item names of each version.
    items: HashMap<u32, Vec<String>>,
}

impl LimitNames {
    /// Adds the definition of a limit.
    pub(super) fn put(&mut self, text: &StoredLimit) {
        let id = text.spec.id.clone();
        let names = text.spec.items.iter().map(tidegate::model::ItemSpec::effective_name).collect();
        let incarnation = self
            .by_generation
            .entry(text.generation)
            .or_insert_with(|| LimitGeneration { id: id.clone(), items: HashMap::new() });
        incarnation.items.insert(text.version, names);
        let limit = Limit::restore(text.spec.clone(), Tick::NANOSECOND, text.version, &text.descent);
        if let Ok(limit) = limit {
            self.by_id.insert(id, Arc::new(limit));
        }
    }

    /// The id of a limit, if its definition was read.
    pub(super) fn id(&self, generation: u64) -> Option<String> {
        self.by_generation.get(&generation).map(|incarnation| incarnation.id.clone())
    }

    /// The name of an item, or its index if unknown.
    pub(super) fn item(&self, generation: u64, version: u32, index: usize) -> String {
        let incarnation = self.by_generation.get(&generation);
        let name = incarnation.and_then(|incarnation| incarnation.items.get(&version)?.get(index).cloned());
        name.unwrap_or_else(|| index.to_string())
    }

    /// The latest definition of a limit.
    pub(super) fn limit(&self, id: &str) -> Option<Arc<Limit>> {
        self.by_id.get(id).map(Arc::clone)
    }
}
