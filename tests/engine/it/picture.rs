//! Denoise pictures of the block machinery with a toy network: one line a step, `_` masked, `|` block edges.
//!
//! The toy network writes position `p` as token `p` and is as sure as a table says. The pictures are the corrected
//! semantics of multi-block decoding: exact limits, commits confirmed by forwards, an end as soon as nothing can change.

use std::collections::BTreeMap;

use diffulex_engine::models::LogitAlignment;
use diffulex_engine::sequence::{BlockStatus, ForwardKind, Limits, PositionState, Sequence};
use diffulex_protocol::{FinishReason, SamplingParams};
use diffulex_strategies::{
    AcceptRule, AnyStrategy, BlockCandidates, BlockEdit, Candidate, CanvasRenoise, D2f, EditRule, EntropyBound,
    FastDllmV2, GatedThreshold, MultiBlock, MultiBlockConfig, Threshold,
};

const MASK: u32 = 500;
const EOS: u32 = 501;
/// How positions are drawn.
const LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

struct Toy {
    prompt_len: usize,
    max_tokens: usize,
    config: MultiBlockConfig,
    make: fn(MultiBlockConfig) -> AnyStrategy,
    /// Confidence by position, and what holds for all others.
    confidence: BTreeMap<usize, f32>,
    otherwise: f32,
    eos: Vec<usize>,
    /// Tokens written instead of the position's own, during the first steps of its block.
    at_first: BTreeMap<usize, (u32, usize)>,
    params: SamplingParams,
}

impl Toy {
    fn new(prompt_len: usize, buffer_size: usize, max_tokens: usize) -> Self {
        Self {
            prompt_len,
            max_tokens,
            config: MultiBlockConfig {
                block_size: 4,
                buffer_size,
                add_block_threshold: 0.1,
                accept: AcceptRule::GatedThreshold(GatedThreshold {
                    accept_threshold: 0.9,
                    semi_complete_threshold: 0.9,
                }),
                fuse_prefill: false,
            },
            make: |config| AnyStrategy::MultiBlock(MultiBlock::of(config)),
            confidence: BTreeMap::new(),
            otherwise: 0.99,
            eos: Vec::new(),
            at_first: BTreeMap::new(),
            params: SamplingParams::default(),
        }
    }

    /// Runs to the end. The picture shows the answer's opened blocks after each step; `nfe` is what was charged.
    fn run(&self) -> (Vec<String>, Sequence, FinishReason) {
        let (picture, sequence, reason, _) = self.run_counting();
        (picture, sequence, reason)
    }

    /// As [`Self::run`], with the number of forced tokens.
    fn run_counting(&self) -> (Vec<String>, Sequence, FinishReason, usize) {
        let prompt: Vec<u32> = (0..self.prompt_len as u32).collect();
        let limits = Limits { end: self.prompt_len + self.max_tokens, reason: FinishReason::MaxNewTokensReached };
        let strategy = (self.make)(self.config.clone());
        let alignment = LogitAlignment::Same;
        let mut sequence = Sequence::new(&prompt, limits, MASK, &[EOS], self.params.clone(), strategy, alignment);
        let mut picture = Vec::new();
        let mut n_forced = 0;
        loop {
            let blocks = sequence.step_blocks();
            let candidates: Vec<BlockCandidates> = blocks
                .clone()
                .filter(|block| sequence.blocks()[*block].status == BlockStatus::Active)
                .map(|block| BlockCandidates {
                    block,
                    candidates: sequence
                        .block(block)
                        .undecided()
                        .into_iter()
                        .map(|position| {
                            let token = match self.at_first.get(&position) {
                                Some((token, n_steps)) if sequence.blocks()[block].steps < *n_steps => *token,
                                _ if self.eos.contains(&position) => EOS,
                                _ => position as u32,
                            };
                            let confidence = *self.confidence.get(&position).unwrap_or(&self.otherwise);
                            Candidate {
                                row: position - sequence.geometry().block_range(block).start,
                                current: sequence.answer().draft(position),
                                token,
                                confidence,
                                likeliest: (token, confidence),
                                runners_up: Default::default(),
                                // As an entropy would be: 0 for what is certain.
                                score: confidence - 1.0,
                                chance: 0.0,
                            }
                        })
                        .collect(),
                })
                .collect();
            let change = sequence.advance(blocks, &candidates).unwrap();
            picture.push(draw(&sequence, change.kind));
            n_forced += usize::from(change.was_forced);
            if let Some(reason) = sequence.finished() {
                return (picture, sequence, reason, n_forced);
            }
            assert!(picture.len() < 200, "{picture:#?}");
        }
    }
}

fn draw(sequence: &Sequence, kind: ForwardKind) -> String {
    let mut line = match kind {
        ForwardKind::Denoise => "d ",
        ForwardKind::Score => "s ",
        ForwardKind::Rebuild => "r ",
        ForwardKind::Prefill => "p ",
        ForwardKind::Commit => "c ",
    }
    .to_owned();
    for block in sequence.geometry().n_prompt_blocks()..sequence.blocks().len() {
        line.push('|');
        for position in sequence.geometry().block_range(block) {
            line.push(match sequence.answer().states()[position] {
                PositionState::Prompt => '.',
                PositionState::Masked => '_',
                PositionState::Filled | PositionState::Draft if sequence.answer().tokens()[position] == EOS => '$',
                PositionState::Filled | PositionState::Draft => {
                    char::from(LETTERS[sequence.answer().tokens()[position] as usize % LETTERS.len()])
                }
            });
        }
    }
    line.push('|');
    line
}

#[test]
fn one_block_at_a_time_spends_a_forward_on_each_commit() {
    let (picture, sequence, reason) = Toy::new(6, 1, 8).run();
    assert_eq!(picture, ["d |..gh|", "c |..gh|", "d |..gh|ijkl|", "c |..gh|ijkl|", "d |..gh|ijkl|mnop|"]);
    assert_eq!((sequence.decoding().nfe().charged(), reason), (5, FinishReason::MaxNewTokensReached));
}

#[test]
fn with_two_blocks_commits_ride_along() {
    let mut toy = Toy::new(6, 2, 8);
    toy.config.add_block_threshold = 1.0;
    let (picture, sequence, _) = toy.run();
    assert_eq!(picture, ["d |..gh|", "d |..gh|ijkl|", "d |..gh|ijkl|mnop|"]);
    assert_eq!(sequence.decoding().nfe().charged(), 3);
}

#[test]
fn an_end_token_ends_the_answer_when_all_before_it_is_filled() {
    let mut toy = Toy::new(8, 2, 64);
    toy.eos = vec![10];
    toy.otherwise = 0.3;
    toy.confidence = [(10, 0.99)].into();
    let (picture, sequence, reason) = toy.run();
    assert_eq!(picture, ["p |", "d |__$_|", "d |i_$_|", "d |ij$_|"]);
    assert_eq!((sequence.decoding().nfe().charged(), reason), (4, FinishReason::EosTokenGenerated));
    assert_eq!(sequence.answer().tokens()[8..sequence.answer().final_end()], [8, 9]);
}

#[test]
fn an_end_token_in_a_later_block_closes_the_window_behind_it() {
    let mut toy = Toy::new(8, 3, 64);
    toy.eos = (12..40).collect();
    toy.otherwise = 0.99;
    toy.confidence = (8..12).map(|position| (position, 0.3)).collect();
    let (picture, sequence, _) = toy.run();
    assert_eq!(
        picture,
        ["p |", "d |i___|", "d |ij__|$$$$|", "d |ijk_|$$$$|", "d |ijkl|$$$$|"],
        "no block opens behind the end"
    );
    assert_eq!(sequence.decoding().nfe().charged(), 5);
    assert_eq!(sequence.answer().final_end(), 12);
}

#[test]
fn a_limit_inside_a_block_is_exact() {
    let (picture, sequence, _) = Toy::new(6, 1, 3).run();
    assert_eq!(picture, ["d |..gh|", "c |..gh|", "d |..gh|ijkl|"]);
    assert_eq!((sequence.answer().final_end() - 6, sequence.decoding().nfe().charged()), (3, 3));
}

#[test]
fn an_unsure_network_gets_all_its_steps() {
    let mut toy = Toy::new(8, 1, 64);
    toy.otherwise = 0.2;
    let (_, sequence, _) = toy.run();
    assert_eq!(sequence.decoding().nfe().charged(), 1 + 16 * 4 + 15);
    assert_eq!(sequence.answer().final_end(), 72);
}

#[test]
fn a_prompt_may_be_fused_with_the_first_block() {
    let mut toy = Toy::new(8, 1, 4);
    toy.config.fuse_prefill = true;
    let (picture, sequence, _) = toy.run();
    assert_eq!(picture, ["d |ijkl|"]);
    assert_eq!(sequence.decoding().nfe().charged(), 1);
}

#[test]
fn blocks_behind_a_prompt_that_is_one_block_begin_where_it_ends() {
    let mut toy = Toy::new(6, 4, 8);
    toy.make = |config| {
        let pipeline = MultiBlock::of(MultiBlockConfig { fuse_prefill: true, ..config });
        AnyStrategy::D2f(D2f { pipeline })
    };
    toy.config.add_block_threshold = 0.5;
    toy.config.accept =
        AcceptRule::GatedThreshold(GatedThreshold { accept_threshold: 0.9, semi_complete_threshold: 0.75 });
    toy.otherwise = 0.3;
    let (picture, sequence, _) = toy.run();
    assert_eq!(
        picture,
        [
            // The prompt is encoded along.
            "d |g___|",
            "d |gh__|",
            "d |ghi_|____|",
            "d |ghij|k___|",
            "d |ghij|kl__|",
            "d |ghij|klm_|",
            "d |ghij|klmn|",
        ]
    );
    assert_eq!((sequence.answer().final_end(), sequence.decoding().nfe().charged()), (14, 7));
}

#[test]
fn a_commit_brings_the_first_token_of_the_next_block() {
    let mut toy = Toy::new(6, 1, 8);
    toy.make = |MultiBlockConfig { block_size, .. }| {
        let accept = AcceptRule::Threshold(Threshold { accept_threshold: 0.9 });
        AnyStrategy::FastDllmV2(FastDllmV2 { block_size, sub_block_size: 2, block_cache: false, accept })
    };
    let (picture, sequence, _) = toy.run();
    assert_eq!(
        picture,
        [
            // The prompt's whole block is not encoded along with its tail.
            "p |..__|",
            "d |..gh|",
            "c |..gh|i___|",
            "d |..gh|ij__|",
            "d |..gh|ijkl|",
            "c |..gh|ijkl|m___|",
            "d |..gh|ijkl|mn__|",
        ]
    );
    assert_eq!((sequence.answer().final_end(), sequence.decoding().nfe().charged()), (14, 7));
    // An aligned prompt brings one, too.
    toy.prompt_len = 8;
    assert_eq!(toy.run().0[..2], ["p |i___|", "d |ij__|"]);
}

#[test]
fn several_blocks_in_flight_follow_the_thresholds() {
    let mut toy = Toy::new(8, 3, 64);
    toy.config.add_block_threshold = 0.25;
    toy.config.accept =
        AcceptRule::GatedThreshold(GatedThreshold { accept_threshold: 0.9, semi_complete_threshold: 0.75 });
    let sure = [(8, 0.95), (9, 0.3), (10, 0.2), (11, 0.1), (12, 0.95), (13, 0.95), (14, 0.4), (15, 0.3)];
    toy.confidence = sure.into_iter().chain((16..20).map(|position| (position, 0.2))).collect();
    let (picture, ..) = toy.run();
    assert_eq!(
        picture[..9],
        [
            "p |",
            "d |i___|",
            "d |ij__|mn__|",
            "d |ijk_|mn__|____|",
            "d |ijkl|mno_|____|",
            // Block 2 is committed while 3 and 4 are denoised.
            "d |ijkl|mnop|q___|",
            "d |ijkl|mnop|qr__|uvwx|",
            "d |ijkl|mnop|qrs_|uvwx|yzAB|",
            "d |ijkl|mnop|qrst|uvwx|yzAB|",
        ]
    );
}

#[test]
fn a_run_of_masks_is_no_repetition() {
    let mut toy = Toy::new(8, 1, 8);
    toy.otherwise = 0.2;
    toy.params.max_repetition_run = Some(3);
    let (_, sequence, reason) = toy.run();
    assert_eq!((sequence.answer().final_end(), reason), (16, FinishReason::MaxNewTokensReached));
}

#[test]
fn a_shut_gate_is_forced_open_rather_than_waited_at() {
    // A gate that never opens: the block before counts as semi-complete only above 1.
    let mut toy = Toy::new(8, 2, 8);
    toy.otherwise = 0.1;
    toy.config.accept =
        AcceptRule::GatedThreshold(GatedThreshold { accept_threshold: 0.9, semi_complete_threshold: 1.5 });
    let (_, sequence, _, n_forced) = toy.run_counting();
    assert_eq!(sequence.answer().final_end(), 16);
    assert!(n_forced > 0);
}

fn edited(config: MultiBlockConfig, max_post_edit_steps: usize) -> AnyStrategy {
    let edit = EditRule::Joint { edit_threshold: 0.5, max_post_edit_steps, penalty_lambda: 0.0 };
    AnyStrategy::BlockEdit(BlockEdit { blocks: MultiBlock::of(config), edit })
}

/// A toy whose blocks open when the one before is settled.
fn editing(prompt_len: usize, buffer_size: usize, max_tokens: usize) -> Toy {
    let mut toy = Toy::new(prompt_len, buffer_size, max_tokens);
    toy.config.add_block_threshold = 1.0;
    toy.make = |config| edited(config, 3);
    toy
}

#[test]
fn a_block_is_edited_until_a_forward_changes_nothing() {
    let mut toy = editing(8, 2, 8);
    toy.at_first = [(9, (35, 1)), (10, (36, 2))].into();
    let (picture, sequence, _) = toy.run();
    assert_eq!(picture, ["p |", "d |iJKl|", "d |ijKl|", "d |ijkl|", "d |ijkl|", "d |ijkl|mnop|", "d |ijkl|mnop|"]);
    assert_eq!(sequence.answer().tokens()[8..], (8..16).collect::<Vec<u32>>());
}

#[test]
fn a_forward_that_changed_nothing_was_the_commit() {
    let (picture, sequence, _) = editing(8, 1, 8).run();
    assert_eq!(picture, ["p |", "d |ijkl|", "d |ijkl|", "d |ijkl|mnop|", "d |ijkl|mnop|"]);
    assert_eq!(sequence.decoding().nfe().commit, 0);
    // A last edit has to be written.
    let mut toy = editing(8, 1, 8);
    toy.at_first = [(9, (35, 3))].into();
    assert_eq!(toy.run().0, ["p |", "d |iJkl|", "d |iJkl|", "d |iJkl|mnop|", "d |iJkl|mnop|"]);
    toy.make = |config| edited(config, 1);
    toy.at_first = [(9, (35, 1))].into();
    let (picture, sequence, _) = toy.run();
    assert_eq!(picture, ["p |", "d |iJkl|", "d |ijkl|", "c |ijkl|", "d |ijkl|mnop|", "d |ijkl|mnop|"]);
    assert_eq!(sequence.decoding().nfe().commit, 1);
}

#[test]
fn nothing_is_final_before_its_block_settles() {
    let mut toy = editing(8, 2, 12);
    // An end token that is edited away ends nothing; one that stays ends the answer when its block settles.
    toy.at_first = [(9, (EOS, 1))].into();
    toy.eos = vec![14];
    let (picture, sequence, reason) = toy.run();
    assert_eq!(picture, ["p |", "d |i$kl|", "d |ijkl|", "d |ijkl|", "d |ijkl|mn$p|", "d |ijkl|mn$p|"]);
    assert_eq!((sequence.answer().final_end(), reason), (14, FinishReason::EosTokenGenerated));
    let mut cut = editing(8, 2, 12);
    cut.params.max_nfe = Some(1);
    let (picture, sequence, reason) = cut.run();
    assert_eq!(
        (picture[1].as_str(), sequence.answer().final_end(), reason),
        ("d |ijkl|", 8, FinishReason::MaxNfeReached)
    );
}

#[test]
fn a_block_opened_early_waits_for_the_one_before() {
    let mut toy = editing(8, 2, 8);
    toy.config.add_block_threshold = 0.5;
    toy.at_first = [(9, (35, 1)), (10, (36, 2))].into();
    let (picture, ..) = toy.run();
    assert_eq!(picture, ["p |", "d |iJKl|", "d |ijKl|mnop|", "d |ijkl|mnop|", "d |ijkl|mnop|"]);
}

/// A toy that denoises canvases of 4, in 4 steps at most.
fn canvases(prompt_len: usize, max_tokens: usize) -> Toy {
    let mut toy = Toy::new(prompt_len, 2, max_tokens);
    toy.make = |config| {
        AnyStrategy::CanvasRenoise(CanvasRenoise {
            block_size: config.block_size,
            accept: EntropyBound { entropy_bound: 0.1 },
            denoising_steps: 4,
            t_min: 0.4,
            t_max: 0.8,
            stability_threshold: 1,
            confidence_threshold: 0.05,
        })
    };
    toy
}

#[test]
fn canvases_begin_where_the_prompt_ends_and_are_encoded_along() {
    let (picture, sequence, _) = canvases(6, 6).run();
    // Each stays the same once, and is encoded while the next is denoised; the limit is in the middle of the second.
    assert_eq!(picture, ["d |ghij|", "d |ghij|", "d |ghij|klmn|", "d |ghij|klmn|"]);
    assert_eq!((sequence.answer().final_end(), sequence.decoding().nfe().charged()), (12, 4));
}

#[test]
fn a_canvas_takes_another_step_when_it_changes_and_all_of_them_when_it_is_unsure() {
    let mut toy = canvases(8, 4);
    toy.at_first = [(9, (35, 1))].into();
    assert_eq!(toy.run().0, ["d |iJkl|", "d |ijkl|", "d |ijkl|"]);
    let mut unsure = canvases(8, 4);
    unsure.otherwise = 0.5;
    assert_eq!(unsure.run().0.len(), 4);
}

#[test]
fn nothing_of_a_canvas_is_final_before_it_is_decided() {
    let mut toy = canvases(6, 12);
    toy.eos = vec![8];
    let (picture, sequence, reason) = toy.run();
    assert_eq!(picture, ["d |gh$j|", "d |gh$j|"]);
    assert_eq!((sequence.answer().final_end(), reason), (8, FinishReason::EosTokenGenerated));
    toy.params.max_nfe = Some(1);
    let (_, sequence, reason) = toy.run();
    assert_eq!((sequence.answer().final_end(), reason), (6, FinishReason::MaxNfeReached));
}
