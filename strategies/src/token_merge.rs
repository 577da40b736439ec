//! `dmax`: block diffusion whose tokens harden step by step (DMax).
//!
//! Blocks open and are committed as in `multi_bd`. At each step the accept rule fills masks from the left, and every token
//! that is there already is replaced by what the network now writes. In the next step the network reads, in place of each,
//! something between the likeliest token and the mask, by how likely that is. A block stays when all of it is sure, when a
//! step changed nothing, or after as many steps as it has positions (czg1225/DMax, `decode_uniform` in dInfer's
//! generate_uniform.py and parallel_strategy.py). What is committed are the tokens themselves, as theirs are.

use serde::Serialize;

use crate::edit::{Edit, Input, Proposal};
use crate::multi_block::MultiBlock;
use crate::view::{BlockView, Candidate};

/// The strategy; all its state is the block's own.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(transparent)]
pub struct TokenMerge {
    /// How blocks open, and which masks are filled.
    pub blocks: MultiBlock,
}

impl TokenMerge {
    /// Diffulex's configuration for DMax (`accept_threshold`).
    pub const ACCEPT_THRESHOLD: f32 = 0.5;
    /// All of a block is sure when the likeliest token of each of its positions is at least that likely (`decode_uniform`).
    const SURE: f32 = 0.9;

    /// What to do with one block now.
    pub fn step(&self, block: &BlockView<'_>) -> Proposal {
        let config = self.blocks.config();
        let (masked, drafts): (Vec<Candidate>, Vec<Candidate>) =
            block.candidates.iter().partition(|candidate| candidate.current.is_none());
        let accepted = config.accept.accept(&BlockView { candidates: &masked, ..*block });
        let is_full = accepted.len() == masked.len();
        let is_sure = block.candidates.iter().all(|candidate| candidate.likeliest.1 >= Self::SURE);
        let is_unchanged = accepted.is_empty() && drafts.iter().all(|draft| draft.current == Some(draft.token));
        let is_last = block.step + 1 >= config.block_size;
        let edits = accepted.into_iter().chain(drafts).map(|candidate| {
            let Candidate { row, token, confidence, likeliest: (likeliest, share), .. } = candidate;
            Edit::Draft { row, token, confidence, input: Input::Blend { token: likeliest, share } }
        });
        Proposal { edits: edits.collect(), settles: is_full && (is_sure || is_unchanged || is_last) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accept::AcceptRule;
    use crate::multi_block::MultiBlockConfig;
    use crate::view::Progress;

    /// `(token that stands there, token the network would write, its confidence)` of each row, after `steps`.
    fn step(rows: &[(Option<u32>, u32, f32)], steps: usize) -> Proposal {
        let candidates: Vec<Candidate> = rows
            .iter()
            .enumerate()
            .map(|(row, (current, token, confidence))| Candidate::plain(row, *current, *token, *confidence))
            .collect();
        let n_filled = rows.iter().filter(|(current, ..)| current.is_some()).count();
        let blocks = MultiBlock::new(MultiBlockConfig {
            block_size: rows.len(),
            buffer_size: 1,
            add_block_threshold: 1.0,
            accept: AcceptRule::LeftmostPrefix { accept_threshold: 0.5 },
            fuse_prefill: false,
        });
        TokenMerge { blocks }.step(&BlockView {
            progress: Progress { n_filled, n_drafts: n_filled, block_size: rows.len() },
            previous: None,
            step: steps,
            full_steps: 0,
            unchanged_steps: 0,
            candidates: &candidates,
        })
    }

    fn draft(row: usize, token: u32, share: f32) -> Edit {
        Edit::Draft { row, token, confidence: share, input: Input::Blend { token, share } }
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
