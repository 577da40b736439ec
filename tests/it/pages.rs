//! Completions and manual pages: made from the flags, and accepted by those that read them.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::{Command, Output, Stdio};

use diffulex_server::cli::commands::command;

use crate::harness::program;

fn run(arguments: &[&str]) -> Output {
    program().args(arguments).output().unwrap()
}

fn printed(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn is_installed(tool: &str) -> bool {
    Command::new(tool).arg("--version").output().is_ok()
}

/// Long flags that `command` shows in its help.
fn flags(command: &clap::Command) -> BTreeSet<String> {
    let shown = command.get_arguments().filter(|argument| !argument.is_hide_set());
    shown.filter_map(|argument| Some(format!("--{}", argument.get_long()?))).collect()
}

fn built() -> clap::Command {
    let mut command = command();
    command.build();
    command
}

/// Lines of bash run with the script loaded.
fn bash(script: &str, lines: &str) -> Output {
    let mut shell = Command::new("bash")
        .args(["--norc", "-eu", "-s"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    shell.stdin.take().unwrap().write_all(format!("{script}\n{lines}\n").as_bytes()).unwrap();
    shell.wait_with_output().unwrap()
}

#[test]
fn bash_completes_subcommands_and_flags() {
    let script = printed(&["completions", "bash"]);
    for (words, expected) in [
        ("diffulex-server gen", "generate"),
        ("diffulex-server completions f", "fish"),
        ("diffulex-server serve --shutdown-g", "--shutdown-grace-seconds"),
        ("diffulex-server --quanti", "--quantization"),
        ("diffulex-server serve --quantization int", "int8"),
    ] {
        let n_words = words.split(' ').count();
        let last = words.rsplit(' ').next().unwrap();
        let before = words.split(' ').nth(n_words - 2).unwrap();
        let lines = format!(
            "set +eu; COMP_WORDS=({words}); COMP_CWORD={}; COMPREPLY=()\n\
             _diffulex__server diffulex-server '{last}' '{before}'; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            n_words - 1
        );
        let output = bash(&script, &lines);
        let replies = String::from_utf8(output.stdout).unwrap();
        assert!(replies.lines().any(|reply| reply == expected), "{words}: {replies:?}");
    }
}

#[test]
fn every_shell_has_a_script_with_every_flag_that_its_own_parser_accepts() {
    let command = built();
    for (shell, check) in [
        ("bash", Some(("bash", "-n"))),
        ("elvish", None),
        ("fish", Some(("fish", "--no-execute"))),
        ("powershell", None),
        ("zsh", Some(("zsh", "-n"))),
    ] {
        let script = printed(&["completions", shell]);
        for flag in command.get_subcommands().flat_map(flags) {
            // In fish's scripts `--port` is `-l port`.
            let name = flag.trim_start_matches('-');
            assert!(script.contains(&flag) || script.contains(&format!("-l {name}")), "{shell}: {flag}");
        }
        let Some((tool, option)) = check.filter(|(tool, _)| is_installed(tool)) else { continue };
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &script).unwrap();
        let checked = Command::new(tool).arg(option).arg(file.path()).output().unwrap();
        assert!(checked.status.success(), "{shell}: {}", String::from_utf8_lossy(&checked.stderr));
    }
}

#[test]
fn manual_pages_name_every_flag() {
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("share/man1");
    printed(&["man", "--out", pages.to_str().unwrap()]);
    let command = built();
    let page = |name: &str| {
        let page = std::fs::read_to_string(pages.join(format!("{name}.1"))).unwrap();
        // As it is read: a hyphen is written with a backslash.
        page.replace("\\-", "-")
    };
    for subcommand in command.get_subcommands().filter(|subcommand| subcommand.get_name() != "help") {
        let page = page(&format!("diffulex-server-{}", subcommand.get_name()));
        for flag in flags(subcommand) {
            assert!(page.contains(&flag), "{}: {flag}", subcommand.get_name());
        }
    }
    let whole = page("diffulex-server");
    for flag in flags(&command) {
        assert!(whole.contains(&flag), "{flag}");
    }
    for subcommand in command.get_subcommands() {
        assert!(whole.contains(subcommand.get_name()), "{}", subcommand.get_name());
    }
}

#[test]
fn one_page_is_printed_and_an_unknown_one_refused() {
    let serve = printed(&["man", "serve"]);
    assert!(serve.starts_with(".ie") && serve.contains(".TH diffulex-server-serve 1"), "{serve}");
    assert!(printed(&["man"]).contains(".TH diffulex-server 1"));
    let refused = run(&["man", "nobody"]);
    let told = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        told.contains("nobody: not a subcommand") && told.contains(" serve, ") && told.contains("profile-report"),
        "{told}"
    );
    let refused = run(&["man", "--out", "/dev/null/pages"]);
    let told = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(told.contains("/dev/null/pages"), "{told}");
}

#[test]
fn a_reader_that_leaves_early_is_no_failure() {
    let mut process =
        program().args(["completions", "zsh"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(process.stdout.take());
    let output = process.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
