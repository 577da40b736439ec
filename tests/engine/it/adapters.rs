//! Adapters that requests name: each request gets what it would get alone, and what it would get were its adapter merged.

use std::collections::BTreeMap;
use std::path::Path;

use diffulex_engine::kernels::cpu::CpuOps;
use diffulex_engine::kernels::{KvType, Ops, WeightType};
use diffulex_engine::models::{self, Adapters};
use diffulex_engine::testing::Inspect;
use diffulex_engine::{Engine, EngineOptions, ModelFiles, ServingEngine};
use diffulex_protocol::{AdapterSource, ContextUse, ServingCommand, ServingEvent, ServingGenerate};
use safetensors::Dtype;
use serde_json::json;

use crate::harness::{
    Tensors, decoding, eight_tokens, golden, greedy, options, prompt, request, run, run_with, safetensors_bytes,
};

/// `(module, n_out, n_in)`.
type Module = (&'static str, usize, usize);

const MLP: [Module; 2] = [("model.layers.0.mlp.gate_proj", 96, 64), ("model.layers.2.mlp.down_proj", 64, 96)];

/// Writes an adapter of rank 3 with values of about 0.3.
fn write_adapter(folder: &Path, modules: &[Module]) -> String {
    let values = |seed: usize, n: usize| -> Vec<u8> {
        let value = |index: usize| ((index * 7919 + seed * 104_729) % 1000) as f32 / 1000.0 - 0.5;
        (0..n).flat_map(|index| value(index).to_le_bytes()).collect()
    };
    let mut tensors: Tensors = BTreeMap::new();
    for (index, (module, n_out, n_in)) in modules.iter().enumerate() {
        let name = |letter| format!("base_model.model.{module}.lora_{letter}.weight");
        tensors.insert(name("A"), (Dtype::F32, vec![3, *n_in], values(2 * index, 3 * n_in)));
        tensors.insert(name("B"), (Dtype::F32, vec![*n_out, 3], values(2 * index + 1, 3 * n_out)));
    }
    std::fs::write(folder.join("adapter_model.safetensors"), safetensors_bytes(&tensors)).unwrap();
    let config = r#"{"peft_type": "LORA", "r": 3, "lora_alpha": 6, "target_modules": ["some"]}"#;
    std::fs::write(folder.join("adapter_config.json"), config).unwrap();
    folder.display().to_string()
}

fn difference(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn a_rank_stabilised_adapter_is_scaled_by_the_root_of_its_rank() {
    let files = ModelFiles::folder(golden("dream")).unwrap();
    let ops = CpuOps::new(1).unwrap();
    let logits = |alpha: f64, is_stabilised: bool| {
        let folder = tempfile::tempdir().unwrap();
        let path = write_adapter(folder.path(), &MLP);
        let config = serde_json::json!({"r": 3, "lora_alpha": alpha, "use_rslora": is_stabilised});
        std::fs::write(folder.path().join("adapter_config.json"), config.to_string()).unwrap();
        let adapter = ModelFiles::folder(path).unwrap();
        let network = models::load(&files, Some(&adapter), &ops, Some(WeightType::F32), 64, &mut |_, _| {}).unwrap();
        let mut cache = ops.cache(&network.spec().cache_shapes(1, 8, KvType::F32)).unwrap();
        network.forward(&ops, &eight_tokens(), &Adapters::none(), &mut cache).unwrap()
    };
    let (plain, stabilised) = (logits(2.0, false), logits(2.0, true));
    assert!(difference(&plain, &stabilised) > 0.1, "the switch changes nothing");
    assert!(difference(&logits(2.0 * 3f64.sqrt(), false), &stabilised) < 1e-4);
}

fn source(name: &str, path: &str) -> AdapterSource {
    AdapterSource { name: name.to_owned(), path: path.to_owned() }
}

fn d2f() -> String {
    golden("d2f_dream").display().to_string()
}

/// Dream decoded as D2F decodes it.
fn d2f_options() -> EngineOptions {
    EngineOptions { decoding_strategy: Some("d2f".to_owned()), block_size: Some(4), max_model_len: 96, ..options() }
}

fn engine(options: &EngineOptions) -> Engine {
    let tokenized = crate::harness::Files::golden("dream").leak();
    Engine::load(&tokenized, options, &mut |_| {}).unwrap()
}

fn with_adapter(rid: &str, index: u32, adapter: Option<&str>) -> ServingGenerate {
    let adapter = adapter.map(str::to_owned);
    ServingGenerate { adapter, ..request(rid, &prompt(index, 11 + index as usize), greedy(14)) }
}

#[test]
fn an_adapter_answers_as_if_it_were_merged() {
    let folder = tempfile::tempdir().unwrap();
    let mlp = write_adapter(folder.path(), &MLP);
    let plain: Vec<_> = (0..3).map(|index| with_adapter(&index.to_string(), index, None)).collect();
    let base = run(&mut engine(&d2f_options()), plain.clone());
    for path in [d2f(), mlp] {
        let merged = EngineOptions { merged_adapter: Some(path.clone()), ..d2f_options() };
        let merged = run(&mut engine(&merged), plain.clone());
        let beside = EngineOptions { adapters: vec![source("a", &path)], ..d2f_options() };
        let requests = (0..3).map(|index| with_adapter(&index.to_string(), index, Some("a"))).collect();
        let beside = run(&mut engine(&beside), requests);
        for rid in ["0", "1", "2"] {
            assert_eq!(beside.reply(rid).token_ids, merged.reply(rid).token_ids, "{path}, request {rid}");
        }
        assert!(["0", "1", "2"].iter().any(|rid| base.reply(rid).token_ids != merged.reply(rid).token_ids), "{path}");
    }
}

#[test]
fn a_mixed_batch_gives_each_what_it_would_get_alone() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let q = write_adapter(folders[0].path(), &[("model.layers.1.self_attn.q_proj", 128, 64)]);
    let mlp = write_adapter(folders[1].path(), &MLP);
    let options = EngineOptions {
        adapters: vec![source("q", &q), source("mlp", &mlp)],
        page_size: 4,
        block_size: Some(4),
        ..options()
    };
    let sdar = crate::harness::engine;
    // The same prompt with each: cached prefixes of one are none of the other.
    let names = [None, Some("q"), Some("mlp"), None, Some("mlp"), Some("q")];
    let requests: Vec<_> = names
        .iter()
        .enumerate()
        .map(|(index, name)| with_adapter(&index.to_string(), index as u32 / 3, *name))
        .collect();
    let mut shared = sdar(&options);
    let together = run(&mut shared, requests.clone());
    // Again, now that prefixes are cached, and with pages lost on the way.
    let again = run_with(&mut shared, requests.clone(), |engine, tick| engine.preempt(&(tick % 6).to_string()));
    let uncached = EngineOptions { prefix_caching: false, ..options };
    for request in requests {
        let rid = request.rid.clone();
        let alone = run(&mut sdar(&uncached), vec![request]);
        assert_eq!(together.reply(&rid).token_ids, alone.reply(&rid).token_ids, "request {rid}");
        assert_eq!(again.reply(&rid).token_ids, alone.reply(&rid).token_ids, "request {rid}");
    }
    assert!(shared.stats().prefix_hits > 0, "no prefix was found again");
    assert_ne!(together.reply("0").token_ids, together.reply("1").token_ids);
    assert_ne!(together.reply("1").token_ids, together.reply("2").token_ids);
}

#[test]
fn a_request_with_d2fs_adapter_is_decoded_by_d2f() {
    let folder = tempfile::tempdir().unwrap();
    let other = write_adapter(folder.path(), &MLP);
    for (base, adapter) in [("dream", "d2f_dream"), ("llada", "d2f_llada")] {
        let load = |options: &EngineOptions| {
            Engine::load(&crate::harness::Files::golden(base).leak(), options, &mut |_| {}).unwrap()
        };
        let path = golden(adapter).display().to_string();
        let options = EngineOptions { max_model_len: 96, ..options() };
        let with_adapters = EngineOptions { adapters: vec![source("d2f", &path)], ..options.clone() };
        let mut asked: Vec<_> = (0..4).map(|index| with_adapter(&format!("d2f{index}"), index, Some("d2f"))).collect();
        asked.extend((0..4).map(|index| with_adapter(&format!("base{index}"), index, None)));
        let mut engine = load(&with_adapters);
        assert_ne!(engine.config().strategy.name(), "d2f");
        let mixed = run_with(&mut engine, asked.clone(), |engine, tick| {
            if tick % 5 == 3 {
                engine.preempt(&asked[tick / 5 % 8].rid);
            }
        });
        let plain: Vec<_> = (0..4).map(|index| with_adapter(&index.to_string(), index, None)).collect();
        let merged = EngineOptions { merged_adapter: Some(path), ..options.clone() };
        let mut merged = load(&merged);
        assert_eq!(merged.config().strategy.name(), "d2f");
        let (merged, alone) = (run(&mut merged, plain.clone()), run(&mut load(&options), plain));
        for index in 0..4 {
            let rid = index.to_string();
            let (d2f, base) = (mixed.reply(&format!("d2f{index}")), mixed.reply(&format!("base{index}")));
            assert_eq!(d2f.token_ids, merged.reply(&rid).token_ids, "{adapter}, {index}");
            assert_eq!(base.token_ids, alone.reply(&rid).token_ids, "{adapter}, {index}");
            assert_eq!(d2f.nfe_counts.denoise, merged.reply(&rid).nfe_counts.denoise, "{adapter}, {index}");
        }
        let mut set = with_adapter("r", 0, Some("d2f"));
        set.sampling_params.decoding = decoding(json!({ "semi_complete_threshold": 0.5, "add_block_threshold": 0.5 }));
        assert_eq!(run(&mut engine, vec![set]).reply("r").token_ids.len(), 14, "d2f's settings are taken");
    }
    // Any other adapter is decoded as its base is.
    let mut engine = engine(&EngineOptions { adapters: vec![source("a", &other)], max_model_len: 96, ..options() });
    let mut refused = with_adapter("r", 0, Some("a"));
    refused.sampling_params.decoding = decoding(json!({ "add_block_threshold": 0.5 }));
    let told = run(&mut engine, vec![refused]);
    assert!(told.error("r").message.contains("does not apply to diffusion_generate"), "{:?}", told.error("r"));
}

#[test]
fn d2fs_adapter_is_refused_where_it_cannot_be_decoded() {
    // Of a model it was not made for.
    let folder = tempfile::tempdir().unwrap();
    let path = write_adapter(folder.path(), &[("model.layers.1.self_attn.q_proj", 128, 64)]);
    let mut config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folder.path().join("adapter_config.json")).unwrap()).unwrap();
    config["auto_mapping"] = serde_json::json!({ "parent_library": "model_cache.dream.model_dream" });
    std::fs::write(folder.path().join("adapter_config.json"), config.to_string()).unwrap();
    let mut engine = crate::harness::engine(&options());
    let message = outcome(&mut engine, ServingCommand::LoadAdapter(source("a", &path))).unwrap_err();
    assert!(message.contains("D2F") && message.contains("multi_bd"), "{message}");

    // With a forward that is too small for a whole prompt and what goes with it.
    let tight = EngineOptions {
        adapters: vec![source("a", &d2f())],
        max_model_len: 96,
        max_num_batched_tokens: 96,
        ..options()
    };
    let told = run(&mut self::engine(&tight), vec![with_adapter("r", 0, Some("a")), with_adapter("s", 40, Some("a"))]);
    assert_eq!(told.reply("r").token_ids.len(), 14);
    let error = told.error("s");
    assert_eq!(error.param.as_deref(), Some("model"));
    assert!(error.message.contains("--max-num-batched-tokens"), "{}", error.message);
}

/// The engine's reply to a command about an adapter.
fn outcome(engine: &mut Engine, command: ServingCommand) -> Result<(), String> {
    match &engine.tick(vec![command])[..] {
        [ServingEvent::AdapterReply { ok: true, message: None, .. }] => Ok(()),
        [ServingEvent::AdapterReply { ok: false, message: Some(message), .. }] => Err(message.clone()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn adapters_come_and_go_while_requests_run() {
    let load = |name: &str, path: &str| ServingCommand::LoadAdapter(source(name, path));
    let unload = || ServingCommand::UnloadAdapter { name: "a".to_owned() };
    let mut engine = engine(&d2f_options());
    let unknown = run(&mut engine, vec![with_adapter("r", 0, Some("a"))]);
    let error = unknown.error("r");
    assert_eq!((error.param.as_deref(), error.message.contains("no adapter \"a\" is loaded")), (Some("model"), true));
    assert!(outcome(&mut engine, unload()).unwrap_err().contains("no adapter \"a\""));
    assert_eq!(outcome(&mut engine, load("a", &d2f())), Ok(()));
    assert!(outcome(&mut engine, load("a", &d2f())).unwrap_err().contains("loaded already"));
    assert!(outcome(&mut engine, load("", &d2f())).unwrap_err().contains("1 to 256 bytes"));
    assert!(outcome(&mut engine, load("b", "/nowhere")).unwrap_err().contains("/nowhere"));

    let want = run(&mut engine, vec![with_adapter("r", 0, Some("a"))]).reply("r").token_ids.clone();
    // Unloaded under a running request, and another one loaded under its name.
    let folder = tempfile::tempdir().unwrap();
    let mlp = write_adapter(folder.path(), &MLP);
    let running = run_with(&mut engine, vec![with_adapter("r", 0, Some("a"))], |engine, tick| {
        if tick == 1 {
            assert_eq!(outcome_while_running(engine, unload()), 1);
            assert_eq!(outcome_while_running(engine, load("a", &mlp)), 1);
        }
    });
    assert_eq!(running.reply("r").token_ids, want);
    let other = run(&mut engine, vec![with_adapter("r", 0, Some("a"))]);
    assert_ne!(other.reply("r").token_ids, want);
}

#[test]
fn the_contexts_of_an_adapter_go_with_it() {
    let mut engine = engine(&EngineOptions { adapters: vec![source("a", &d2f())], ..d2f_options() });
    for (id, adapter) in [(1, Some("a")), (2, None)] {
        // 16 tokens are two whole pages.
        let context = Some(ContextUse { id, fills: true });
        engine.tick(vec![ServingCommand::Generate(ServingGenerate { context, ..with_adapter("r", 5, adapter) })]);
        while engine.has_work() {
            engine.tick(Vec::new());
        }
    }
    assert_eq!((engine.stats().contexts, engine.stats().context_pages), (2, 4));
    assert_eq!(outcome(&mut engine, ServingCommand::UnloadAdapter { name: "a".to_owned() }), Ok(()));
    assert_eq!((engine.stats().contexts, engine.stats().context_pages), (1, 2));
    assert!(engine.pages_are_consistent());
}

/// As [`outcome`], of an engine whose other events the caller reads off the request's end; the number of good outcomes.
fn outcome_while_running(engine: &mut Engine, command: ServingCommand) -> usize {
    let events = engine.tick(vec![command]);
    assert!(!events.iter().any(ServingEvent::is_terminal));
    events.iter().filter(|event| matches!(event, ServingEvent::AdapterReply { ok: true, .. })).count()
}

#[test]
fn what_does_not_fit_is_named() {
    for (module, what) in [
        (("model.layers.0.self_attn.z_proj", 64, 64), "model.layers.0.self_attn.z_proj.lora_A"),
        (("model.layers.0.self_attn.o_proj", 63, 64), "expected [64, 3]"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let path = write_adapter(folder.path(), &[module]);
        let options = EngineOptions { adapters: vec![source("a", &path)], ..d2f_options() };
        let files = crate::harness::Files::golden("dream").leak();
        let error = Engine::load(&files, &options, &mut |_| {}).err().expect("it does not fit").to_string();
        assert!(error.contains(what), "{error}");
    }
}

#[test]
fn a_part_of_a_fused_tensor_gets_its_part_of_the_adapter() {
    let folder = tempfile::tempdir().unwrap();
    let modules = [("model.layers.1.attention.query_key_value", 256, 64), ("model.layers.1.attention.dense", 64, 128)];
    let adapter = ModelFiles::folder(write_adapter(folder.path(), &modules)).unwrap();
    let files = ModelFiles::folder(golden("llada2")).unwrap();
    let ops = CpuOps::new(1).unwrap();
    let mut batch = eight_tokens();
    batch.adapted.insert(1, batch.state_rows.clone());
    let logits = |merged: Option<&ModelFiles>, beside: Option<&ModelFiles>| {
        let network = models::load(&files, merged, &ops, Some(WeightType::F32), 64, &mut |_, _| {}).unwrap();
        let beside = beside.map(|files| models::load_adapter(files, &ops, network.as_ref(), 1 << 30).unwrap());
        let mut adapters = Adapters::none();
        if let Some(adapter) = &beside {
            adapters.push(1, adapter);
        }
        let mut cache = ops.cache(&network.spec().cache_shapes(1, 8, KvType::F32)).unwrap();
        network.forward(&ops, &batch, &adapters, &mut cache).unwrap()
    };
    let (base, merged, beside) = (logits(None, None), logits(Some(&adapter), None), logits(None, Some(&adapter)));
    assert!(difference(&merged, &beside) < 1e-3, "{}", difference(&merged, &beside));
    assert!(difference(&base, &merged) > 0.1, "the adapter changes nothing");
}
