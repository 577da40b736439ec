//! Routing: the experts of a row and their weights. Small host arithmetic that all bodies share.
//!
//! A [`Routing`] describes one of three kinds: softmax with the chosen weights normalised to a sum of 1 (Qwen3-MoE, SDAR-MoE,
//! and DiffusionGemma with a factor per expert), softmax without that (LLaDA-MoE), and sigmoid with a bias for the choice, groups
//! and a scale (DeepSeek-V3, LLaDA2).
//!
//! Never here: the experts themselves.

/// Function from the router's logits to scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scoring {
    /// Softmax over all experts.
    Softmax,
    /// Sigmoid of each logit by itself.
    Sigmoid,
}

/// A bias per expert, and its effect.
#[derive(Clone, Debug, PartialEq)]
pub enum ExpertBias {
    /// No bias.
    Absent,
    /// Added to the scores for the choice; weights are the scores without it.
    Choice(Vec<f32>),
    /// Added to the scores for the choice and for the weights.
    ChoiceAndWeight(Vec<f32>),
}

/// Groups of experts; a row uses experts of its best groups only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertGroups {
    /// Number of groups of equal size; neighbours are in the same group.
    pub n_groups: usize,
    /// Number of groups kept, by the sum of their two best biased scores.
    pub n_kept: usize,
}

/// Routing rule of a layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Routing {
    /// Number of experts per row.
    pub n_chosen: usize,
    /// Score function.
    pub scoring: Scoring,
    /// Bias of each expert.
    pub bias: ExpertBias,
    /// Groups; `None`: all experts compete.
    pub groups: Option<ExpertGroups>,
    /// Whether a row's weights are normalised to a sum of 1.
    pub renormalise: bool,
    /// Factor on all weights, after normalisation.
    pub scale: f32,
    /// Factor on each expert's weight, after normalisation.
    pub expert_scale: Option<Vec<f32>>,
}

/// An expert chosen for a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// Index of the expert.
    pub expert: usize,
    /// Factor on its output.
    pub weight: f32,
}

/// Keeps a sum of weights from being zero (modeling_llada2_moe.py).
const TINY: f32 = 1e-20;

impl Routing {
    /// The experts of a row, ascending by expert. Ties go to the lower one.
    pub fn choose(&self, logits: &[f32]) -> Vec<Choice> {
        let scores: Vec<f32> = match self.scoring {
            Scoring::Softmax => {
                let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let weights: Vec<f32> = logits.iter().map(|logit| (logit - top).exp()).collect();
                let sum: f32 = weights.iter().sum();
                weights.iter().map(|weight| weight / sum).collect()
            }
            Scoring::Sigmoid => logits.iter().map(|logit| 1.0 / (1.0 + (-logit).exp())).collect(),
        };
        let biased = |bias: &[f32]| -> Vec<f32> { scores.iter().zip(bias).map(|(score, bias)| score + bias).collect() };
        let (mut ranking, weights) = match &self.bias {
            ExpertBias::Absent => (scores.clone(), scores),
            ExpertBias::Choice(bias) => (biased(bias), scores),
            ExpertBias::ChoiceAndWeight(bias) => (biased(bias), biased(bias)),
        };
        if let Some(groups) = self.groups {
            let group_size = ranking.len() / groups.n_groups;
            let group_scores: Vec<f32> = ranking
                .chunks(group_size)
                .map(|group| best(group, 2).iter().map(|expert| group[*expert]).sum())
                .collect();
            let kept = best(&group_scores, groups.n_kept);
            for (group, ranking) in ranking.chunks_mut(group_size).enumerate() {
                if !kept.contains(&group) {
                    // Not zero, which would beat an expert of a kept group whose bias makes it negative.
                    ranking.fill(f32::NEG_INFINITY);
                }
            }
        }
        let mut chosen = best(&ranking, self.n_chosen);
        chosen.sort_unstable();
        let sum: f32 =
            if self.renormalise { chosen.iter().map(|expert| weights[*expert]).sum::<f32>() + TINY } else { 1.0 };
        let scale = |expert: usize| self.scale * self.expert_scale.as_ref().map_or(1.0, |scale| scale[expert]);
        chosen.iter().map(|&expert| Choice { expert, weight: weights[expert] / sum * scale(expert) }).collect()
    }
}

/// Indices of the `n` largest, largest first, ties to the lower index.
fn best(values: &[f32], n: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    // Stable, so that the lower index stays first among equals.
    order.sort_by(|a, b| values[*b].total_cmp(&values[*a]));
    order.truncate(n);
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(scoring: Scoring, renormalise: bool) -> Routing {
        Routing {
            n_chosen: 2,
            scoring,
            bias: ExpertBias::Absent,
            groups: None,
            renormalise,
            scale: 1.0,
            expert_scale: None,
        }
    }

    fn experts(routing: &Routing, logits: &[f32]) -> Vec<usize> {
        routing.choose(logits).iter().map(|choice| choice.expert).collect()
    }

    #[test]
    fn softmax_weights_add_up_to_one_only_where_asked() {
        let logits = [0.0, 3.0f32.ln(), 2.0f32.ln(), 0.0];
        let raw = plain(Scoring::Softmax, false).choose(&logits);
        assert_eq!(raw.iter().map(|choice| choice.expert).collect::<Vec<_>>(), [1, 2]);
        for (choice, want) in raw.iter().zip([3.0 / 7.0, 2.0 / 7.0]) {
            assert!((choice.weight - want).abs() < 1e-6);
        }
        for (choice, want) in plain(Scoring::Softmax, true).choose(&logits).iter().zip([0.6, 0.4]) {
            assert!((choice.weight - want).abs() < 1e-6);
        }
    }

    #[test]
    fn ties_go_to_the_lower_expert() {
        assert_eq!(experts(&plain(Scoring::Softmax, true), &[1.0, 2.0, 1.0, 1.0]), [0, 1]);
    }

    #[test]
    fn a_bias_may_count_in_the_choice_alone() {
        let bias = vec![0.0, 0.0, 0.0, 5.0];
        let logits = [0.0; 4];
        let choice_only = Routing { bias: ExpertBias::Choice(bias.clone()), ..plain(Scoring::Sigmoid, false) };
        assert_eq!(choice_only.choose(&logits), [Choice { expert: 0, weight: 0.5 }, Choice { expert: 3, weight: 0.5 }]);
        let both = Routing { bias: ExpertBias::ChoiceAndWeight(bias), ..plain(Scoring::Sigmoid, false) };
        assert_eq!(both.choose(&logits)[1], Choice { expert: 3, weight: 5.5 });
    }

    #[test]
    fn experts_of_other_groups_do_not_take_part_even_against_negative_scores() {
        let groups = Some(ExpertGroups { n_groups: 2, n_kept: 1 });
        // The first group has the best two, and a third that its bias makes negative.
        let bias = ExpertBias::Choice(vec![1.0, 1.0, -3.0, 0.9, 0.9, 0.9]);
        let routing = Routing { n_chosen: 3, bias, groups, ..plain(Scoring::Sigmoid, true) };
        let choices = routing.choose(&[0.0; 6]);
        assert_eq!(choices.iter().map(|choice| choice.expert).collect::<Vec<_>>(), [0, 1, 2]);
        assert!((choices.iter().map(|choice| choice.weight).sum::<f32>() - 1.0).abs() < 1e-6);
    }
}
