//! The list of strategies, and the enums over them.
//!
//! A strategy is a struct that implements [`Strategy`] in its own file, and one line of `strategies!`.

use crate::accept::{AcceptRule, LeftmostPrefix};
use crate::block_edit::BlockEdit;
use crate::canvas_renoise::CanvasRenoise;
use crate::contract::edit::{Edit, Proposal};
use crate::contract::layout::{KvReuse, Layout};
use crate::contract::setting::{Overrides, Setting, SettingError, Value};
use crate::contract::view::{BlockProgress, BlockView, Candidate, StepRows};
use crate::d2f::D2f;
use crate::diffusion_generate::DiffusionGenerate;
use crate::fast_dllm_v2::FastDllmV2;
use crate::multi_block::{MultiBlock, MultiBlockConfig};
use crate::saber::Saber;
use crate::semi_autoregressive::SemiAutoregressive;
use crate::strategy::{ModelTraits, Requirements, Strategy};
use crate::token_merge::TokenMerge;

macro_rules! strategies {
    ($($strategy:ident),+ $(,)?) => {
        /// A strategy without settings.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum StrategyKind {
            $(#[doc = concat!("See [`", stringify!($strategy), "`].")] $strategy,)+
        }

        impl StrategyKind {
            /// All strategies, specific before general.
            pub const ALL: &'static [Self] = &[$(Self::$strategy),+];

            /// Its name, as operators write it.
            pub fn name(self) -> &'static str {
                match self { $(Self::$strategy => $strategy::NAME),+ }
            }

            /// See [`Strategy::LAYOUT`].
            pub fn layout(self) -> Layout {
                match self { $(Self::$strategy => $strategy::LAYOUT),+ }
            }

            /// See [`Strategy::SETTINGS`].
            pub fn settings(self) -> &'static [&'static Setting] {
                match self { $(Self::$strategy => $strategy::SETTINGS),+ }
            }

            /// See [`Strategy::HAS_BUFFER`].
            pub fn has_buffer(self) -> bool {
                match self { $(Self::$strategy => $strategy::HAS_BUFFER),+ }
            }

            /// See [`Strategy::fits`].
            pub fn fits(self, model: &ModelTraits) -> bool {
                match self { $(Self::$strategy => $strategy::fits(model)),+ }
            }

            /// See [`Strategy::new`].
            pub fn make(self, model: &ModelTraits) -> AnyStrategy {
                match self { $(Self::$strategy => AnyStrategy::$strategy($strategy::new(model))),+ }
            }
        }

        /// A strategy with its settings.
        #[derive(Clone, Debug, PartialEq)]
        pub enum AnyStrategy {
            $(#[doc = concat!("See [`", stringify!($strategy), "`].")] $strategy($strategy),)+
        }

        impl AnyStrategy {
            /// Returns the kind.
            pub fn kind(&self) -> StrategyKind {
                match self { $(Self::$strategy(_) => StrategyKind::$strategy),+ }
            }

            /// See [`Strategy::requirements`].
            pub fn requirements(&self) -> Requirements {
                match self { $(Self::$strategy(strategy) => strategy.requirements()),+ }
            }

            fn set(&mut self, overrides: &mut Overrides<'_>) -> Result<(), SettingError> {
                match self { $(Self::$strategy(strategy) => strategy.set(overrides)),+ }
            }

            /// See [`Strategy::step`].
            pub fn step(&self, block: &BlockView<'_>) -> Proposal {
                match self { $(Self::$strategy(strategy) => strategy.step(block)),+ }
            }

            /// See [`Strategy::opens_block`].
            pub fn opens_block(&self, n_live: usize, newest: Option<BlockProgress>, context_is_cached: bool) -> bool {
                match self { $(Self::$strategy(strategy) => strategy.opens_block(n_live, newest, context_is_cached)),+ }
            }

            /// See [`Strategy::step_rows`].
            pub fn step_rows(&self, masked: &[bool], is_written: bool) -> StepRows {
                match self { $(Self::$strategy(strategy) => strategy.step_rows(masked, is_written)),+ }
            }

            /// See [`Strategy::temperature`].
            pub fn temperature(&self, step: usize) -> f32 {
                match self { $(Self::$strategy(strategy) => strategy.temperature(step)),+ }
            }
        }
    };
}

strategies! {
    MultiBlock,
    BlockEdit,
    TokenMerge,
    DiffusionGenerate,
    SemiAutoregressive,
    D2f,
    CanvasRenoise,
    FastDllmV2,
    Saber,
}

impl StrategyKind {
    /// Returns the strategy named `name`.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.name() == name)
    }
}

impl AnyStrategy {
    /// Its name, as operators write it.
    pub fn name(&self) -> &'static str {
        self.kind().name()
    }

    /// Returns the strategy with the given settings. The error names the first setting that is unknown, does not apply or is
    /// out of range.
    pub fn with<'a>(&self, values: impl IntoIterator<Item = (&'a str, Value<'a>)>) -> Result<Self, SettingError> {
        let values: Vec<_> = values.into_iter().collect();
        check_settings(values.iter().copied())?;
        let mut overrides = Overrides::new(values);
        let mut strategy = self.clone();
        strategy.set(&mut overrides)?;
        match overrides.first_left() {
            None => Ok(strategy),
            Some(name) => {
                let what = format!("does not apply to {}, which decodes this model", self.name());
                Err(SettingError::refused(name, what))
            }
        }
    }

    /// Returns a strategy with the same layout that unmasks one position per step, the leftmost, and reuses no stale KV. `None`
    /// if the layout has no masks or if the prompt is one block.
    pub fn left_to_right(&self) -> Option<Self> {
        let requirements = self.requirements();
        // No confidence reaches the threshold, so the rule writes only the first mask.
        let accept = AcceptRule::LeftmostPrefix(LeftmostPrefix { accept_threshold: f32::INFINITY });
        match requirements.layout {
            Layout::BlockCausal => Some(Self::MultiBlock(MultiBlock::of(MultiBlockConfig {
                block_size: requirements.block_size,
                buffer_size: 2,
                add_block_threshold: 1.0,
                accept,
                fuse_prefill: true,
            }))),
            // Blocks do not affect attention in this layout. With one position per block, each step scores one row.
            Layout::WholeAnswer => Some(Self::SemiAutoregressive(SemiAutoregressive {
                block_size: 1,
                accept,
                kv_reuse: KvReuse::None,
                is_shifted: false,
                cfg_scale: 0.0,
            })),
            Layout::PromptFirst | Layout::Canvases => None,
        }
    }

    /// Writes one candidate whatever the rules say, for a watchdog that finds no progress.
    pub fn force(&self, candidate: &Candidate) -> Proposal {
        let edit = if self.requirements().writes_drafts { Edit::draft(candidate) } else { Edit::fill(candidate) };
        Proposal { edits: vec![edit], settles: false }
    }
}

/// The settings of all strategies and accept rules. One that several of them read comes up once for each.
fn all_settings() -> impl Iterator<Item = &'static Setting> {
    let own = StrategyKind::ALL.iter().flat_map(|kind| kind.settings());
    AcceptRule::all_settings().chain(own.copied())
}

/// The settings of all strategies and accept rules, each once.
pub fn settings() -> Vec<&'static Setting> {
    let mut settings = Vec::new();
    for setting in all_settings() {
        if !settings.contains(&setting) {
            settings.push(setting);
        }
    }
    settings
}

/// Names of the strategies that have `setting`; none for a setting of accept rules.
pub fn strategies_with(setting: &Setting) -> Vec<&'static str> {
    let kinds = StrategyKind::ALL.iter().filter(|kind| kind.settings().contains(&setting));
    kinds.map(|kind| kind.name()).collect()
}

/// Refuses unknown names, and values out of range as far as this can be decided without a model.
pub fn check_settings<'a>(values: impl IntoIterator<Item = (&'a str, Value<'a>)>) -> Result<(), SettingError> {
    values.into_iter().try_for_each(|(name, value)| match all_settings().find(|setting| setting.name == name) {
        Some(setting) => setting.check(value),
        None => Err(SettingError::unknown(name)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::layout::AttentionKind;
    use crate::contract::setting::Values;

    const PAGE: &str = include_str!("../../docs/strategies.md");

    /// A model that some strategy decodes.
    fn models() -> impl Iterator<Item = ModelTraits> {
        let attentions = [AttentionKind::BlockCausal, AttentionKind::Full, AttentionKind::Canvas];
        attentions.into_iter().flat_map(|attention| [false, true].map(move |is_shifted| (attention, is_shifted))).map(
            |(attention, is_shifted)| ModelTraits {
                attention,
                is_shifted,
                may_edit: true,
                may_have_d2f: true,
                block_size: 8,
                buffer_size: None,
                max_model_len: 64,
                accept_threshold: None,
            },
        )
    }

    fn made(kind: StrategyKind) -> AnyStrategy {
        let model = models().find(|model| kind.fits(model));
        kind.make(&model.unwrap_or_else(|| panic!("{} fits no model", kind.name())))
    }

    /// A value in range.
    fn good(setting: &Setting) -> Value<'static> {
        match setting.values {
            Values::Number { least, is_open, .. } => {
                Value::Number(f64::from(if is_open { least + 1.0 } else { least }))
            }
            Values::Count { least, .. } => Value::Integer(i64::from(least)),
            Values::Choice(names) => Value::Text(names[0]),
            Values::Flag => Value::Flag(true),
        }
    }

    #[test]
    fn a_strategy_takes_its_own_settings_and_refuses_those_of_others_by_name() {
        for kind in StrategyKind::ALL.iter().copied() {
            for setting in StrategyKind::ALL.iter().flat_map(|kind| kind.settings()) {
                let error = made(kind).with([(setting.name, good(setting))]).err();
                assert!(error.as_ref().is_none_or(|error| error.name == setting.name), "{error:?}");
                let is_foreign = error.is_some_and(|error| error.what.contains("which decodes this model"));
                // Canvases know one edit rule by name.
                let is_own = kind.settings().contains(setting)
                    || kind == StrategyKind::CanvasRenoise && setting.name == "edit_rule";
                assert_eq!(is_foreign, !is_own, "{} of {}", setting.name, kind.name());
            }
        }
    }

    #[test]
    fn an_unknown_setting_is_refused_by_name() {
        for values in [vec![("nobody", Value::Integer(1))], vec![("nobody", Value::Text("x"))]] {
            let error = made(StrategyKind::MultiBlock).with(values.clone()).expect_err("refused");
            assert_eq!((error.name.as_str(), error.is_malformed), ("nobody", true));
            assert_eq!(check_settings(values), Err(error));
        }
    }

    #[test]
    fn another_rule_keeps_what_it_has_in_common_and_refuses_the_rest() {
        let base = made(StrategyKind::MultiBlock).with([("accept_threshold", Value::Number(0.5))]).expect("taken");
        let dynamic = base.with([("accept_rule", Value::Text("dynamic")), ("denoising_steps", Value::Integer(2))]);
        let rule = dynamic.expect("taken").requirements().accept.expect("a rule");
        assert_eq!((rule.name(), rule.accept_threshold(), rule.denoising_steps()), ("dynamic", Some(0.5), Some(2)));
        for (name, value, what) in [
            ("factor", Value::Integer(1), "does not apply to the accept rule threshold"),
            ("denoising_steps", Value::Integer(9), "must be in 1..=8, the block size; got 9"),
            ("accept_threshold", Value::Integer(2), "must be in [0, 1], got 2"),
        ] {
            let error = base.with([(name, value)]).expect_err(what);
            assert_eq!((error.name.as_str(), error.what.as_str()), (name, what));
        }
    }

    #[test]
    fn the_first_that_fits_is_the_authors() {
        let firsts: Vec<&str> = models()
            .filter_map(|model| StrategyKind::ALL.iter().find(|kind| kind.fits(&model)))
            .map(|kind| kind.name())
            .collect();
        let want = ["multi_bd", "fast_dllm_v2", "semi_ar", "diffusion_generate", "diffusion_gemma", "diffusion_gemma"];
        assert_eq!(firsts, want);
    }

    #[test]
    fn names_are_told_apart_and_the_page_has_them_all() {
        let settings = settings();
        let mut names: Vec<&str> = settings.iter().map(|setting| setting.name).collect();
        names.extend(StrategyKind::ALL.iter().map(|kind| kind.name()));
        names.extend(AcceptRule::NAMES);
        for name in &names {
            assert!(PAGE.contains(&format!("`{name}`")), "docs/strategies.md has no {name}");
        }
        let mut settings: Vec<&str> = settings.iter().map(|setting| setting.name).collect();
        settings.sort_unstable();
        assert!(settings.windows(2).all(|pair| pair[0] != pair[1]), "{settings:?}");
    }
}
