//! What the authors' loops generate on the same weights, token for token.

use diffulex_engine::{DeviceChoice, EngineOptions};
use diffulex_protocol::DecodingOverrides;

use crate::harness::{engine, greedy, ids, json, options, request, run};

/// One recorded generation, or the part of it up to a fault in the authors' loop.
struct Segment {
    prompt: Vec<u32>,
    want: Vec<u32>,
    /// Indices into `want` that the loop overwrote although they were decided.
    overwritten: Vec<usize>,
    n_denoise: u32,
    n_stores: u32,
}

/// Cuts a trace behind each block in which the loop overwrote decided tokens.
///
/// With fewer masks left than the schedule asks for, SDAR's generate.py fills up the quota with positions of confidence
/// minus infinity and writes its argmax over what stands there, prompt or answer, ties being broken by the sort. We keep
/// decided tokens, as its copy for opencompass does; what comes after is compared from the authors' own tokens on.
fn segments(trace: &serde_json::Value, block_size: usize) -> Vec<Segment> {
    let all = ids(&trace["final"]);
    let steps = trace["steps"].as_array().unwrap();
    let mut start = ids(&trace["prompt"]).len();
    let mut segments = Vec::new();
    let mut open =
        Segment { prompt: all[..start].to_vec(), want: Vec::new(), overwritten: Vec::new(), n_denoise: 0, n_stores: 0 };
    for (index, step) in steps.iter().enumerate() {
        let block_start = step["start"].as_u64().unwrap() as usize;
        match step["kind"].as_str().unwrap() {
            "denoise" => open.n_denoise += 1,
            "store_kv" => open.n_stores += 1,
            other => panic!("unknown step {other}"),
        }
        let window = ids(&step["input_ids"]);
        if step["kind"] == "denoise" {
            let next = ids(&steps[index + 1]["input_ids"]);
            let masked = ids(&step["mask_rel"]);
            for row in (0..block_size).filter(|row| !masked.contains(&(*row as u32)) && window[*row] != next[*row]) {
                open.overwritten.push(block_start + row - start);
            }
        }
        let end = block_start + window.len();
        let is_last = index + 1 == steps.len();
        if step["kind"] == "store_kv" && (is_last || !open.overwritten.is_empty()) {
            open.want = all[start..end].to_vec();
            start = end;
            let next = Segment {
                prompt: all[..end].to_vec(),
                want: Vec::new(),
                overwritten: Vec::new(),
                n_denoise: 0,
                // The engine will have to encode this prompt.
                n_stores: 1,
            };
            segments.push(std::mem::replace(&mut open, next));
        }
    }
    segments
}

/// Every trace through the whole engine.
fn traces_agree(device: DeviceChoice) {
    let traces = json("sdar/trace.json");
    let mut n_overwritten = 0;
    for trace in traces["traces"].as_array().unwrap() {
        let params = &trace["params"];
        let rule = match params["remasking_strategy"].as_str().unwrap() {
            "low_confidence_dynamic" => "dynamic",
            "low_confidence_static" => "static",
            "sequential" => "sequential",
            other => panic!("unknown rule {other}"),
        };
        let block_size = params["block_length"].as_u64().unwrap() as usize;
        for buffer_size in [1, 2] {
            let mut engine = engine(&EngineOptions {
                device,
                block_size: Some(block_size as u32),
                buffer_size: Some(buffer_size),
                prefix_caching: false,
                ..options()
            });
            for segment in segments(trace, block_size) {
                let Segment { prompt, want, overwritten, .. } = &segment;
                n_overwritten += overwritten.len();
                let mut sampling = greedy(want.len() as u32);
                sampling.decoding = DecodingOverrides {
                    accept_rule: Some(rule.to_owned()),
                    accept_threshold: (rule == "dynamic")
                        .then(|| params["confidence_threshold"].as_f64().unwrap() as f32),
                    denoising_steps: params["denoising_steps"].as_u64().map(|steps| steps as u32),
                    ..DecodingOverrides::default()
                };
                let told = run(&mut engine, vec![request("trace", prompt, sampling)]);
                let reply = told.reply("trace");
                assert_eq!(reply.token_ids.len(), want.len());
                for (index, (got, want)) in reply.token_ids.iter().zip(want).enumerate() {
                    assert!(
                        got == want || overwritten.contains(&index),
                        "{params}: {:?}, expected {want:?}",
                        reply.token_ids
                    );
                }
                let counts = reply.nfe_counts;
                assert_eq!(counts.denoise, segment.n_denoise, "{params}");
                // The authors write the last block's K/V too, and encode a prompt's front in a forward of its own, where
                // we denoise its tail in the same one.
                let tail = u32::from(!prompt.len().is_multiple_of(block_size));
                let prefill = u32::from(prompt.len() >= block_size);
                assert_eq!(counts.prefill, prefill * (1 - tail), "{params}");
                let separate_commits = segment.n_stores - prefill - 1;
                assert_eq!(counts.commit, if buffer_size == 1 { separate_commits } else { 0 }, "{params}");
            }
        }
    }
    // Of one recorded trace, over two buffer sizes: the fault is there, and nothing else was let pass.
    assert_eq!(n_overwritten, 2);
}

#[test]
fn traces_equal_the_authors_on_the_reference() {
    traces_agree(DeviceChoice::Reference);
}

#[test]
fn traces_equal_the_authors_on_the_cpu() {
    traces_agree(DeviceChoice::Cpu);
}
