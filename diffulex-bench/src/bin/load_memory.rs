//! Peak memory of loading a checkpoint, beside its size on disk.
//!
//! `cargo run --release -p diffulex-workbench --bin load_memory -- [LAYERS] [float32|bfloat16]`. Writes a bfloat16 SDAR
//! checkpoint of Qwen3-0.6B's width with an untied head and the tokenizer of the golden data to a temporary folder, and
//! loads it in a process of its own, whose peak resident size the kernel tells (`VmHWM`).

#![expect(clippy::print_stdout, reason = "a program that prints a figure")]

use std::error::Error;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use diffulex_engine::{DtypeChoice, Engine, EngineOptions, ModelFiles};
use serde_json::json;

const HIDDEN: usize = 1024;
const INTERMEDIATE: usize = 3072;
const VOCAB: usize = 32_000;
const HEADS: (usize, usize, usize) = (16, 8, 128);

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let first = arguments.next().unwrap_or_else(|| "28".to_owned());
    let second = arguments.next().unwrap_or_else(|| "bfloat16".to_owned());
    if let Some(folder) = first.strip_prefix("load=") {
        return load(folder, &second);
    }
    let folder = tempfile::tempdir()?;
    let on_disk = write(folder.path(), first.parse()?)?;
    let mut child = Command::new(std::env::current_exe()?);
    let output = child.arg(format!("load={}", folder.path().display())).arg(&second).output()?;
    let peak: u64 = String::from_utf8(output.stdout)?.trim().parse()?;
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    println!(
        "{:.0} MiB on disk, held as {second}: peak {:.0} MiB, {:.3} times its size",
        mib(on_disk),
        mib(peak),
        peak as f64 / on_disk as f64
    );
    Ok(())
}

/// Loads and prints the peak in bytes.
fn load(folder: &str, dtype: &str) -> Result<(), Box<dyn Error>> {
    let dtype = if dtype == "float32" { DtypeChoice::Float32 } else { DtypeChoice::Bfloat16 };
    let options = EngineOptions { dtype, ..EngineOptions::default() };
    let _engine = Engine::load(&ModelFiles::folder(folder)?, &options, &mut |_| {})?;
    let status = std::fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM")?;
    let kib: u64 = peak.trim().trim_end_matches(" kB").parse()?;
    println!("{}", kib * 1024);
    Ok(())
}

/// Writes the checkpoint; returns the size of its weights.
fn write(folder: &Path, n_layers: usize) -> Result<u64, Box<dyn Error>> {
    let (n_heads, n_kv_heads, head_dim) = HEADS;
    let config = json!({
        "architectures": ["SDARForCausalLM"], "hidden_size": HIDDEN, "num_hidden_layers": n_layers,
        "num_attention_heads": n_heads, "num_key_value_heads": n_kv_heads, "head_dim": head_dim,
        "intermediate_size": INTERMEDIATE, "vocab_size": VOCAB, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
        "max_position_embeddings": 4096, "tie_word_embeddings": false, "mask_token_id": 500, "block_size": 8,
    });
    std::fs::write(folder.join("config.json"), config.to_string())?;
    let tokenizer = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/tokenizer");
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(tokenizer.join(file), folder.join(file))?;
    }
    let mut tensors: Vec<(String, Vec<usize>)> = vec![
        ("model.embed_tokens.weight".to_owned(), vec![VOCAB, HIDDEN]),
        ("lm_head.weight".to_owned(), vec![VOCAB, HIDDEN]),
        ("model.norm.weight".to_owned(), vec![HIDDEN]),
    ];
    for layer in 0..n_layers {
        let parts = [
            ("self_attn.q_proj", vec![n_heads * head_dim, HIDDEN]),
            ("self_attn.k_proj", vec![n_kv_heads * head_dim, HIDDEN]),
            ("self_attn.v_proj", vec![n_kv_heads * head_dim, HIDDEN]),
            ("self_attn.o_proj", vec![HIDDEN, n_heads * head_dim]),
            ("self_attn.q_norm", vec![head_dim]),
            ("self_attn.k_norm", vec![head_dim]),
            ("input_layernorm", vec![HIDDEN]),
            ("post_attention_layernorm", vec![HIDDEN]),
            ("mlp.gate_proj", vec![INTERMEDIATE, HIDDEN]),
            ("mlp.up_proj", vec![INTERMEDIATE, HIDDEN]),
            ("mlp.down_proj", vec![HIDDEN, INTERMEDIATE]),
        ];
        tensors.extend(parts.map(|(part, shape)| (format!("model.layers.{layer}.{part}.weight"), shape)));
    }
    let mut header = serde_json::Map::new();
    let mut end = 0;
    for (name, shape) in &tensors {
        let start = end;
        end += 2 * shape.iter().product::<usize>();
        header.insert(name.clone(), json!({"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}));
    }
    let header = serde_json::to_vec(&header)?;
    let mut file = std::io::BufWriter::new(File::create(folder.join("model.safetensors"))?);
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(&header)?;
    // Values of about 0.01; what they are does not matter here.
    let page = [0x23, 0x3c].repeat(1 << 15);
    for _ in 0..end / page.len() {
        file.write_all(&page)?;
    }
    file.write_all(&page[..end % page.len()])?;
    file.flush()?;
    Ok(end as u64)
}
