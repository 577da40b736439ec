//! The subcommands that look before a model is served: what it would take, and whether devices agree on it.

use crate::harness::{golden_model, program};
use crate::infilling::with_tokenizer;

fn run(arguments: &[&str]) -> (bool, String, String) {
    let output = program().args(arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.success(), text(output.stdout), text(output.stderr))
}

#[test]
fn doctor_reports_the_machine_and_what_a_model_takes() {
    let golden = golden_model();
    let (succeeded, report, errors) = run(&["doctor", "--model", golden.to_str().unwrap(), "--quantization", "int8"]);
    assert!(succeeded, "{errors}");
    let value = |name: &str| {
        let line = report.lines().find_map(|line| line.trim_start().strip_prefix(name));
        line.unwrap_or_else(|| panic!("no {name} in {report}")).trim().to_owned()
    };
    for name in ["processor", "instructions", "products", "memory reads", "memory", "GPU", "open files"] {
        assert!(!value(name).is_empty(), "{report}");
    }
    assert!(value("model").starts_with("sdar, SDAR, 0.2 million weights"), "{report}");
    assert!(value("weights").ends_with("as int8"), "{report}");
    assert!(value("quantization int4").ends_with("KiB fits"), "{report}");
    let time = value("time of a step");
    let milliseconds: f64 = time.strip_prefix("about ").unwrap().split(' ').next().unwrap().parse().unwrap();
    assert!(milliseconds < 1000.0 && time.contains(" ms on this CPU: 8 rows"), "{time}");
    let (succeeded, _, errors) = run(&["doctor", "--model", "/nowhere"]);
    assert!(!succeeded && errors.contains("/nowhere"), "{errors}");
}

#[test]
fn verify_holds_every_device_against_the_reference() {
    // Block-causal, whole answers, and canvases.
    for name in ["sdar", "llada", "diffusion_gemma"] {
        let folder = with_tokenizer(name);
        let model = folder.path().to_str().unwrap();
        let (succeeded, report, errors) = run(&["verify", "--model", model, "--max-tokens", "4"]);
        assert!(succeeded, "{name}: {errors} {report}");
        let rows: Vec<&str> = report.lines().filter(|line| line.starts_with("| ")).collect();
        assert_eq!(rows.len(), 3, "{report}");
        assert!(rows[1].starts_with("| reference ") && rows[2].starts_with("| cpu ("), "{report}");
        assert!(rows[2].contains("| 10 of 10 |"), "{report}");
        assert_eq!(report.lines().filter(|line| line.starts_with("- `")).count(), 10, "{report}");
    }
}
