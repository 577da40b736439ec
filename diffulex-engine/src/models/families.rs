//! The supported families by `architectures[0]`, with the facts that their checkpoints leave out.
//!
//! The only table of its kind: the network of a family, the positions its rows attend to, the alignment of its logits, the
//! block its authors decode with, and the ids its config may leave out. A config or a tokenizer that says otherwise
//! wins. The name decides, never `model_type`: `Dream` and `llada` name two networks each, `llama` hides one.
//!
//! Never here: tensors, strategies, options.

use crate::alignment::LogitAlignment;

/// Longest block that a model was trained with: that of the largest SDAR variant.
pub const MAX_BLOCK_SIZE: usize = 64;

/// The positions that a row attends to, in training and so in decoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionKind {
    /// All of its own block and of the blocks before; blocks are counted from position 0.
    BlockCausal,
    /// Everything, what comes after it included.
    Full,
    /// Nothing after itself while it is encoded; all of its canvas and of what is before while that is denoised.
    Canvas,
}

/// The networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkKind {
    /// Llama, Qwen2, Qwen3 under their usual names.
    Dense,
    /// Llama under OLMo's names.
    DenseLlada,
    /// Qwen3-MoE.
    MoeSdar,
    /// LLaDA-MoE.
    MoeLlada,
    /// LLaDA2.
    Llada2,
    /// DiffusionGemma.
    DiffusionGemma,
}

/// Facts about a family that its checkpoints do not state.
#[derive(Debug, PartialEq)]
pub struct Family {
    /// Its common name.
    pub name: &'static str,
    /// `architectures[0]`.
    pub architecture: &'static str,
    /// Its network.
    pub network: NetworkKind,
    /// q, k and v have a bias.
    pub qkv_bias: bool,
    /// q and k are normed per head.
    pub qk_norm: bool,
    /// The positions that a row attends to.
    pub attention: AttentionKind,
    /// The position that a row of logits predicts.
    pub alignment: LogitAlignment,
    /// Positions of a block if config.json does not name them.
    pub block_size: usize,
    /// The mask of the released checkpoints, where there is one; holds only where the tokenizer has a token of that meaning there.
    pub mask_token_id: Option<u32>,
    /// Tokens that end an answer beside those the files name; holds only where the tokenizer has a special token there.
    pub eos_token_ids: &'static [u32],
    /// Confidence threshold of its authors' engines, where it is not the accept rules' own default.
    pub accept_threshold: Option<f32>,
}

impl Family {
    /// The family of `architecture`.
    pub fn of(architecture: &str) -> Option<&'static Self> {
        FAMILIES.iter().find(|family| family.architecture == architecture)
    }
}

/// Every known family. Shapes and ids are those of the authors' config.json and tokenizer files.
pub static FAMILIES: &[Family] = &[
    Family {
        name: "SDAR",
        architecture: "SDARForCausalLM",
        network: NetworkKind::Dense,
        qkv_bias: false,
        qk_norm: true,
        attention: AttentionKind::BlockCausal,
        alignment: LogitAlignment::Same,
        block_size: 4,
        mask_token_id: Some(151_669),
        eos_token_ids: &[151_645, 151_643],
        accept_threshold: None,
    },
    Family {
        name: "SDAR-MoE",
        architecture: "SDARMoeForCausalLM",
        network: NetworkKind::MoeSdar,
        qkv_bias: false,
        qk_norm: true,
        attention: AttentionKind::BlockCausal,
        alignment: LogitAlignment::Same,
        block_size: 4,
        mask_token_id: Some(151_669),
        eos_token_ids: &[151_645, 151_643],
        accept_threshold: None,
    },
    // LLaDA2.0 and 2.1, mini and flash. 0.95: their generate and SGLang's LowConfidence.
    Family {
        name: "LLaDA2",
        architecture: "LLaDA2MoeModelLM",
        network: NetworkKind::Llada2,
        qkv_bias: false,
        qk_norm: true,
        attention: AttentionKind::BlockCausal,
        alignment: LogitAlignment::Same,
        block_size: 32,
        mask_token_id: Some(156_895),
        eos_token_ids: &[156_892],
        accept_threshold: Some(0.95),
    },
    // Stable-DiffCoder. Its mask is id 5, among the first tokens of its vocabulary.
    Family {
        name: "Stable-DiffCoder",
        architecture: "StableDiffcoderForCausalLM",
        network: NetworkKind::Dense,
        qkv_bias: false,
        qk_norm: false,
        attention: AttentionKind::BlockCausal,
        alignment: LogitAlignment::Same,
        block_size: 4,
        mask_token_id: Some(5),
        eos_token_ids: &[2],
        accept_threshold: None,
    },
    // DreamReasoner.
    Family {
        name: "DreamReasoner",
        architecture: "DreamForCausalLM",
        network: NetworkKind::Dense,
        qkv_bias: false,
        qk_norm: true,
        attention: AttentionKind::BlockCausal,
        alignment: LogitAlignment::Same,
        block_size: 32,
        mask_token_id: Some(151_669),
        eos_token_ids: &[151_645, 151_643],
        accept_threshold: None,
    },
    // Dream, DiffuCoder and, with their adapters merged, D2F.
    Family {
        name: "Dream",
        architecture: "DreamModel",
        network: NetworkKind::Dense,
        qkv_bias: true,
        qk_norm: false,
        attention: AttentionKind::Full,
        alignment: LogitAlignment::Next,
        block_size: 32,
        mask_token_id: Some(151_666),
        eos_token_ids: &[151_643, 151_645],
        accept_threshold: None,
    },
    // Fast-dLLM v2; config.json calls the block bd_size.
    Family {
        name: "Fast-dLLM v2",
        architecture: "Fast_dLLM_QwenForCausalLM",
        network: NetworkKind::Dense,
        qkv_bias: true,
        qk_norm: false,
        attention: AttentionKind::BlockCausal,
        alignment: LogitAlignment::Next,
        block_size: 32,
        mask_token_id: Some(151_665),
        eos_token_ids: &[151_645],
        accept_threshold: None,
    },
    // LLaDA-8B, LLaDA 1.5.
    Family {
        name: "LLaDA",
        architecture: "LLaDAModelLM",
        network: NetworkKind::DenseLlada,
        qkv_bias: false,
        qk_norm: false,
        attention: AttentionKind::Full,
        alignment: LogitAlignment::Same,
        block_size: 32,
        mask_token_id: Some(126_336),
        eos_token_ids: &[126_081, 126_348],
        accept_threshold: None,
    },
    Family {
        name: "LLaDA-MoE",
        architecture: "LLaDAMoEModelLM",
        network: NetworkKind::MoeLlada,
        qkv_bias: false,
        qk_norm: true,
        attention: AttentionKind::Full,
        alignment: LogitAlignment::Same,
        block_size: 32,
        mask_token_id: Some(156_895),
        eos_token_ids: &[156_892],
        accept_threshold: None,
    },
    // Canvases of random tokens in place of masks. The ids are generation_config.json's.
    Family {
        name: "DiffusionGemma",
        architecture: "DiffusionGemmaForBlockDiffusion",
        network: NetworkKind::DiffusionGemma,
        qkv_bias: false,
        qk_norm: true,
        attention: AttentionKind::Canvas,
        alignment: LogitAlignment::Same,
        block_size: 256,
        mask_token_id: None,
        eos_token_ids: &[1, 106, 50],
        accept_threshold: None,
    },
];

/// The names of [`FAMILIES`], for messages.
pub fn names() -> String {
    FAMILIES.iter().map(|family| family.name).collect::<Vec<_>>().join(", ")
}

/// Architectures of transformers that write one token after the other, as far as people are likely to have them.
const AUTOREGRESSIVE: [&str; 40] = [
    "BaichuanForCausalLM",
    "BloomForCausalLM",
    "ChatGLMModel",
    "CohereForCausalLM",
    "Cohere2ForCausalLM",
    "DeepseekForCausalLM",
    "DeepseekV2ForCausalLM",
    "DeepseekV3ForCausalLM",
    "FalconForCausalLM",
    "GemmaForCausalLM",
    "Gemma2ForCausalLM",
    "Gemma3ForCausalLM",
    "Gemma3ForConditionalGeneration",
    "Gemma3nForConditionalGeneration",
    "GPT2LMHeadModel",
    "GPTBigCodeForCausalLM",
    "GPTJForCausalLM",
    "GPTNeoForCausalLM",
    "GPTNeoXForCausalLM",
    "Glm4ForCausalLM",
    "GlmForCausalLM",
    "GptOssForCausalLM",
    "GraniteForCausalLM",
    "InternLM2ForCausalLM",
    "LlamaForCausalLM",
    "MambaForCausalLM",
    "MistralForCausalLM",
    "MixtralForCausalLM",
    "MptForCausalLM",
    "OPTForCausalLM",
    "OlmoForCausalLM",
    "Olmo2ForCausalLM",
    "PhiForCausalLM",
    "Phi3ForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen2MoeForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
    "SmolLM3ForCausalLM",
    "Starcoder2ForCausalLM",
];

/// Whether `architecture` is known to write one token after the other.
pub fn is_autoregressive(architecture: &str) -> bool {
    AUTOREGRESSIVE.contains(&architecture)
}
