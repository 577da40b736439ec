//! The networks against those of candle-transformers on the same weights, under a causal mask.
//!
//! candle-transformers knows none of the diffusion models, but four of their backbones: Qwen2, Qwen3, Qwen3-MoE and Llama.
//! Its code shares nothing with ours but candle's tensors, which our fast body does not use.

use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::{llama, qwen2, qwen3, qwen3_moe};
use diffulex_engine::ModelFiles;
use diffulex_engine::kernels::cpu::CpuOps;
use diffulex_engine::kernels::reference::ReferenceOps;
use diffulex_engine::kernels::{KvType, Ops, SequenceRows, WeightType};
use diffulex_engine::models::{self, Adapters, ModelBatch};
use diffulex_engine::testing::Inspect;
use serde::de::DeserializeOwned;

/// As between two implementations of a forward in f32 (tests/it/forwards.rs).
const LOGIT_TOLERANCE: f32 = 1e-3;

/// Gives the logits of the last token.
type Oracle = Box<dyn FnMut(&Tensor) -> candle_core::Result<Tensor>>;

fn golden(checkpoint: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(checkpoint)
}

/// The config as candle's type has it: transformers' defaults where the checkpoint leaves a field to them.
fn config<C: DeserializeOwned>(checkpoint: &str) -> C {
    let bytes = std::fs::read(golden(checkpoint).join("config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
    // Off in all of them; candle's Qwen2 always has one.
    config["sliding_window"] = config["max_position_embeddings"].clone();
    serde_json::from_value(config).unwrap()
}

fn weights(checkpoint: &str) -> VarBuilder<'static> {
    let bytes = std::fs::read(golden(checkpoint).join("model.safetensors")).unwrap();
    VarBuilder::from_buffered_safetensors(bytes, DType::F32, &Device::Cpu).unwrap()
}

fn qwen2(checkpoint: &str) -> Oracle {
    let mut model = qwen2::ModelForCausalLM::new(&config(checkpoint), weights(checkpoint)).unwrap();
    Box::new(move |ids| {
        model.clear_kv_cache();
        model.forward(ids, 0)
    })
}

fn qwen3(checkpoint: &str) -> Oracle {
    let mut model = qwen3::ModelForCausalLM::new(&config(checkpoint), weights(checkpoint)).unwrap();
    Box::new(move |ids| {
        model.clear_kv_cache();
        model.forward(ids, 0)
    })
}

fn qwen3_moe(checkpoint: &str) -> Oracle {
    let mut model = qwen3_moe::ModelForCausalLM::new(&config(checkpoint), weights(checkpoint)).unwrap();
    Box::new(move |ids| {
        model.clear_kv_cache();
        model.forward(ids, 0)
    })
}

fn llama(checkpoint: &str) -> Oracle {
    let config = config::<llama::LlamaConfig>(checkpoint).into_config(false);
    let model = llama::Llama::load(weights(checkpoint), &config).unwrap();
    Box::new(move |ids| {
        let mut cache = llama::Cache::new(false, DType::F32, &config, &Device::Cpu)?;
        model.forward(ids, 0, &mut cache)
    })
}

/// The logits of every position of `ids`, `[ids.len(), vocab_size]`, each of which attends to what is before it.
fn causal_logits<O: Ops + 'static>(ops: &O, checkpoint: &str, ids: &[u32]) -> Vec<f32> {
    let files = ModelFiles::folder(golden(checkpoint)).unwrap();
    let network = models::load(&files, None, ops, Some(WeightType::F32), ids.len(), &mut |_, _| {}).unwrap();
    let n = ids.len() as u32;
    let batch = ModelBatch {
        ids: ids.to_vec(),
        positions: (0..n).collect(),
        slots: (0..n).collect(),
        sequences: vec![SequenceRows { rows: 0..ids.len(), visible: (1..=n).collect(), pages: vec![0] }],
        state_rows: (0..n).collect(),
        ..ModelBatch::default()
    };
    let mut cache = ops.cache(&network.spec().cache_shapes(1, ids.len(), KvType::F32)).unwrap();
    network.forward(ops, &batch, &Adapters::none(), &mut cache).unwrap()
}

fn agrees(checkpoint: &str, mut oracle: Oracle) {
    // A power of two, as it is a page.
    let ids: Vec<u32> = (0..32u32).map(|position| (position * 97 + 13) % 500).collect();
    let fast = causal_logits(&CpuOps::new(2).unwrap(), checkpoint, &ids);
    let reference = causal_logits(&ReferenceOps, checkpoint, &ids);
    let width = fast.len() / ids.len();
    for (position, (fast, reference)) in fast.chunks(width).zip(reference.chunks(width)).enumerate() {
        let prefix = Tensor::new(&ids[..=position], &Device::Cpu).unwrap().unsqueeze(0).unwrap();
        let want: Vec<f32> = oracle(&prefix).unwrap().flatten_all().unwrap().to_vec1().unwrap();
        for (body, got) in [("fast", fast), ("reference", reference)] {
            assert_eq!(got.len(), want.len());
            let difference = got.iter().zip(&want).map(|(got, want)| (got - want).abs()).fold(0.0, f32::max);
            let place = format!("{checkpoint}, {body}, position {position}");
            assert!(difference <= LOGIT_TOLERANCE, "{place}: logits differ by {difference}");
        }
    }
}

#[test]
fn qwen2_is_candles() {
    agrees("dream", qwen2("dream"));
    agrees("fast_dllm_v2", qwen2("fast_dllm_v2"));
}

#[test]
fn qwen3_is_candles() {
    agrees("sdar", qwen3("sdar"));
    agrees("dream_reasoner", qwen3("dream_reasoner"));
}

#[test]
fn qwen3_moe_is_candles() {
    agrees("sdar_moe", qwen3_moe("sdar_moe"));
}

#[test]
fn llama_is_candles() {
    agrees("stable_diffcoder", llama("stable_diffcoder"));
}
