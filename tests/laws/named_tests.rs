//! Pages that name tests: every name is that of a test.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use super::hold;
use super::source::{CRATES, rust_files, tokens, workspace};

fn page(name: &str) -> String {
    fs::read_to_string(workspace().join(name)).expect("the page is readable UTF-8")
}

/// The Rust files of the crates, and of the tests beside them.
fn files_with_tests() -> impl Iterator<Item = PathBuf> {
    let folders = CRATES.iter().flat_map(|(folder, _)| [format!("{folder}/src"), format!("{folder}/tests")]);
    let folders = folders.chain(["tests".to_owned()]).map(|folder| workspace().join(folder));
    folders.filter(|folder| folder.is_dir()).flat_map(|folder| rust_files(&folder))
}

#[test]
fn the_fault_matrix_names_tests_that_exist() {
    let mut functions = BTreeSet::new();
    for path in files_with_tests() {
        let tokens = tokens(&fs::read_to_string(&path).expect("a source file is readable UTF-8"));
        functions.extend(tokens.windows(2).filter(|pair| pair[0] == "fn").map(|pair| pair[1].clone()));
    }
    let page = page("docs/reliability.md");
    let named = page.split('`').skip(1).step_by(2).filter_map(|code| code.split_once("::"));
    // `loading::*` and `memory::tests` are whole modules.
    let named =
        named.map(|(_, name)| name.rsplit("::").next().unwrap_or(name)).filter(|name| !["*", "tests"].contains(name));
    hold("fault matrix", named.filter(|name| !functions.contains(*name)).map(str::to_owned));
}

/// Names of tests, as `file::test`; a file `tests.rs` or `mod.rs` has the name of its folder.
fn tests_by_file() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for path in files_with_tests() {
        let name_of = |path: &std::path::Path| path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        let file = name_of(&path).filter(|stem| !["tests", "mod"].contains(&stem.as_str()));
        let Some(file) = file.or_else(|| path.parent().and_then(name_of)) else { continue };
        let tokens = tokens(&fs::read_to_string(&path).expect("a source file is readable UTF-8"));
        let mut is_test = false;
        for three in tokens.windows(3) {
            is_test |= ["[", "::"].contains(&three[0].as_str())
                && three[1] == "test"
                && ["]", "("].contains(&three[2].as_str());
            if three[0] == "fn" && std::mem::take(&mut is_test) {
                names.insert(format!("{file}::{}", three[1]));
            }
        }
    }
    names.extend(tests_of_clients());
    names
}

/// Names of the tests of clients and of pages: `test_openai.py::test_chat`, and the titles in files of JavaScript.
fn tests_of_clients() -> Vec<String> {
    let mut names = Vec::new();
    for folder in ["tests/clients", "tests/browser"] {
        for entry in fs::read_dir(workspace().join(folder)).expect("a folder of the workspace is readable") {
            let path = entry.expect("its entries are readable").path();
            let Some(file) = path.file_name().and_then(|name| name.to_str()) else { continue };
            let named = |line: &str| {
                let python = line.trim_start().trim_start_matches("async ").strip_prefix("def ");
                let title = python.and_then(|rest| rest.split('(').next()).filter(|_| file.ends_with(".py"));
                let script = line.trim_start().strip_prefix("test(").filter(|_| file.ends_with(".test.mjs"));
                // A title of a loop, in backquotes, is named with its `${...}` as it is.
                let quoted = || ['"', '`'].iter().find_map(|quote| script?.strip_prefix(*quote)?.split(*quote).next());
                title.or_else(quoted).map(|title| format!("{file}::{title}"))
            };
            if file.ends_with(".py") || file.ends_with(".mjs") {
                let text = fs::read_to_string(&path).expect("a source file is readable UTF-8");
                names.extend(text.lines().filter_map(named));
            }
        }
    }
    names
}

/// A row of a table: what is held, and the names in its last column.
struct Held {
    section: String,
    what: String,
    tests: Vec<String>,
}

/// Rows of the tables of a page whose last column has the title `test`.
fn held(page: &str) -> Vec<Held> {
    let mut rows = Vec::new();
    let mut section = String::new();
    let mut has_tests = false;
    for line in page.lines() {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        if !line.starts_with('|') {
            has_tests = false;
            section = line.strip_prefix('#').map_or(section, |title| title.trim_matches(['#', ' ']).to_owned());
        } else if cells.last() == Some(&"test") {
            has_tests = true;
        } else if has_tests && !line.starts_with("|---") {
            let named = cells.last().unwrap_or(&"").split("`, `").map(|name| name.trim_matches('`').to_owned());
            rows.push(Held { section: section.clone(), what: cells[0].to_owned(), tests: named.collect() });
        }
    }
    rows
}

/// Names in the rows that are no test's.
fn unheld(rows: &[Held]) -> Vec<String> {
    let tests = tests_by_file();
    let names = rows.iter().flat_map(|row| row.tests.iter().map(move |name| (row, name)));
    let missing = names.filter(|(_, name)| !tests.contains(*name));
    missing.map(|(row, name)| format!("{}: {}: {name:?}", row.section, row.what)).collect()
}

#[test]
fn items_of_other_systems_name_tests_that_exist() {
    let page = page("docs/coming-from.md");
    assert!(page.matches("| test |").count() == 5, "a table for each of the five systems");
    hold("items of other systems", unheld(&held(&page)));
}

/// tests/claims.md has the sections of docs/http-api.md that claim something, in their order.
#[test]
fn claims_of_the_api_page_name_tests_that_exist() {
    let list = page("tests/claims.md");
    hold("claims", unheld(&held(&list)));
    let titles =
        |page: &str| -> Vec<String> { page.lines().filter(|line| line.starts_with("##")).map(str::to_owned).collect() };
    let (listed, written) = (titles(&list), titles(&page("docs/http-api.md")));
    assert_eq!(listed, written, "the sections of docs/http-api.md");
}
