//! Modules of kernels: their PTX, and their functions once the driver has compiled it.
//!
//! A module is compiled for the card when the first of its kernels is needed, on a thread of its own, while weights are read. The driver
//! keeps what it compiled in a cache of its own (docs/gpu.md).

use std::borrow::Cow;
use std::collections::HashMap;
use std::env;
use std::ffi::OsStr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;

use cudarc::driver::sys::CUfunction_attribute_enum;
use cudarc::driver::{CudaContext, CudaFunction, DriverError};
use cudarc::nvrtc::Ptx;

use crate::cuda::failure::failure;
use crate::error::DeviceError;

/// Names of the modules, their PTX (`scripts/ptx` makes it), and whether every model needs them.
const EMBEDDED: &[(&str, &str, bool)] = &[
    ("attention_bf16", include_str!("../../gpu/ptx/attention_bf16.ptx"), false),
    ("attention_f32", include_str!("../../gpu/ptx/attention_f32.ptx"), false),
    ("embed", include_str!("../../gpu/ptx/embed.ptx"), true),
    ("experts", include_str!("../../gpu/ptx/experts.ptx"), false),
    ("heads", include_str!("../../gpu/ptx/heads.ptx"), true),
    ("product_bf16", include_str!("../../gpu/ptx/product_bf16.ptx"), false),
    ("product_f32", include_str!("../../gpu/ptx/product_f32.ptx"), false),
    ("product_int", include_str!("../../gpu/ptx/product_int.ptx"), false),
    ("rows", include_str!("../../gpu/ptx/rows.ptx"), true),
    ("score", include_str!("../../gpu/ptx/score.ptx"), true),
    ("score_cut", include_str!("../../gpu/ptx/score_cut.ptx"), true),
];

/// Folder of kernels to use instead of the embedded ones.
const FOLDER: &str = "DIFFULEX_PTX";

/// Shared memory that a block may ask for: what every device from compute capability 8.0 on has (8.6, 8.9 and 12.0 have
/// the least).
const MAX_SHARED: i32 = 99 << 10;

/// The PTX of each module, in the order of [`EMBEDDED`].
pub(crate) struct Texts(Vec<Cow<'static, str>>);

impl Texts {
    /// The embedded ones.
    pub(crate) fn embedded() -> Self {
        Self(EMBEDDED.iter().map(|(_, text, _)| Cow::Borrowed(*text)).collect())
    }

    /// The embedded ones, or those of the folder [`FOLDER`]; errors are those of the device called `device`.
    pub(crate) fn from_environment(device: &str) -> Result<Self, DeviceError> {
        match env::var_os(FOLDER) {
            Some(folder) if folder != OsStr::new("") => Self::of_folder(Path::new(&folder), device),
            _ => Ok(Self::embedded()),
        }
    }

    /// `NAME.ptx` of a folder; the embedded ones of modules that it does not have. It has at least one.
    pub(crate) fn of_folder(folder: &Path, device: &str) -> Result<Self, DeviceError> {
        let failed = |message| DeviceError { device: device.to_owned(), operation: "load kernels", message };
        let mut texts = Self::embedded();
        let mut n_found = 0;
        for (text, (name, ..)) in texts.0.iter_mut().zip(EMBEDDED) {
            let path = folder.join(name).with_extension("ptx");
            if path.exists() {
                let read = std::fs::read_to_string(&path);
                *text = Cow::Owned(read.map_err(|error| failed(format!("{FOLDER}: {}: {error}", path.display())))?);
                n_found += 1;
            }
        }
        if n_found == 0 {
            return Err(failed(format!("{FOLDER}: {} has no file such as rows.ptx", folder.display())));
        }
        Ok(texts)
    }
}

/// A module, compiled when it is first needed.
struct Module {
    text: Cow<'static, str>,
    functions: OnceLock<Result<HashMap<String, CudaFunction>, DeviceError>>,
    /// A thread loads it, or has.
    is_begun: AtomicBool,
}

impl Module {
    fn functions(
        &self,
        context: &Arc<CudaContext>,
        device: &str,
    ) -> Result<&HashMap<String, CudaFunction>, DeviceError> {
        let load = || self.load(context).map_err(|error| failure(device, "load kernels", error));
        self.functions.get_or_init(load).as_ref().map_err(Clone::clone)
    }

    fn load(&self, context: &Arc<CudaContext>) -> Result<HashMap<String, CudaFunction>, DriverError> {
        let module = context.load_module(Ptx::from_src(&*self.text))?;
        let mut functions = HashMap::new();
        for kernel in kernels(&self.text) {
            let function = module.load_function(kernel)?;
            let most_shared = CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            function.set_attribute(most_shared, MAX_SHARED)?;
            functions.insert(kernel.to_owned(), function);
        }
        Ok(functions)
    }
}

/// All modules of a device.
pub(crate) struct Modules {
    device: String,
    context: Arc<CudaContext>,
    modules: Vec<Arc<Module>>,
    /// The module of each kernel.
    places: HashMap<String, usize>,
}

impl Modules {
    /// Loads the modules that every model needs, each on a thread.
    pub(crate) fn new(device: &str, context: &Arc<CudaContext>, texts: Texts) -> Result<Self, DeviceError> {
        let mut places = HashMap::new();
        for (index, text) in texts.0.iter().enumerate() {
            places.extend(kernels(text).map(|kernel| (kernel.to_owned(), index)));
        }
        let module = |text| Arc::new(Module { text, functions: OnceLock::new(), is_begun: AtomicBool::new(false) });
        let modules: Vec<Arc<Module>> = texts.0.into_iter().map(module).collect();
        thread::scope(|scope| {
            for (module, _) in modules.iter().zip(EMBEDDED).filter(|(_, (.., is_always))| *is_always) {
                scope.spawn(|| module.functions(context, device).map(|_| ()));
            }
        });
        let modules = Self { device: device.to_owned(), context: context.clone(), modules, places };
        for (module, _) in modules.modules.iter().zip(EMBEDDED).filter(|(_, (.., is_always))| *is_always) {
            module.functions(context, device)?;
        }
        Ok(modules)
    }

    /// Begins to load the modules of some kernels, each on a thread; [`Modules::function`] waits for it.
    pub(crate) fn prepare(&self, kernels: &[&'static str]) {
        let mut places: Vec<usize> = kernels.iter().filter_map(|kernel| self.places.get(*kernel).copied()).collect();
        places.sort_unstable();
        places.dedup();
        for place in places {
            let module = self.modules[place].clone();
            if module.functions.get().is_none() && !module.is_begun.swap(true, Ordering::Relaxed) {
                let (context, device) = (self.context.clone(), self.device.clone());
                // It is not waited for: who needs a function does, and gets its error.
                thread::spawn(move || module.functions(&context, &device).map(|_| ()));
            }
        }
    }

    /// The kernel called `name`.
    pub(crate) fn function(&self, name: &'static str) -> Result<&CudaFunction, DeviceError> {
        let found = match self.places.get(name) {
            Some(place) => self.modules[*place].functions(&self.context, &self.device)?.get(name),
            None => None,
        };
        found.ok_or_else(|| DeviceError {
            device: self.device.clone(),
            operation: "launch",
            message: format!("kernel {name} not found in the PTX"),
        })
    }

    /// Names of the modules that are loaded.
    #[cfg(test)]
    pub(crate) fn loaded(&self) -> Vec<&'static str> {
        let modules = EMBEDDED.iter().zip(&self.modules);
        modules.filter(|(_, module)| module.functions.get().is_some()).map(|((name, ..), _)| *name).collect()
    }
}

/// Names of the kernels in a PTX text.
fn kernels(text: &str) -> impl Iterator<Item = &str> {
    text.split(".entry ").skip(1).filter_map(|rest| rest.split(['(', '\n', ' ']).next())
}
