//! `dmax`: block diffusion in which drafts are fed back as blends of embeddings (DMax).
//!
//! Blocks open and are committed as in `multi_bd`. At each step the accept rule fills masks from the left, and every draft is
//! replaced by the token that the network now predicts. In the next step the network's input at each draft is a blend of the
//! embeddings of its likeliest tokens and the mask, weighted by probability. A block settles when all its tokens are confident,
//! when a step changes nothing, or after as many steps as it has positions. As in the authors' loop, the committed K/V are those
//! of the tokens themselves (czg1225/DMax, `decode_uniform` in dInfer's generate_uniform.py and parallel_strategy.py).

use crate::accept::{AcceptRule, LeftmostPrefix};
use crate::contract::edit::{Edit, Input, Proposal, TokenBlend};
use crate::contract::layout::Layout;
use crate::contract::setting::{Field, NamedChoice, Overrides, Setting, SettingError};
use crate::contract::view::{BlockProgress, BlockView, Candidate, MAX_TOP_K};
use crate::multi_block::{ADD_BLOCK_THRESHOLD, MultiBlock};
use crate::strategy::{ModelTraits, Requirements, Strategy};

/// See [`MergeMode`].
const TOKEN_MERGE_MODE: Setting = Setting::choice(
    "token_merge_mode",
    &["dmax_topk", "iter_smooth_topk"],
    "Blend that the network reads for a written token",
);

/// See [`Merge::top_k`].
const TOKEN_MERGE_TOP_K: Setting =
    Setting::count("token_merge_top_k", 1, MAX_TOP_K as u32, "Number of likeliest tokens to merge");

/// See [`Merge::weight`]. The maximum is chosen by us: at 10000 the written token no longer contributes, and results stay finite.
const TOKEN_MERGE_WEIGHT: Setting = Setting::number(
    "token_merge_weight",
    "WEIGHT",
    0.0,
    1e4,
    "Weight of the likeliest tokens relative to the written token (iter_smooth_topk)",
);

/// See [`Merge::renormalize`].
const TOKEN_MERGE_RENORMALIZE: Setting =
    Setting::flag("token_merge_renormalize", "Rescale the blend to the weighted norm of its embeddings (dmax_topk)");

/// Settings of `dmax`; all state is in the block.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenMerge {
    /// Opening of blocks, and the accept rule.
    pub blocks: MultiBlock,
    /// The network's input at a draft.
    pub merge: Merge,
}

/// Blend of embeddings that is the network's input at a draft.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Merge {
    /// Weights of the blend.
    pub mode: MergeMode,
    /// Number of likeliest tokens, 1 to [`MAX_TOP_K`].
    pub top_k: usize,
    /// For [`MergeMode::IterSmoothTopk`]: weight of the likeliest tokens, 0 or more; the written token has weight 1.
    pub weight: f32,
    /// For [`MergeMode::DmaxTopk`]: rescale the sum to the weighted sum of the embeddings' norms.
    pub renormalize: bool,
}

/// Weights of a blend; `p` are the probabilities of the likeliest tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergeMode {
    /// The likeliest tokens with weights `p`, and the mask with the rest, `1 - sum p` (DMax).
    DmaxTopk,
    /// The written token with weight 1, and the likeliest tokens with weights `weight * p` (Diffulex).
    IterSmoothTopk,
}

impl NamedChoice for MergeMode {
    fn name(&self) -> &'static str {
        match self {
            Self::DmaxTopk => "dmax_topk",
            Self::IterSmoothTopk => "iter_smooth_topk",
        }
    }

    fn choose(&mut self, name: &str) {
        let all = [Self::DmaxTopk, Self::IterSmoothTopk];
        *self = all.into_iter().find(|mode| mode.name() == name).unwrap_or(*self);
    }
}

impl Default for Merge {
    /// DMax's loop; `weight` is Diffulex's default.
    fn default() -> Self {
        Self { mode: MergeMode::DmaxTopk, top_k: 1, weight: 1.0, renormalize: true }
    }
}

impl Merge {
    fn set(&mut self, overrides: &mut Overrides<'_>) -> Result<(), SettingError> {
        overrides.apply(vec![(&TOKEN_MERGE_MODE, Field::Choice(&mut self.mode))])?;
        let other = match self.mode {
            MergeMode::DmaxTopk => &TOKEN_MERGE_WEIGHT,
            MergeMode::IterSmoothTopk => &TOKEN_MERGE_RENORMALIZE,
        };
        if overrides.has(other) {
            return Err(SettingError::refused(other.name, format!("does not apply to {}", self.mode.name())));
        }
        overrides.apply(vec![
            (&TOKEN_MERGE_TOP_K, Field::Count(&mut self.top_k)),
            (&TOKEN_MERGE_WEIGHT, Field::Number(&mut self.weight)),
            (&TOKEN_MERGE_RENORMALIZE, Field::Flag(&mut self.renormalize)),
        ])
    }

    /// Returns the network's input where `candidate` is written.
    fn blend(&self, candidate: &Candidate) -> TokenBlend {
        let likeliest =
            std::iter::once(candidate.likeliest).chain(candidate.runners_up.iter().copied()).take(self.top_k);
        let mut tokens = [(0, 0.0); MAX_TOP_K + 1];
        match self.mode {
            MergeMode::DmaxTopk => {
                tokens.iter_mut().zip(likeliest.clone()).for_each(|(part, likely)| *part = likely);
                let sum: f32 = likeliest.map(|(_, probability)| probability).sum();
                TokenBlend { tokens, mask: (1.0 - sum).max(0.0), keeps_length: self.renormalize }
            }
            MergeMode::IterSmoothTopk => {
                let weighed = likeliest.map(|(token, probability)| (token, self.weight * probability));
                let parts = std::iter::once((candidate.token, 1.0)).chain(weighed);
                tokens.iter_mut().zip(parts).for_each(|(part, weighed)| *part = weighed);
                TokenBlend { tokens, mask: 0.0, keeps_length: false }
            }
        }
    }
}

impl TokenMerge {
    /// Default: Diffulex's configuration for DMax (`accept_threshold`).
    const ACCEPT_THRESHOLD: f32 = 0.5;
    /// Probability of the likeliest token from which a position is confident (`decode_uniform`).
    const SURE: f32 = 0.9;
}

impl Strategy for TokenMerge {
    const NAME: &'static str = "dmax";
    const LAYOUT: Layout = Layout::BlockCausal;
    const SETTINGS: &'static [&'static Setting] =
        &[&ADD_BLOCK_THRESHOLD, &TOKEN_MERGE_MODE, &TOKEN_MERGE_TOP_K, &TOKEN_MERGE_WEIGHT, &TOKEN_MERGE_RENORMALIZE];
    const HAS_BUFFER: bool = true;

    fn fits(model: &ModelTraits) -> bool {
        MultiBlock::fits(model) && model.may_edit
    }

    fn new(model: &ModelTraits) -> Self {
        let accept = AcceptRule::LeftmostPrefix(LeftmostPrefix { accept_threshold: Self::ACCEPT_THRESHOLD });
        Self { blocks: MultiBlock::accepting(model, accept), merge: Merge::default() }
    }

    fn requirements(&self) -> Requirements {
        let blocks = self.blocks.requirements();
        Requirements { n_likeliest: blocks.n_likeliest.max(self.merge.top_k), writes_drafts: true, ..blocks }
    }

    fn set(&mut self, overrides: &mut Overrides<'_>) -> Result<(), SettingError> {
        self.blocks.set(overrides)?;
        self.merge.set(overrides)
    }

    fn opens_block(&self, n_live: usize, newest: Option<BlockProgress>, context_is_cached: bool) -> bool {
        self.blocks.opens_block(n_live, newest, context_is_cached)
    }

    fn step(&self, block: &BlockView<'_>) -> Proposal {
        let config = self.blocks.config();
        let (masked, drafts): (Vec<Candidate>, Vec<Candidate>) =
            block.candidates.iter().cloned().partition(|candidate| candidate.current.is_none());
        let accepted = config.accept.accept(&BlockView { candidates: &masked, ..*block });
        let is_full = accepted.len() == masked.len();
        let is_sure = block.candidates.iter().all(|candidate| candidate.likeliest.1 >= Self::SURE);
        let is_unchanged = accepted.is_empty() && drafts.iter().all(|draft| draft.current == Some(draft.token));
        let is_last = block.step + 1 >= config.block_size;
        let edits = accepted.into_iter().chain(drafts).map(|candidate| {
            let Candidate { row, token, confidence, .. } = candidate;
            Edit::Draft { row, token, confidence, input: Input::Blend(self.merge.blend(&candidate)) }
        });
        Proposal { edits: edits.collect(), settles: is_full && (is_sure || is_unchanged || is_last) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::multi_block::MultiBlockConfig;

    /// The proposal after `steps`, for rows of `(draft or None, predicted token, its confidence)`.
    fn step(rows: &[(Option<u32>, u32, f32)], steps: usize) -> Proposal {
        let candidates = Candidate::plain_block(rows);
        let n_filled = rows.iter().filter(|(current, ..)| current.is_some()).count();
        let blocks = MultiBlock::of(MultiBlockConfig {
            block_size: rows.len(),
            buffer_size: 1,
            add_block_threshold: 1.0,
            accept: AcceptRule::LeftmostPrefix(LeftmostPrefix { accept_threshold: 0.5 }),
            fuse_prefill: false,
        });
        TokenMerge { blocks, merge: Merge::default() }.step(&BlockView {
            step: steps,
            ..BlockView::first(BlockProgress { n_filled, n_drafts: n_filled, block_size: rows.len() }, &candidates)
        })
    }

    fn draft(row: usize, token: u32, share: f32) -> Edit {
        let mut tokens = [(0, 0.0); MAX_TOP_K + 1];
        tokens[0] = (token, share);
        let blend = TokenBlend { tokens, mask: 1.0 - share, keeps_length: true };
        Edit::Draft { row, token, confidence: share, input: Input::Blend(blend) }
    }

    #[test]
    fn the_likeliest_tokens_take_part_by_their_probabilities() {
        let mut candidate = Candidate::plain(0, None, 5, 0.5);
        candidate.runners_up = vec![(6, 0.25), (7, 0.125)];
        candidate.token = 9;
        let blend = |mode, top_k| Merge { mode, top_k, weight: 2.0, ..Merge::default() }.blend(&candidate);
        let two = blend(MergeMode::DmaxTopk, 2);
        assert_eq!((&two.tokens[..3], two.mask, two.keeps_length), (&[(5, 0.5), (6, 0.25), (0, 0.0)][..], 0.25, true));
        assert_eq!(blend(MergeMode::DmaxTopk, 8).mask, 0.125);
        let smooth = blend(MergeMode::IterSmoothTopk, 2);
        assert_eq!(smooth.tokens[..4], [(9, 1.0), (5, 1.0), (6, 0.5), (0, 0.0)]);
        assert_eq!((smooth.mask, smooth.keeps_length), (0.0, false));
    }

    #[test]
    fn masks_are_filled_from_the_left_and_tokens_are_rewritten() {
        let proposal = step(&[(Some(5), 6, 0.3), (None, 7, 0.8), (None, 8, 0.4), (None, 9, 0.9)], 0);
        assert_eq!(proposal.edits, [draft(1, 7, 0.8), draft(0, 6, 0.3)]);
        assert!(!proposal.settles);
    }

    #[test]
    fn a_block_stays_when_it_is_sure_or_unchanged_or_out_of_steps() {
        let sure = [(Some(5), 6, 0.9), (None, 7, 0.95), (None, 8, 0.9)];
        assert!(step(&sure, 0).settles, "filled and sure in one step");
        let doubt = [(Some(5), 5, 0.6), (Some(7), 7, 0.6), (Some(8), 8, 0.6)];
        assert!(step(&doubt, 0).settles, "unchanged");
        let other = [(Some(5), 5, 0.6), (Some(7), 9, 0.6), (Some(8), 8, 0.6)];
        assert!(!step(&other, 1).settles);
        assert!(step(&other, 2).settles, "the last step");
        let open = [(Some(5), 5, 0.95), (None, 7, 0.4), (None, 8, 0.95)];
        assert!(!step(&open, 9).settles, "a mask is left");
    }
}
