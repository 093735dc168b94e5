//! Loaded kernels.

use std::collections::HashMap;
use std::ffi::{CString, c_int};
use std::sync::{Arc, Mutex, PoisonError};

use super::functions::Handle;
use super::{Context, DriverError};

/// Kernels that were loaded together.
#[derive(Debug)]
pub(crate) struct Module {
    context: Arc<Context>,
    handle: Handle,
    /// The dynamic shared memory that kernels are allowed, by the addresses of their handles.
    allowed: Mutex<HashMap<usize, u32>>,
}

// SAFETY: the driver's functions may be called from any thread; the handle is never written after creation.
unsafe impl Send for Module {}
// SAFETY: see `Send`.
unsafe impl Sync for Module {}

/// A kernel of a module, which it keeps loaded.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    module: Arc<Module>,
    pub(super) handle: Handle,
}

// SAFETY: the driver's functions may be called from any thread; the handle is never written after creation.
unsafe impl Send for Kernel {}
// SAFETY: see `Send`.
unsafe impl Sync for Kernel {}

impl Module {
    /// Loads `image`: a cubin, or PTX that ends with a zero byte.
    pub(crate) fn load(context: &Arc<Context>, image: &[u8]) -> Result<Arc<Self>, DriverError> {
        context.make_current()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the image is one that this crate embeds: a whole cubin, or text with its end.
        unsafe { context.functions.load_module(&raw mut handle, image.as_ptr().cast()) }?;
        Ok(Arc::new(Self { context: Arc::clone(context), handle, allowed: Mutex::default() }))
    }

    /// The kernel called `name`.
    pub(crate) fn kernel(self: &Arc<Self>, name: &str) -> Result<Kernel, DriverError> {
        let missing = || DriverError::Kernels { what: format!("there is no kernel {name}") };
        let symbol = CString::new(name).map_err(|_| missing())?;
        self.context.make_current()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: `handle` is a place for a handle; the name ends with a zero byte.
        unsafe { self.context.functions.function(&raw mut handle, self.handle, symbol.as_ptr()) }
            .map_err(|_| missing())?;
        Ok(Kernel { module: Arc::clone(self), handle })
    }
}

/// The number of a kernel's largest dynamic shared memory among its attributes in `cuda.h`.
const MOST_SHARED_BYTES: c_int = 8;

impl Kernel {
    /// Lets the kernel be launched with up to `shared_bytes` of dynamic shared memory, which may be more than every device has.
    /// Programs share kernels: a size that was allowed for one program stays allowed.
    pub(crate) fn allow_shared(&self, shared_bytes: u32) -> Result<(), DriverError> {
        let context = &self.module.context;
        context.make_current()?;
        let mut allowed = self.module.allowed.lock().unwrap_or_else(PoisonError::into_inner);
        let most = allowed.entry(self.handle as usize).or_default();
        if shared_bytes > *most {
            // SAFETY: the function belongs to a module that is loaded.
            unsafe {
                context.functions.set_function_attribute(
                    self.handle,
                    MOST_SHARED_BYTES,
                    shared_bytes as c_int,
                )
            }?;
            *most = shared_bytes;
        }
        Ok(())
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.context.make_current().is_ok() {
            // SAFETY: loaded once, unloaded once; its kernels keep it alive.
            let _ = unsafe { self.context.functions.unload_module(self.handle) };
        }
    }
}
