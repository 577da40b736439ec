//! Hashes of a model's files, by which a front end knows whether a worker has the same model.
//!
//! Against mistakes, not against malice: whoever runs a worker can say anything. Never here: what is compared.

use diffulex_protocol::ModelIdentity;

use crate::error::LoadError;
use crate::files::ModelFiles;

/// The identity of the model in `files`.
pub fn model_identity(files: &ModelFiles) -> Result<ModelIdentity, LoadError> {
    let tokenizer = match hash_of(files, &["tokenizer.json"])? {
        hash if hash.is_empty() => hash_of(files, &["vocab.json", "merges.txt"])?,
        hash => hash,
    };
    let chat_template = match hash_of(files, &["chat_template.jinja"])? {
        hash if hash.is_empty() => {
            let config = files.read_json("tokenizer_config.json")?.unwrap_or_default();
            config
                .get("chat_template")
                .map(|template| hexadecimal([template.to_string().as_bytes()]))
                .unwrap_or_default()
        }
        hash => hash,
    };
    Ok(ModelIdentity { config: hash_of(files, &["config.json"])?, tokenizer, chat_template })
}

/// The hash of the files called `names`, one after the other; missing ones are skipped. Empty if all are missing.
fn hash_of(files: &ModelFiles, names: &[&str]) -> Result<String, LoadError> {
    let contents = names.iter().filter_map(|name| files.read(name).transpose()).collect::<Result<Vec<_>, _>>()?;
    Ok(if contents.is_empty() { String::new() } else { hexadecimal(contents.iter().map(AsRef::as_ref)) })
}

/// FNV-1a of 64 bits (Fowler, Noll and Vo), the same in every build.
fn hexadecimal<'a>(contents: impl IntoIterator<Item = &'a [u8]>) -> String {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;

    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(PRIME);
    format!("{:016x}", contents.into_iter().flatten().fold(OFFSET, step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_that_of_its_authors() {
        // Test vectors of draft-eastlake-fnv.
        assert_eq!(hexadecimal([&b""[..]]), "cbf29ce484222325");
        assert_eq!(hexadecimal([&b"foo"[..], &b"bar"[..]]), "85944171f73967e8");
    }

    #[test]
    fn a_change_of_a_file_changes_its_hash_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("written");
        let identity = || model_identity(&ModelFiles::Folder(folder.path().to_owned())).expect("readable");
        assert_eq!(identity(), ModelIdentity::default());
        write("config.json", "{}");
        write("vocab.json", "{}");
        write("merges.txt", "");
        write("tokenizer_config.json", r#"{"chat_template": "a"}"#);
        let first = identity();
        write("merges.txt", "a b");
        let other = identity();
        assert_ne!(first.tokenizer, other.tokenizer);
        assert_eq!((first.config, first.chat_template.as_str()), (other.config, other.chat_template.as_str()));
        write("chat_template.jinja", "a");
        assert_ne!(identity().chat_template, first.chat_template);
    }
}
