//! LLaDA2.0 and 2.1: the decoder with sigmoid-routed experts in groups (Bailing MoE v2).
//!
//! q, k and v are one matrix; a norm per head; rotation of the first channels of each head. After the first, dense layers, routed
//! experts are selected by sigmoid plus a bias within the best groups and weighted without the bias; a shared expert is added.
//! Reference: LLaDA2's modeling_llada2_moe.py; 2.0 and 2.1 compute the same.
//!
//! | tensor, all with `.weight` but the bias | shape |
//! |---|---|
//! | `model.word_embeddings`, `model.norm`, `lm_head` | vocab, hidden; hidden; vocab, hidden |
//! | `model.layers.N.{input,post_attention}_layernorm` | hidden |
//! | `.attention.query_key_value` | (heads + 2 x K/V heads) x head_dim, hidden: q, then k, then v |
//! | `.attention.{query,key}_layernorm` | head_dim |
//! | `.attention.dense` | hidden, heads x head_dim |
//! | `.mlp.{gate,up,down}_proj`, in dense layers | intermediate, hidden; the reverse |
//! | `.mlp.gate`, `.mlp.gate.expert_bias` or `.e_score_correction_bias` | experts, hidden; experts |
//! | `.mlp.experts.E.{gate,up,down}_proj`, `.mlp.shared_experts.{gate,up,down}_proj` | width, hidden; the reverse |
//! | or `.mlp.experts.{gate,up,down}_proj`, without `.weight` | experts, width, hidden; the reverse |

use serde::Deserialize;
use serde_json::Value;

use super::config_fields::{check_positive, check_sizes, fields_of, parse, refuse, refuse_switches};
use super::decoder::{
    Decoder, DecoderConfig, ExpertShape, Experts, FeedForward, MLP_NAMES, Names, QkvNames, load_dense_mlp,
    load_experts, load_mlp,
};
use super::families::Family;
use super::loader::Loader;
use super::softmax_moe::check_choice;
use crate::error::LoadError;
use crate::kernels::routing::{ExpertBias, ExpertGroups, Routing, Scoring};
use crate::kernels::{Activation, Ops};

const NAMES: Names = Names {
    embedding: "model.word_embeddings",
    layers: "model.layers",
    input_norm: "input_layernorm",
    qkv: QkvNames::Fused("attention.query_key_value"),
    q_norm: "attention.query_layernorm",
    k_norm: "attention.key_layernorm",
    o: "attention.dense",
    post_attention_norm: "post_attention_layernorm",
    norm: "model.norm",
    head: "lm_head",
};

#[derive(Deserialize)]
struct Llada2Config {
    intermediate_size: usize,
    moe_intermediate_size: usize,
    num_experts: usize,
    num_experts_per_tok: usize,
    num_shared_experts: Option<usize>,
    /// Number of leading layers with an MLP.
    first_k_dense_replace: usize,
    n_group: usize,
    topk_group: usize,
    routed_scaling_factor: f32,
    /// Rotated channels of a head.
    rotary_dim: Option<usize>,
    /// Rotated share of a head, in [0, 1].
    partial_rotary_factor: Option<f64>,
}

/// Unsupported options of the config: field, and its only supported value.
fn switches() -> [(&'static str, Value); 8] {
    [
        ("score_function", "sigmoid".into()),
        ("moe_router_enable_expert_bias", true.into()),
        ("norm_topk_prob", true.into()),
        ("norm_head", false.into()),
        ("norm_softmax", false.into()),
        ("use_rmsnorm", true.into()),
        ("use_qk_norm", true.into()),
        ("using_split_qkv_in_self_attention", false.into()),
    ]
}

/// LLaDA2.2's limit of the experts that the rows of one block may use (SGLang, llada2.py).
const EXPERT_CAPACITY: &str = "expert_capacity";

/// The fields of config.json that are read or checked.
pub(super) fn fields() -> Vec<&'static str> {
    let switches = switches().map(|(field, _)| field);
    [fields_of::<DecoderConfig>(), fields_of::<Llada2Config>(), &switches, &[EXPERT_CAPACITY]].concat()
}

/// Loads LLaDA2.
pub(super) fn load<O: Ops>(
    loader: &mut Loader<'_, O>,
    family: &'static Family,
    config: &Value,
    max_positions: usize,
) -> Result<Decoder<O>, LoadError> {
    refuse_switches(config, &switches())?;
    if let Some(capacity) = config.get(EXPERT_CAPACITY).filter(|capacity| !capacity.is_null()) {
        return Err(refuse(format!(
            "{EXPERT_CAPACITY} is {capacity}: LLaDA2.2's limit of experts per block is not supported"
        )));
    }
    let mut shared = DecoderConfig::from_json(config)?;
    let moe: Llada2Config = parse(config)?;
    let (hidden, head_dim) = (shared.hidden_size, shared.head_dim());
    let newer = shared.rope_parameters.as_ref().and_then(|parameters| parameters.partial_rotary_factor);
    let share = moe.partial_rotary_factor.or(newer);
    if let Some(share) = share.filter(|share| !(0.0..=1.0).contains(share)) {
        return Err(refuse(format!("partial_rotary_factor is {share}; it must be in 0..=1")));
    }
    // Parsing may round the share down slightly.
    let by_share = share.map(|share| (head_dim as f64 * share + 1e-9) as usize);
    if let (Some(rotary_dim), Some(by_share)) = (moe.rotary_dim, by_share)
        && rotary_dim != by_share
    {
        return Err(refuse(format!(
            "rotary_dim {rotary_dim} contradicts partial_rotary_factor of head_dim {head_dim}"
        )));
    }
    shared.rotary_dim = moe.rotary_dim.or(by_share);
    check_sizes(&[
        ("rotary_dim", shared.rotary_dim.unwrap_or(head_dim)),
        ("intermediate_size", moe.intermediate_size),
        ("moe_intermediate_size", moe.moe_intermediate_size),
        ("num_experts", moe.num_experts),
        ("num_shared_experts", moe.num_shared_experts.unwrap_or(0).max(1)),
        ("n_group", moe.n_group),
        ("topk_group", moe.topk_group),
    ])?;
    check_positive("routed_scaling_factor", f64::from(moe.routed_scaling_factor))?;
    check_choice("num_experts_per_tok", moe.num_experts_per_tok, moe.num_experts)?;
    let groups = ExpertGroups { n_groups: moe.n_group, n_kept: moe.topk_group };
    if !moe.num_experts.is_multiple_of(moe.n_group)
        || moe.topk_group > moe.n_group
        || moe.num_experts / moe.n_group * moe.topk_group < moe.num_experts_per_tok
    {
        return Err(refuse(format!(
            "{} of {} experts cannot be selected from {} of {} groups",
            moe.num_experts_per_tok, moe.num_experts, moe.topk_group, moe.n_group
        )));
    }
    Decoder::load(loader, family, &NAMES, &shared, max_positions, |loader, index, layer| {
        let mlp = format!("{layer}.mlp");
        if index < moe.first_k_dense_replace {
            return load_dense_mlp(loader, &mlp, MLP_NAMES, moe.intermediate_size, hidden);
        }
        let alias = format!("{mlp}.gate.e_score_correction_bias");
        let bias = if loader.checkpoint.contains(&alias) { alias } else { format!("{mlp}.gate.expert_bias") };
        let shared = match moe.num_shared_experts.unwrap_or(0) {
            0 => None,
            n => {
                let (name, width) = (format!("{mlp}.shared_experts"), n * moe.moe_intermediate_size);
                Some(load_mlp(loader, &name, MLP_NAMES, width, hidden, Activation::Silu)?)
            }
        };
        let routing = Routing {
            n_chosen: moe.num_experts_per_tok,
            scoring: Scoring::Sigmoid,
            bias: ExpertBias::Choice(loader.host_vector(&bias, moe.num_experts)?),
            groups: Some(groups),
            // The authors' code does not normalise the weight of a single expert.
            renormalise: moe.num_experts_per_tok > 1,
            scale: moe.routed_scaling_factor,
            expert_scale: None,
        };
        let (n_experts, width) = (moe.num_experts, moe.moe_intermediate_size);
        let shape = ExpertShape { n_experts, width, hidden, activation: Activation::Silu };
        Ok(FeedForward::Experts(Experts {
            router: loader.router(&format!("{mlp}.gate.weight"), moe.num_experts, hidden)?,
            experts: load_experts(loader, &format!("{mlp}.experts"), shape, routing)?,
            shared,
        }))
    })
}
