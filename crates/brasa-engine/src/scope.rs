//! The identity of cached keys and values.

/// Everything besides tokens that keys and values depend on.
///
/// Sessions and shared prefixes give keys and values only to requests of an equal scope. The engine only compares scopes; callers
/// number models and adapters as they like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CacheScope {
    /// Number of the model that computed the keys and values.
    pub model: u64,
    /// The adapter that was applied to the model; 0 for none.
    pub adapter: u64,
    /// Keeps requests apart that must not share, e.g. those of different users: whether a prompt is cached shows in the
    /// time to the first token.
    pub salt: u64,
}
