//! The settings of the Hub's own tools, from the environment.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where models come from and where they are kept.
#[derive(Clone, PartialEq, Eq)]
pub struct HubSettings {
    /// The Hub, or a mirror of it, without a slash at the end (`HF_ENDPOINT`).
    pub endpoint: String,
    /// Token of the user, for private and gated repositories (`HF_TOKEN`, or the file where `hf auth login` keeps it).
    pub token: Option<String>,
    /// Folder of the cache (`HF_HUB_CACHE`, otherwise `hub` in `HF_HOME`).
    pub cache: PathBuf,
    /// Nothing is asked of the Hub (`HF_HUB_OFFLINE`).
    pub is_offline: bool,
    /// Time before a failed download is tried again; it doubles with each failure in a row.
    pub first_pause: Duration,
}

/// Without the token.
impl std::fmt::Debug for HubSettings {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.debug_struct("HubSettings")
            .field("endpoint", &self.endpoint)
            .field("has_token", &self.token.is_some())
            .field("cache", &self.cache)
            .field("is_offline", &self.is_offline)
            .finish_non_exhaustive()
    }
}

impl HubSettings {
    /// The settings in the environment. Fails, with the reason, if there is no folder for the cache.
    pub fn of_environment() -> Result<Self, String> {
        Self::of(&|variable| std::env::var_os(variable).filter(|value| !value.is_empty()))
    }

    fn of(variable: &dyn Fn(&str) -> Option<OsString>) -> Result<Self, String> {
        let text = |name: &str| variable(name).map(|value| value.to_string_lossy().into_owned());
        let folder = |name: &str| variable(name).map(PathBuf::from);
        let user_cache = || {
            folder("XDG_CACHE_HOME").or_else(|| folder("HOME").map(|home| home.join(".cache"))).ok_or_else(|| {
                "there is no folder for downloads: set HF_HOME to one (neither HF_HOME, XDG_CACHE_HOME nor HOME is set)".to_owned()
            })
        };
        let home = match folder("HF_HOME") {
            Some(home) => home,
            None => user_cache()?.join("huggingface"),
        };
        let cache =
            folder("HF_HUB_CACHE").or_else(|| folder("HUGGINGFACE_HUB_CACHE")).unwrap_or_else(|| home.join("hub"));
        let endpoint = text("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".to_owned());
        let token_file = folder("HF_TOKEN_PATH").unwrap_or_else(|| home.join("token"));
        let token = text("HF_TOKEN").or_else(|| text("HUGGING_FACE_HUB_TOKEN")).or_else(|| read_token(&token_file));
        Ok(Self {
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            token: token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty()),
            cache,
            is_offline: ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"].iter().any(|name| text(name).is_some_and(is_true)),
            first_pause: Duration::from_secs(1),
        })
    }
}

/// As the Hub's own tools read switches.
fn is_true(value: String) -> bool {
    ["1", "on", "yes", "true"].contains(&value.to_ascii_lowercase().as_str())
}

/// A file that cannot be read is no token: most users have none.
fn read_token(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(variables: &[(&str, &str)]) -> Result<HubSettings, String> {
        HubSettings::of(&|name| {
            variables.iter().find(|(variable, _)| *variable == name).map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn the_environment_of_the_hubs_tools_is_respected() {
        let settings_of = |variables: &[(&str, &str)]| settings(variables).expect("settings");
        let plain = settings_of(&[("HOME", "/h")]);
        assert_eq!(plain.cache, Path::new("/h/.cache/huggingface/hub"));
        assert_eq!((plain.endpoint.as_str(), plain.is_offline), ("https://huggingface.co", false));
        assert_eq!(settings_of(&[("HOME", "/h"), ("HF_HOME", "/m")]).cache, Path::new("/m/hub"));
        assert_eq!(settings_of(&[("XDG_CACHE_HOME", "/x")]).cache, Path::new("/x/huggingface/hub"));
        assert_eq!(settings_of(&[("HF_HOME", "/m"), ("HF_HUB_CACHE", "/c")]).cache, Path::new("/c"));
        let mirror = settings_of(&[("HF_HOME", "/m"), ("HF_ENDPOINT", "http://mirror/"), ("HF_TOKEN", " t\n")]);
        assert_eq!((mirror.endpoint.as_str(), mirror.token.as_deref()), ("http://mirror", Some("t")));
        for (value, is_offline) in [("1", true), ("YES", true), ("0", false)] {
            assert_eq!(settings_of(&[("HF_HOME", "/m"), ("HF_HUB_OFFLINE", value)]).is_offline, is_offline);
        }
        let error = settings(&[]).expect_err("no folder");
        assert!(error.contains("HF_HOME"), "{error}");
    }

    #[test]
    fn the_token_is_not_printed() {
        let shown = format!("{:?}", settings(&[("HF_HOME", "/m"), ("HF_TOKEN", "secret")]).expect("settings"));
        assert!(!shown.contains("secret") && shown.contains("has_token: true"), "{shown}");
    }
}
