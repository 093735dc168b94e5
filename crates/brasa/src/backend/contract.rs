//! The contract of backends.

use std::path::Path;

use super::error::Unavailable;
use crate::{Error, LoadOptions, TextModel};

/// One way to load and run models.
pub trait Backend: Send + Sync {
    /// The name by which a caller chooses the backend, e.g. `cpu`.
    fn name(&self) -> &str;

    /// Describes the device that the backend would use, or says why the backend cannot run here.
    ///
    /// # Errors
    ///
    /// [`Unavailable`], with the reason.
    fn available(&self) -> Result<String, Unavailable>;

    /// Loads the model at `path`.
    ///
    /// # Errors
    ///
    /// [`Error::Backend`] if the backend is not available or does not support an option; otherwise [`Error`], naming file and
    /// remedy.
    fn load(&self, path: &Path, options: &LoadOptions) -> Result<Box<dyn TextModel>, Error>;
}

/// The name of a device without its number: `cuda` of `cuda:1`.
pub(super) fn kind(device: &str) -> &str {
    device.split_once(':').map_or(device, |(kind, _)| kind)
}
