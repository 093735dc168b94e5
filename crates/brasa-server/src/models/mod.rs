//! The models that are served: their list, loading, slots and adapters.

pub(crate) mod adapter_files;
pub(crate) mod adapters;
pub(crate) mod coming;
pub(crate) mod entry;
pub(crate) mod loaded;
pub(crate) mod loaded_speech;
pub(crate) mod loaded_text;
pub(crate) mod loading;
pub(crate) mod lost;
pub(crate) mod names;
pub(crate) mod presence;
pub(crate) mod reaper;
pub(crate) mod registry;
pub(crate) mod slot_files;
pub(crate) mod slots;
