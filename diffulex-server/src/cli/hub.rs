//! Models by their names on the Hugging Face Hub: fetched before anything is loaded, listed and deleted.
//!
//! In: a configuration with names. Out: the same with folders and files of the cache. Never here: how models are fetched, what a server
//! does with them.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Instant;

use diffulex_engine::models::read_config;
use diffulex_engine::{LoadError, ModelFiles};
use diffulex_hub::{CachedModel, Hub, HubError, HubName, HubSettings, NameError, Progress, Selection};
use indicatif::{HumanBytes, ProgressBar, ProgressStyle};

use crate::cli::banner::counted;
use crate::config::ServerConfig;
use crate::os::locks::lock;
use crate::os::terminal::say;
use crate::outbound;

/// A model that cannot be had by its name.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The name is none.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The text is not a name of the Hub but may be a path.
    #[error("{0}: not the name of a model on the Hub; expected OWNER/NAME[@REVISION][:FILE]")]
    NotAName(String),
    /// The environment names no folder for downloads.
    #[error("{0}")]
    Settings(String),
    /// The Hub or the cache.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// The model is not one that is served here.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The result cannot be written.
    #[error("cannot write the answer: {0}")]
    Output(std::io::Error),
    /// There is no thread or no runtime for the download.
    #[error("cannot start the download: {0}")]
    Thread(std::io::Error),
    /// The repository to delete is not there.
    #[error("{repository} is not in the cache {}", .cache.display())]
    NotCached {
        /// `OWNER/NAME`.
        repository: String,
        /// The cache's folder.
        cache: PathBuf,
    },
}

/// `config` with the models and adapters that are names of the Hub fetched, and with their folders in place of the names. What is a
/// path stays as it is.
pub(crate) fn fetch_named(mut config: ServerConfig) -> Result<ServerConfig, FetchError> {
    if let Some(model) = &config.model
        && let Some(name) = name_of(&model.to_string_lossy())?
    {
        config.model = Some(fetch(&name, Selection::Model)?);
        if name.file.is_none() {
            // Its folder has the name of a commit.
            config.served_model_name.get_or_insert(name.repository);
        }
    }
    let engine = &mut config.engine;
    for path in engine.adapters.iter_mut().map(|adapter| &mut adapter.path).chain(&mut engine.merged_adapter) {
        if let Some(name) = name_of(path)? {
            *path = fetch(&name, Selection::Adapter)?.to_string_lossy().into_owned();
        }
    }
    Ok(config)
}

/// The `pull` subcommand: fetches a model or an adapter and prints where it is.
pub fn pull(text: &str) -> Result<(), FetchError> {
    let name = required(text)?;
    let path = fetch(&name, Selection::Model).or_else(|error| match error {
        FetchError::Hub(HubError::Unusable { .. }) => fetch(&name, Selection::Adapter).map_err(|_| error),
        error => Err(error),
    })?;
    print(&path.display().to_string())
}

/// The `models` subcommand: lists what the cache has.
pub fn models() -> Result<(), FetchError> {
    let hub = hub()?;
    let models = hub.cache().models()?;
    if models.is_empty() {
        say(&format!("{} has no models; `diffulex-server pull OWNER/NAME` fetches one", hub.cache().root().display()));
    }
    let width = models.iter().map(|model| model.repository.len()).max().unwrap_or(0);
    models.iter().try_for_each(|model| print(&format!("{:width$}  {}", model.repository, row(&hub, model))))
}

/// The `rm` subcommand: deletes a repository from the cache.
pub fn remove(text: &str) -> Result<(), FetchError> {
    let (hub, HubName { repository, .. }) = (hub()?, required(text)?);
    let freed = hub.cache().remove(&repository)?;
    let freed = freed.ok_or_else(|| FetchError::NotCached { repository, cache: hub.cache().root().to_owned() })?;
    say(&format!("{} freed", HumanBytes(freed)));
    Ok(())
}

/// Size, family or state, and revisions of a model in the cache.
fn row(hub: &Hub, model: &CachedModel) -> String {
    let CachedModel { repository, revisions, gguf, .. } = model;
    let first = revisions.first().map(|(revision, _)| HubName {
        repository: repository.clone(),
        revision: Some(revision.clone()),
        file: None,
    });
    let found = first.map(|name| hub.cache().find(&name, Selection::Model));
    let state = match found {
        _ if !gguf.is_empty() => gguf.iter().map(String::as_str).collect::<Vec<_>>().join(", "),
        Some(Ok(Some(folder))) => match ModelFiles::folder(folder).and_then(|files| Ok(read_config(&files)?.0.name)) {
            Ok(family) => family.to_owned(),
            Err(_) => "not a model that is served here".to_owned(),
        },
        Some(Err(HubError::Incomplete { missing, .. })) => format!("without {}", missing.join(", ")),
        Some(Ok(None) | Err(_)) | None => "not whole".to_owned(),
    };
    let revisions = revisions.iter().map(|(revision, _)| revision.as_str()).collect::<Vec<_>>().join(", ");
    format!("{:>10}  {state}  {revisions}", HumanBytes(model.n_bytes).to_string()).trim_end().to_owned()
}

/// The name in a text, or `None` if it is a path.
fn name_of(text: &str) -> Result<Option<HubName>, FetchError> {
    Ok(HubName::parse(text).transpose()?)
}

fn required(text: &str) -> Result<HubName, FetchError> {
    name_of(text)?.ok_or_else(|| FetchError::NotAName(text.to_owned()))
}

fn hub() -> Result<Hub, FetchError> {
    let settings = HubSettings::of_environment().map_err(FetchError::Settings)?;
    let client = outbound::public_client(settings.endpoint.starts_with("https:"));
    Ok(Hub::new(settings, client)?)
}

/// Fetches a model, with a bar on a terminal and a line otherwise. Nobody is served meanwhile.
fn fetch(name: &HubName, selection: Selection) -> Result<PathBuf, FetchError> {
    let hub = hub()?;
    let bar = Bar::new(name);
    let check = |folder: &Path| match selection {
        // The name of the cache's folder says less.
        Selection::Model => match read_config(&ModelFiles::folder(folder)?) {
            Ok(_) => Ok(()),
            Err(error) => Err(FetchError::Load(LoadError::of(name, error.what))),
        },
        Selection::Adapter => Ok(()),
    };
    let path = std::thread::scope(|scope| {
        let download = std::thread::Builder::new().name("diffulex-hub".to_owned()).spawn_scoped(scope, || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(FetchError::Thread)?;
            runtime.block_on(hub.obtain(name, selection, check, &|progress| bar.show(progress)))
        });
        let download = download.map_err(FetchError::Thread)?;
        download.join().unwrap_or_else(|_| Err(FetchError::Thread(std::io::Error::other("its thread panicked"))))
    })?;
    bar.finish();
    Ok(path)
}

/// The progress of a download on standard error.
struct Bar<'a> {
    name: &'a HubName,
    started: Instant,
    files: Mutex<Vec<(String, u64)>>,
    bar: ProgressBar,
}

impl<'a> Bar<'a> {
    fn new(name: &'a HubName) -> Self {
        // The template is a constant: if it were malformed, the default one would do.
        let style =
            ProgressStyle::with_template("{msg} {bar:30} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left")
                .unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = ProgressBar::new(0).with_style(style).with_message(name.to_string());
        Self { name, started: Instant::now(), files: Mutex::default(), bar }
    }

    fn show(&self, progress: Progress<'_>) {
        let mut files = lock(&self.files);
        match progress {
            Progress::Needs(needed) => {
                let n_bytes: u64 = needed.iter().map(|file| file.n_bytes).sum();
                self.bar.inc_length(n_bytes);
                files.extend(needed.iter().map(|file| (file.path.clone(), 0)));
                if !std::io::stderr().is_terminal() {
                    say(&format!("{}: {}, {}", self.name, counted(needed.len() as u32, "file"), HumanBytes(n_bytes)));
                }
            }
            Progress::Has { file, n_bytes } => {
                if let Some((_, has)) = files.iter_mut().find(|(path, _)| *path == file.path) {
                    *has = n_bytes;
                }
                self.bar.set_position(files.iter().map(|(_, has)| has).sum());
            }
            Progress::Retries { error, pause } => {
                self.bar.suspend(|| say(&format!("{error}; again in {:.0} s", pause.as_secs_f64())));
            }
        }
    }

    fn finish(&self) {
        self.bar.finish_and_clear();
        tracing::debug!(model = %self.name, seconds = self.started.elapsed().as_secs_f64(), "the model is in the cache");
    }
}

fn print(line: &str) -> Result<(), FetchError> {
    writeln!(std::io::stdout(), "{line}").map_err(FetchError::Output)
}
