//! Decoding strategies of diffusion language models.
//!
//! A strategy sees small host arrays (which positions of a block are filled, the tokens that the network predicts at the
//! masked ones, and their confidence) and proposes [`Edit`]s. It cannot reach a scheduler, a cache or a tensor: **a
//! strategy proposes, the engine commits.**
//!
//! - [`view`]: what a rule may look at. [`edit`]: what it may propose.
//! - [`accept`]: the accept rules of the field by name.
//! - [`multi_block`]: block diffusion with one to several blocks in flight.
//! - [`d2f`]: the same behind a prompt that is one block.
//! - [`semi_autoregressive`]: LLaDA's blocks under attention to the whole answer.
//! - [`diffusion_generate`]: Dream's schedule over time.
//! - [`block_edit`]: blocks whose tokens may be replaced until they settle. [`revise`]: the edit rules.
//! - [`canvas_renoise`]: DiffusionGemma's canvases of random tokens.
//! - [`fast_dllm_v2`]: sub-blocks, and a token of the next block with each commit.
//! - [`saber`]: acceptance that adapts, and tokens that are masked again when doubt rises.
//! - [`token_merge`]: DMax, whose tokens harden step by step.
//! - [`decode`]: the contract of a strategy. [`strategy`]: all of them as one type. [`layout`]: how blocks lie.
//! - [`setting`]: what operators and requests may change of them.

pub mod accept;
pub mod block_edit;
pub mod canvas_renoise;
pub mod d2f;
pub mod decode;
pub mod diffusion_generate;
pub mod edit;
pub mod fast_dllm_v2;
pub mod layout;
pub mod multi_block;
pub mod revise;
pub mod saber;
pub mod semi_autoregressive;
pub mod setting;
pub mod strategy;
pub mod token_merge;
pub mod view;

pub use accept::{AcceptRule, EntropyBound, GatedThreshold, Threshold};
pub use block_edit::BlockEdit;
pub use canvas_renoise::CanvasRenoise;
pub use d2f::D2f;
pub use decode::{Declared, Decode, Setup};
pub use diffusion_generate::DiffusionGenerate;
pub use edit::{Blend, Edit, Input, Proposal};
pub use fast_dllm_v2::FastDllmV2;
pub use layout::{Attention, ContextGrowth, KvReuse, Layout};
pub use multi_block::{MultiBlock, MultiBlockConfig};
pub use revise::EditRule;
pub use saber::Saber;
pub use semi_autoregressive::SemiAutoregressive;
pub use setting::{Setting, SettingError, Value, Values};
pub use strategy::{Strategy, StrategyKind, check_settings, settings, strategies_with};
pub use token_merge::{Merge, MergeMode, TokenMerge};
pub use view::{BlockCandidates, BlockView, Candidate, Focus, MAX_LIKELIEST, MAX_TOP_K, Progress, Score};
