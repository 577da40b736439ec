//! Errors of flags and of the configuration file.

/// A wrong flag or configuration file.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ConfigError {
    /// A flag is wrong, or its value.
    #[error("{flag}: {problem}")]
    Flag {
        /// With its dashes; with its value where that is needed to find it.
        flag: String,
        /// The expected value.
        problem: String,
    },
    /// A flag of Diffulex asks for something that is not built.
    #[error("{flag} {value} is not supported: {reason}")]
    NotSupported {
        /// With its dashes.
        flag: String,
        /// As it was given.
        value: String,
        /// Why not.
        reason: &'static str,
    },
    /// A value of the configuration file is wrong.
    #[error("the configuration file: {key}: {problem}")]
    Key {
        /// Its key.
        key: String,
        /// The expected value.
        problem: String,
    },
    /// The configuration file has a key that is no flag.
    #[error("the configuration file has an unknown key {key:?}")]
    UnknownKey {
        /// The key.
        key: String,
    },
}

impl ConfigError {
    /// `flag`, or its value, is wrong.
    pub(crate) fn flag(flag: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Flag { flag: flag.into(), problem: problem.into() }
    }
}
