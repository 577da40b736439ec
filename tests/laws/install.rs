//! What `cargo install --git URL` says where no package is named.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::source::workspace;

/// Names of the packages below `folder` that have a program, as cargo looks for them in a repository: in every folder.
fn packages_with_programs(folder: &Path, found: &mut BTreeSet<String>) {
    if let Ok(manifest) = fs::read_to_string(folder.join("Cargo.toml")) {
        let has_program = manifest.contains("[[bin]]") || folder.join("src/main.rs").exists();
        let mut of_package = manifest.lines().skip_while(|line| *line != "[package]");
        let name = of_package.find_map(|line| line.strip_prefix("name = "));
        found.extend(name.filter(|_| has_program).map(|name| name.trim_matches('"').to_owned()));
    }
    for entry in fs::read_dir(folder).expect("a folder of the workspace is readable") {
        let entry = entry.expect("its entries are readable");
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_searched = !name.starts_with('.') && !["target", "node_modules"].contains(&name.as_str());
        if is_searched && entry.file_type().expect("an entry has a type").is_dir() {
            packages_with_programs(&entry.path(), found);
        }
    }
}

/// Cargo takes the first of several by name as its example: "Please specify a package, e.g. `cargo install --git URL NAME`".
#[test]
fn the_package_that_cargo_install_proposes_is_the_server() {
    let mut found = BTreeSet::new();
    packages_with_programs(&workspace(), &mut found);
    assert!(found.len() > 1, "the packages beside the server are found: {found:?}");
    assert_eq!(found.first().map(String::as_str), Some("diffulex-server"), "{found:?}");
}
