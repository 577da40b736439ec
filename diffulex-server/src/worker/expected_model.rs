//! The model that a front end tokenises for, to be compared with that of a worker it did not start.
//!
//! In: the front end's own files, and what a worker says when it is ready. Out: the first difference with which answers
//! would be nonsense, in words. Never here: sockets, what follows from a difference.

use diffulex_engine::models::read_config;
use diffulex_engine::{LoadError, ModelFiles, model_identity};
use diffulex_protocol::{ModelCard, ModelIdentity, Ready};

/// The longest text that a model takes, in tokens. Chosen by us: far above any, so that sums with it do not overflow.
const MAX_MODEL_LEN: u32 = 1 << 28;

/// A worker of another model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// It differs from the front end's.
    #[error("the worker's {what} is {theirs}, this front end's is {ours}; both need the same --model")]
    Differs {
        /// The part of the model.
        what: &'static str,
        /// The worker's value.
        theirs: String,
        /// The front end's.
        ours: String,
    },
    /// No model has it.
    #[error("the worker's {what} is {value}; it must be in {range}")]
    OutOfRange {
        /// The name of the size.
        what: &'static str,
        /// Its value.
        value: u32,
        /// The values it may have.
        range: String,
    },
}

/// The facts of a model that both sides must agree on.
#[derive(Clone, Debug)]
pub struct ExpectedModel {
    architecture: String,
    /// Rows of the output head, where the config has them.
    vocab_size: Option<u64>,
    identity: ModelIdentity,
}

impl ExpectedModel {
    /// That of the front end's own files.
    pub fn of(files: &ModelFiles) -> Result<Self, LoadError> {
        let (family, config) = read_config(files)?;
        let sizes = ["/embedding_size", "/vocab_size", "/text_config/vocab_size"];
        let vocab_size = sizes.into_iter().find_map(|pointer| config.pointer(pointer)?.as_u64());
        Ok(Self { architecture: family.architecture.to_owned(), vocab_size, identity: model_identity(files)? })
    }

    /// Refuses a worker with another model. What differs without harm is a warning in the log.
    pub fn check(&self, ready: &Ready) -> Result<(), Mismatch> {
        let ModelCard { architecture, vocab_size, max_model_len, block_size, mask_token_id, identity, .. } =
            &ready.model;
        differs("architecture", architecture, &self.architecture)?;
        if let Some(ours) = self.vocab_size {
            differs("vocab_size", &vocab_size.to_string(), &ours.to_string())?;
        }
        in_range("vocab_size", *vocab_size, 1..=i32::MAX as u32)?;
        in_range("max_model_len", *max_model_len, 1..=MAX_MODEL_LEN)?;
        in_range("block_size", *block_size, 1..=*max_model_len)?;
        if let Some(mask) = mask_token_id {
            in_range("mask_token_id", *mask, 0..=vocab_size - 1)?;
        }
        differs("tokenizer", &identity.tokenizer, &self.identity.tokenizer)?;
        differs("config.json", &identity.config, &self.identity.config)?;
        let (theirs, ours) = (&identity.chat_template, &self.identity.chat_template);
        if theirs != ours {
            tracing::warn!(theirs, ours, "the worker has another chat template; this front end's is used");
        }
        let ours = env!("CARGO_PKG_VERSION");
        if ready.build != ours {
            tracing::warn!(theirs = ready.build, ours, "the worker is of another build");
        }
        Ok(())
    }
}

fn differs(what: &'static str, theirs: &str, ours: &str) -> Result<(), Mismatch> {
    if theirs == ours {
        return Ok(());
    }
    let named = |value: &str| if value.is_empty() { "unknown".to_owned() } else { value.to_owned() };
    Err(Mismatch::Differs { what, theirs: named(theirs), ours: named(ours) })
}

fn in_range(what: &'static str, value: u32, range: std::ops::RangeInclusive<u32>) -> Result<(), Mismatch> {
    if range.contains(&value) {
        return Ok(());
    }
    Err(Mismatch::OutOfRange { what, value, range: format!("{}..={}", range.start(), range.end()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expected() -> ExpectedModel {
        let hash = |text: &str| text.to_owned();
        let identity = ModelIdentity { config: hash("c"), tokenizer: hash("t"), chat_template: hash("m") };
        ExpectedModel { architecture: "A".to_owned(), vocab_size: Some(100), identity }
    }

    fn ready(change: impl FnOnce(&mut Ready)) -> Ready {
        let model = ModelCard {
            architecture: "A".to_owned(),
            vocab_size: 100,
            max_model_len: 1024,
            block_size: 8,
            mask_token_id: Some(99),
            identity: expected().identity,
            ..ModelCard::default()
        };
        let build = env!("CARGO_PKG_VERSION").to_owned();
        let mut ready = Ready { protocol_version: 0, build, pid: 0, boot_nonce: 0, model };
        change(&mut ready);
        ready
    }

    #[test]
    fn a_worker_of_the_same_model_is_taken_also_of_another_build_or_template() {
        assert_eq!(expected().check(&ready(|_| {})), Ok(()));
        assert_eq!(expected().check(&ready(|ready| ready.build = "0.0.0".to_owned())), Ok(()));
        assert_eq!(expected().check(&ready(|ready| ready.model.identity.chat_template.clear())), Ok(()));
        assert_eq!(expected().check(&ready(|ready| ready.model.mask_token_id = None)), Ok(()));
    }

    #[test]
    fn every_difference_that_makes_nonsense_is_named_with_both_values() {
        type Change = fn(&mut Ready);
        let cases: [(Change, &str, &str); 12] = [
            (|ready| ready.model.architecture = "B".to_owned(), "architecture is B", "is A"),
            (|ready| ready.model.vocab_size = 0, "vocab_size is 0", "100"),
            (|ready| ready.model.vocab_size = 101, "vocab_size is 101", "100"),
            (|ready| ready.model.vocab_size = u32::MAX, "vocab_size is 4294967295", "100"),
            (|ready| ready.model.max_model_len = 0, "max_model_len is 0", "1..="),
            (|ready| ready.model.max_model_len = u32::MAX, "max_model_len is 4294967295", "1..="),
            (|ready| ready.model.block_size = 0, "block_size is 0", "1..=1024"),
            (|ready| ready.model.block_size = 1025, "block_size is 1025", "1..=1024"),
            (|ready| ready.model.mask_token_id = Some(100), "mask_token_id is 100", "0..=99"),
            (|ready| ready.model.identity.tokenizer = "x".to_owned(), "tokenizer is x", "is t"),
            (|ready| ready.model.identity.tokenizer.clear(), "tokenizer is unknown", "is t"),
            (|ready| ready.model.identity.config = "x".to_owned(), "config.json is x", "is c"),
        ];
        for (change, theirs, ours) in cases {
            let told = expected().check(&ready(change)).expect_err(theirs).to_string();
            assert!(told.contains(theirs) && told.contains(ours), "{told}");
        }
    }
}
