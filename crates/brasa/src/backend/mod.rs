//! The ways to run a model, and which of them this machine has.

mod contract;
mod error;
#[cfg(feature = "mlx_lm")]
mod mlx_lm;
mod native;

use std::path::Path;

pub use contract::Backend;
use contract::kind;
pub use error::{BackendError, Unavailable};
#[cfg(feature = "mlx_lm")]
pub use mlx_lm::MlxLm;
use native::Missing;
#[cfg(any(feature = "cpu", feature = "cuda"))]
use native::Native;

use crate::{Error, LoadOptions, TextModel};

/// Backends in order of preference.
///
/// There is no global list: a program makes its own, and may add to it.
///
/// ```
/// use brasa::{Backends, GenerateOptions, LoadOptions};
///
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/lexicon-qwen3/lexicon-qwen3-Q6_K.gguf");
/// let backends = Backends::built_in();
/// // The best one that this machine has; with `device: Some("mlx_lm".into())` that one.
/// let model = backends.load(path, &LoadOptions::default())?;
/// let options = GenerateOptions { max_tokens: Some(4), ..GenerateOptions::default() };
/// let text = model.generate("ember:", &options)?.into_text()?;
/// assert!(!text.is_empty());
/// assert_eq!(model.model_type(), "qwen3");
/// # Ok::<(), brasa::Error>(())
/// ```
pub struct Backends(Vec<Box<dyn Backend>>);

impl Backends {
    /// A list of no backends.
    pub fn none() -> Self {
        Self(Vec::new())
    }

    /// The backends of Brasa, best first: `cuda`, `metal`, `cpu`, `mlx_lm`. Backends that this build or this version lacks are
    /// listed as unavailable.
    ///
    /// Starts nothing: a backend examines the machine only in [`Backend::available`].
    pub fn built_in() -> Self {
        let mut backends = Self::none();
        for name in ["cuda", "metal", "cpu", "mlx_lm"] {
            backends.0.push(match name {
                #[cfg(feature = "cuda")]
                "cuda" => Box::new(Native(name)),
                #[cfg(feature = "cpu")]
                "cpu" => Box::new(Native(name)),
                #[cfg(feature = "mlx_lm")]
                "mlx_lm" => Box::new(MlxLm::default()),
                "metal" => Box::new(Missing(name, "this version of Brasa has no kernels for Apple's GPUs")),
                _ => Box::new(Missing(name, "this build was made without it")),
            });
        }
        backends
    }

    /// Adds a backend as the last choice, or replaces the one with the same name.
    pub fn register(&mut self, backend: impl Backend + 'static) {
        let backend: Box<dyn Backend> = Box::new(backend);
        match self.0.iter_mut().find(|known| known.name() == backend.name()) {
            Some(known) => *known = backend,
            None => self.0.push(backend),
        }
    }

    /// All backends, best first.
    pub fn iter(&self) -> impl Iterator<Item = &dyn Backend> {
        self.0.iter().map(AsRef::as_ref)
    }

    /// The backend with this name, available or not.
    ///
    /// # Errors
    ///
    /// [`BackendError::Unknown`], with the names of all backends.
    pub fn get(&self, name: &str) -> Result<&dyn Backend, BackendError> {
        self.iter().find(|backend| backend.name() == name).ok_or_else(|| BackendError::Unknown {
            name: name.into(),
            known: self.iter().map(|backend| backend.name().to_owned()).collect(),
        })
    }

    /// The first available backend. Later ones are not checked.
    ///
    /// # Errors
    ///
    /// [`BackendError::NoneAvailable`], with the reason of each.
    pub fn default(&self) -> Result<&dyn Backend, BackendError> {
        let mut reasons = Vec::new();
        for backend in self.iter() {
            match backend.available() {
                Ok(_) => return Ok(backend),
                Err(reason) => reasons.push(reason),
            }
        }
        Err(BackendError::NoneAvailable(reasons))
    }

    /// Loads a model with the backend that [`LoadOptions::device`] names (`cuda:1` names `cuda`), or with the
    /// [default](Self::default).
    ///
    /// # Errors
    ///
    /// The errors of [`get`](Self::get), [`default`](Self::default) and [`Backend::load`].
    pub fn load(&self, path: impl AsRef<Path>, options: &LoadOptions) -> Result<Box<dyn TextModel>, Error> {
        let backend = match options.device.as_deref() {
            None | Some("auto") => self.default()?,
            Some(device) => self.get(kind(device))?,
        };
        let options =
            LoadOptions { device: options.device.clone().filter(|name| name != "auto"), ..options.clone() };
        backend.load(path.as_ref(), &options)
    }
}
