//! What the authors' code computes on the same weights: logits, residual stream, generations.

use diffulex_engine::kernels::cpu::CpuOps;
use diffulex_engine::kernels::reference::ReferenceOps;
use diffulex_engine::kernels::{CacheShape, Ops, SequenceRows, WeightType};
use diffulex_engine::models::{self, ModelBatch, Network};
use diffulex_engine::{DeviceChoice, EngineOptions, ModelFiles};
use diffulex_protocol::DecodingOverrides;
use safetensors::SafeTensors;

use crate::harness::{engine, golden, greedy, json, options, request, run};

/// Two f32 implementations differ by up to 6e-5 (PROVENANCE.md).
const LOGIT_TOLERANCE: f32 = 1e-3;
/// The residual stream has an rms of 1 to 5.
const HIDDEN_TOLERANCE: f32 = 1e-4;

fn ids(value: &serde_json::Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

fn max_difference(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len());
    got.iter().zip(want).map(|(got, want)| (got - want).abs()).fold(0.0, f32::max)
}

fn forwards_agree<O: Ops>(ops: &O) {
    let files = ModelFiles::folder(golden("sdar")).unwrap();
    let network = models::load(&files, ops, Some(WeightType::F32), 64, &mut |_, _| {}).unwrap();
    let bytes = std::fs::read(golden("sdar/logits.safetensors")).unwrap();
    let oracle = SafeTensors::deserialize(&bytes).unwrap();
    let values = |name: &str| -> Option<Vec<f32>> {
        let view = oracle.tensor(name).ok()?;
        Some(view.data().chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect())
    };
    let cases = json("sdar/inputs.json");
    let mut n_hidden = 0;
    for case in cases["cases"].as_array().unwrap() {
        let input = ids(&case["input_ids"]);
        let block_size = case["attention"]["block_size"].as_u64().unwrap() as usize;
        let (n, page_size) = (input.len(), 8);
        let n_pages = n.div_ceil(page_size);
        // Pages in reverse, so that a slot is never its position.
        let pages: Vec<u32> = (0..n_pages as u32).rev().collect();
        let batch = ModelBatch {
            positions: (0..n as u32).collect(),
            slots: (0..n).map(|p| pages[p / page_size] * page_size as u32 + (p % page_size) as u32).collect(),
            sequences: vec![SequenceRows {
                rows: 0..n,
                visible: (0..n).map(|p| (((p / block_size) + 1) * block_size).min(n) as u32).collect(),
                pages,
            }],
            logit_rows: (0..n as u32).collect(),
            ids: input,
        };
        let spec = network.spec();
        let mut cache = ops
            .cache(CacheShape {
                n_layers: spec.n_layers,
                n_slots: n_pages * page_size,
                page_size,
                n_kv_heads: spec.n_kv_heads,
                head_dim: spec.head_dim,
            })
            .unwrap();
        let name = case["logits_key"].as_str().unwrap();
        let logits = network.forward(ops, &batch, &mut cache).unwrap();
        let difference = max_difference(&logits, &values(name).unwrap());
        assert!(difference <= LOGIT_TOLERANCE, "{name}: logits differ by {difference}");
        for (layer, state) in network.hidden_states(ops, &batch, &mut cache).unwrap().iter().enumerate() {
            if let Some(want) = values(&format!("{name}.layer{layer}")) {
                let difference = max_difference(state, &want);
                assert!(difference <= HIDDEN_TOLERANCE, "{name}, layer {layer}: differs by {difference}");
                n_hidden += 1;
            }
        }
    }
    assert!(n_hidden > 0, "no residual stream was compared");
}

#[test]
fn reference_forwards_equal_the_authors() {
    forwards_agree(&ReferenceOps);
}

#[test]
fn fast_forwards_equal_the_authors() {
    forwards_agree(&CpuOps::new(2).unwrap());
}

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
