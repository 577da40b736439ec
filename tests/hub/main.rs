//! The stand-in as a program, for clients in other languages: `hub-stand-in FOLDER [CERTIFICATE KEY]`.
//!
//! `FOLDER/OWNER/NAME` is a repository; one whose name begins with `gated-` or `private-` is so. Prints its address, then reads faults, a line of
//! JSON each, from standard input, answers each with the requests since the last as a line of JSON, and ends with it.

use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};

use diffulex_test_hub::{Faults, Repository, StandIn};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let (folder, tls) = match &arguments[..] {
        [folder] => (folder, None),
        [folder, chain, key] => (folder, Some((chain.as_path(), key.as_path()))),
        _ => return Err("usage: hub-stand-in FOLDER [CERTIFICATE KEY]".into()),
    };
    let stand_in = StandIn::start(repositories(folder)?, tls);
    let mut out = std::io::stdout();
    writeln!(out, "{}", stand_in.url)?;
    for line in std::io::stdin().lock().lines() {
        *stand_in.faults() = serde_json::from_str::<Faults>(&line?)?;
        writeln!(out, "{}", serde_json::to_string(&stand_in.requests())?)?;
    }
    Ok(())
}

fn repositories(folder: &Path) -> std::io::Result<Vec<Repository>> {
    let mut repositories = Vec::new();
    for owner in std::fs::read_dir(folder)? {
        let owner = owner?;
        for name in std::fs::read_dir(owner.path())? {
            let name = name?;
            let (owner, name, path) = (owner.file_name(), name.file_name(), name.path());
            let (owner, name) = (owner.to_string_lossy(), name.to_string_lossy());
            let mut repository = Repository::of_folder(&format!("{owner}/{name}"), &path)?;
            repository.is_gated = name.starts_with("gated-");
            repository.is_private = name.starts_with("private-");
            repositories.push(repository);
        }
    }
    Ok(repositories)
}
