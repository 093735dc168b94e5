//! The functions of the CUDA driver library, looked up when the program runs.
//!
//! Signatures follow the header `cuda.h` of CUDA 12.0 and later; a function that the header renames by a macro is looked
//! up under its real name (`cuMemAlloc_v2`).

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::path::Path;

use libloading::Library;

use super::DriverError;

/// A driver's status; 0 is success.
pub(super) type Status = c_int;
/// A device of the driver.
pub(super) type CuDevice = c_int;
/// An address in device memory.
pub(super) type CuAddress = u64;
/// A handle that only the driver looks into.
pub(super) type Handle = *mut c_void;

/// A launch as the driver takes it.
#[repr(C)]
pub(super) struct LaunchConfig {
    pub grid: [c_uint; 3],
    pub block: [c_uint; 3],
    pub shared_bytes: c_uint,
    pub stream: Handle,
    pub attributes: *const LaunchAttribute,
    pub attributes_count: c_uint,
}

/// A wish for a launch: its number and its value, a union of 64 bytes that begins with an integer.
#[repr(C, align(8))]
pub(super) struct LaunchAttribute {
    pub id: c_uint,
    pub value: [c_int; 17],
}

/// All blocks run at the same time.
pub(super) const COOPERATIVE: c_uint = 2;
/// Blocks may start before the launch in front has ended; they wait for it themselves.
pub(super) const PROGRAMMATIC_SERIALIZATION: c_uint = 6;

const _: () =
    assert!(size_of::<LaunchAttribute>() == 72 && size_of::<LaunchConfig>() == 56, "as cuda.h has them");

/// Names of the driver library on Linux and on Windows; tried in order.
const LIBRARIES: &[&str] = if cfg!(windows) { &["nvcuda.dll"] } else { &["libcuda.so.1", "libcuda.so"] };

macro_rules! functions {
    ($($name:ident = $symbol:literal ($($arg:ident: $type:ty),* $(,)?);)*) => {
        /// The driver's functions. They live as long as the library that holds them.
        pub(super) struct Functions {
            $($name: unsafe extern "system" fn($($type),*) -> Status,)*
            _library: Library,
        }

        impl Functions {
            /// Looks every function up in `library`.
            fn find(library: Library) -> Result<Self, DriverError> {
                Ok(Self {
                    $($name: {
                        // SAFETY: the symbol of the driver library has the signature that its header declares.
                        let found = unsafe { library.get(concat!($symbol, "\0").as_bytes()) };
                        *found.map_err(|_| DriverError::MissingFunction { name: $symbol })?
                    },)*
                    _library: library,
                })
            }

            $(
                /// Calls the driver function of this name.
                ///
                /// # Safety
                ///
                /// Pointers are valid for what the driver's manual says it reads and writes; handles are alive.
                #[allow(dead_code, reason = "errors are described without this check, which would describe its own error")]
                pub(super) unsafe fn $name(&self, $($arg: $type),*) -> Result<(), DriverError> {
                    // SAFETY: the caller's promise; the library is loaded as long as `self` lives.
                    let status = unsafe { (self.$name)($($arg),*) };
                    self.check($symbol, status)
                }
            )*
        }
    };
}

functions! {
    init = "cuInit"(flags: c_uint);
    driver_version = "cuDriverGetVersion"(version: *mut c_int);
    device_count = "cuDeviceGetCount"(count: *mut c_int);
    device = "cuDeviceGet"(device: *mut CuDevice, ordinal: c_int);
    device_name = "cuDeviceGetName"(name: *mut c_char, len: c_int, device: CuDevice);
    device_attribute = "cuDeviceGetAttribute"(value: *mut c_int, attribute: c_int, device: CuDevice);
    device_memory = "cuDeviceTotalMem_v2"(bytes: *mut usize, device: CuDevice);
    retain_context = "cuDevicePrimaryCtxRetain"(context: *mut Handle, device: CuDevice);
    release_context = "cuDevicePrimaryCtxRelease_v2"(device: CuDevice);
    create_context = "cuCtxCreate_v2"(context: *mut Handle, flags: c_uint, device: CuDevice);
    destroy_context = "cuCtxDestroy_v2"(context: Handle);
    set_context = "cuCtxSetCurrent"(context: Handle);
    memory_info = "cuMemGetInfo_v2"(free: *mut usize, total: *mut usize);
    allocate = "cuMemAlloc_v2"(address: *mut CuAddress, bytes: usize);
    free = "cuMemFree_v2"(address: CuAddress);
    allocate_host = "cuMemHostAlloc"(pointer: *mut *mut c_void, bytes: usize, flags: c_uint);
    free_host = "cuMemFreeHost"(pointer: *mut c_void);
    upload = "cuMemcpyHtoDAsync_v2"(to: CuAddress, from: *const c_void, bytes: usize, stream: Handle);
    download = "cuMemcpyDtoHAsync_v2"(to: *mut c_void, from: CuAddress, bytes: usize, stream: Handle);
    copy = "cuMemcpyDtoDAsync_v2"(to: CuAddress, from: CuAddress, bytes: usize, stream: Handle);
    fill = "cuMemsetD8Async"(address: CuAddress, byte: u8, bytes: usize, stream: Handle);
    create_stream = "cuStreamCreate"(stream: *mut Handle, flags: c_uint);
    synchronize_stream = "cuStreamSynchronize"(stream: Handle);
    query_stream = "cuStreamQuery"(stream: Handle);
    destroy_stream = "cuStreamDestroy_v2"(stream: Handle);
    create_event = "cuEventCreate"(event: *mut Handle, flags: c_uint);
    record_event = "cuEventRecord"(event: Handle, stream: Handle);
    elapsed_ms = "cuEventElapsedTime"(ms: *mut f32, start: Handle, end: Handle);
    destroy_event = "cuEventDestroy_v2"(event: Handle);
    load_module = "cuModuleLoadData"(module: *mut Handle, image: *const c_void);
    unload_module = "cuModuleUnload"(module: Handle);
    function = "cuModuleGetFunction"(function: *mut Handle, module: Handle, name: *const c_char);
    launch = "cuLaunchKernelEx"(
        config: *const LaunchConfig,
        function: Handle,
        parameters: *mut *mut c_void,
        extra: *mut *mut c_void,
    );
    set_function_attribute = "cuFuncSetAttribute"(function: Handle, attribute: c_int, value: c_int);
    error_name = "cuGetErrorName"(status: Status, name: *mut *const c_char);
    error_text = "cuGetErrorString"(status: Status, text: *mut *const c_char);
}

impl Functions {
    /// Loads the driver library: the library at `path`, or the system's.
    pub(super) fn load(path: Option<&Path>) -> Result<Self, DriverError> {
        let mut reason = String::new();
        let names: Vec<&Path> = match path {
            Some(path) => vec![path],
            None => LIBRARIES.iter().map(Path::new).collect(),
        };
        for name in names {
            // SAFETY: initialisers of the driver library may run at any time in any thread.
            match unsafe { Library::new(name) } {
                Ok(library) => return Self::find(library),
                Err(error) if reason.is_empty() => reason = error.to_string(),
                Err(_) => {}
            }
        }
        Err(DriverError::NotInstalled { reason })
    }

    /// A number of the library, alike wherever it is loaded again.
    pub(super) fn library(&self) -> usize {
        self.init as usize
    }

    /// An error for a status other than success.
    fn check(&self, function: &'static str, status: Status) -> Result<(), DriverError> {
        if status == 0 {
            return Ok(());
        }
        let describe = |find: unsafe extern "system" fn(Status, *mut *const c_char) -> Status| {
            let mut text: *const c_char = std::ptr::null();
            // SAFETY: `text` is a place for a pointer.
            let found = unsafe { find(status, &raw mut text) };
            if found != 0 || text.is_null() {
                return String::new();
            }
            // SAFETY: the driver's texts are constant and end with a zero byte.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        Err(DriverError::Call {
            function,
            status,
            name: describe(self.error_name),
            text: describe(self.error_text),
        })
    }
}

impl fmt::Debug for Functions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Functions")
    }
}
