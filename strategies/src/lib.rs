//! Decoding strategies of diffusion language models.
//!
//! A strategy sees small host arrays (which positions of a block are filled, the tokens that the network predicts at the
//! masked ones, and their confidence) and proposes [`Edit`]s. It cannot reach a scheduler, a cache or a tensor: **a
//! strategy proposes, the engine commits.**
//!
//! | module | content |
//! |---|---|
//! | [`strategy`] | the trait of a strategy; the traits of a model; requirements on the engine |
//! | [`any_strategy`] | the list of strategies, as one type |
//! | [`view`], [`edit`] | a block as a strategy sees it; the edits that it may propose |
//! | [`layout`] | positions of blocks, attention, reuse of K/V |
//! | [`setting`] | settings that operators and requests may change |
//! | [`accept`] | accept rules |
//! | [`revise`] | edit rules |
//! | [`multi_block`] | `multi_bd`: block diffusion with one or more blocks in flight |
//! | [`block_edit`] | `block_edit`: blocks of drafts, which may be replaced until their block settles |
//! | [`token_merge`] | `dmax`: drafts are fed back as blends of embeddings (DMax) |
//! | [`d2f`] | `d2f`: a pipeline of blocks after a prompt that is one block |
//! | [`fast_dllm_v2`] | `fast_dllm_v2`: blocks of sub-blocks |
//! | [`semi_autoregressive`] | `semi_ar`: LLaDA's blocks, which attend to the whole answer |
//! | [`diffusion_generate`] | `diffusion_generate`: Dream's schedule over time |
//! | [`saber`] | `saber`: adaptive acceptance with backtracking |
//! | [`canvas_renoise`] | `diffusion_gemma`: DiffusionGemma's canvases of random tokens |

pub mod accept;
pub mod any_strategy;
pub mod block_edit;
pub mod canvas_renoise;
mod contract;
pub mod d2f;
pub mod diffusion_generate;
pub mod fast_dllm_v2;
pub mod multi_block;
pub mod revise;
pub mod saber;
pub mod semi_autoregressive;
pub mod strategy;
pub mod token_merge;

pub use accept::{AcceptRule, EntropyBound, GatedThreshold, Threshold};
pub use any_strategy::{AnyStrategy, StrategyKind, check_settings, settings, strategies_with};
pub use block_edit::BlockEdit;
pub use canvas_renoise::CanvasRenoise;
pub use contract::edit::{Edit, Input, Proposal, TokenBlend};
pub use contract::layout::{AttentionKind, KvReuse, Layout};
pub use contract::setting::{Setting, SettingError, Value, Values};
pub use contract::view::{BlockCandidates, BlockProgress, BlockView, Candidate, MAX_TOP_K, Score, StepRows};
pub use contract::{edit, layout, setting, view};
pub use d2f::D2f;
pub use diffusion_generate::DiffusionGenerate;
pub use fast_dllm_v2::FastDllmV2;
pub use multi_block::{MultiBlock, MultiBlockConfig};
pub use revise::EditRule;
pub use saber::Saber;
pub use semi_autoregressive::SemiAutoregressive;
pub use strategy::{ModelTraits, Requirements, Strategy};
pub use token_merge::{Merge, MergeMode, TokenMerge};
