//! From questions to probabilities: each question is a request of its own that scores its labels at the position after its prompt.
//!
//! All prompts of a request begin with the same tokens, the input: the first question is answered alone, and the others find the
//! input's K/V in the prefix cache. In families whose rows attend to the whole answer, and with D2F, nothing can be shared, so the
//! input is forwarded once for each question.
//!
//! Never here: bodies, forms of answers.

use std::hash::{BuildHasher, RandomState};

use diffulex_engine::{ChatMessage, ConversationEnd, RequestError, ServingInput, TextModel};
use diffulex_protocol::{LabelScores, SamplingParams, ServingReply};
use serde_json::Map;

use crate::frontend::{Requester, Submission, SubmitError, Tokenising};
use crate::http::answer::error::ApiError;
use crate::http::answer::parts::reply_of;
use crate::http::app::App;
use crate::http::decisions::question::{Kind, Label, Question};
use crate::http::shuffle::order;

/// Most questions of a request, OpenAI's limit.
pub(super) const MAX_QUESTIONS: usize = 400;

/// Most orders of the options of a choice. Chosen by us.
const MAX_PERMUTATIONS: u32 = 24;

/// Questions of a request that are in flight at a time, as with embeddings.
const GROUP: usize = 64;

/// Most tokens that the questions of a request may forward where they cannot share the input: 64 questions about 4,096 tokens.
/// Chosen by us.
const MAX_UNSHARED_TOKENS: usize = 64 * 4096;

/// A request for decisions.
pub(super) struct Asked {
    pub(super) route: &'static str,
    /// The model or adapter that answers.
    pub(super) model: String,
    pub(super) input: Vec<ChatMessage>,
    pub(super) questions: Vec<Question>,
    /// Orders of the options that the probabilities of a choice are the mean of; 1 is the client's order.
    pub(super) permutations: u32,
    /// Draws the orders.
    pub(super) seed: u64,
    pub(super) cache_salt: Option<String>,
}

/// The answer to a question.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Judged {
    /// Probability of each option, the sum of which is 1.
    pub(super) probabilities: Vec<f64>,
    /// Share of the whole distribution that the labels have.
    pub(super) label_mass: f64,
    /// The likeliest token of the vocabulary is a label.
    pub(super) argmax_is_label: bool,
}

/// What it took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Cost {
    /// Tokens of the input, once, and of the questions.
    pub(super) input_tokens: u32,
    /// Tokens of the input that were in the prefix cache before.
    pub(super) cached_tokens: u32,
    /// Tokens of the input that the cache has now and had not before.
    pub(super) written_tokens: u32,
    /// Forward passes, summed over the questions.
    pub(super) nfe: u32,
}

/// The answers to all questions, in order.
pub(super) struct Decided {
    pub(super) model: String,
    pub(super) judged: Vec<Judged>,
    pub(super) cost: Cost,
}

/// The rendered conversation around a question.
struct Frame {
    /// Tokens before it.
    head: Vec<u32>,
    /// Text after it, up to the answer.
    tail: String,
}

/// One prompt of a question.
struct Prompt {
    ids: Vec<u32>,
    /// Token of each option, in the question's order of options.
    labels: Vec<u32>,
}

impl Asked {
    /// Refuses more questions or orders than a request may have.
    pub(super) fn check(self) -> Result<Self, ApiError> {
        let n_questions = self.questions.len();
        if !(1..=MAX_QUESTIONS).contains(&n_questions) {
            let message = format!("questions must have 1 to {MAX_QUESTIONS} entries, got {n_questions}");
            return Err(ApiError::invalid("questions", message));
        }
        if !(1..=MAX_PERMUTATIONS).contains(&self.permutations) {
            let message = format!("permutations must be between 1 and {MAX_PERMUTATIONS}, got {}", self.permutations);
            return Err(ApiError::invalid("permutations", message));
        }
        Ok(self)
    }

    /// Answers the questions; dropped, it aborts them.
    pub(super) async fn decide(self, app: &App, requester: Requester) -> Result<Decided, ApiError> {
        let frame = self.frame(app).await?;
        let mut prompts = Vec::new();
        for (index, question) in self.questions.iter().enumerate() {
            let labels = question.find_labels(app.frontend.text())?;
            for nth in 0..self.n_orders(question) {
                let order = order(question.options.len(), self.seed, index, nth);
                prompts.push(frame.prompt(app, question, &labels, &order).await?);
            }
        }
        self.check_unshared(app, &prompts)?;
        let n_head = frame.head.len() as u32;
        let replies = self.replies(app, requester, prompts).await?;
        let cached_by = |nth: usize| replies.get(nth).map_or(0, |reply: &ServingReply| reply.cached_tokens.min(n_head));
        let cached_tokens = cached_by(0);
        let cost = Cost {
            input_tokens: n_head + replies.iter().map(|reply| reply.prompt_tokens.saturating_sub(n_head)).sum::<u32>(),
            cached_tokens,
            written_tokens: cached_by(1).saturating_sub(cached_tokens),
            nfe: replies.iter().map(|reply| reply.nfe).sum(),
        };
        let mut scores = replies.iter().map(|reply| reply.label_scores.as_ref());
        let judged = self.questions.iter().map(|question| {
            let n_orders = self.n_orders(question) as usize;
            let scores: Vec<&LabelScores> = scores.by_ref().take(n_orders).flatten().collect();
            Judged::of(&scores)
        });
        Ok(Decided { judged: judged.collect(), model: self.model, cost })
    }

    /// The conversation, rendered and tokenised. A marker in the place of the question finds it: templates trim, and the input may
    /// hold anything.
    async fn frame(&self, app: &App) -> Result<Frame, ApiError> {
        let (messages, frontend) = (self.input.clone(), app.frontend.clone());
        let render = move || render_around(frontend.text(), messages);
        let rendered = app.frontend.long_work().run(render).await.map_err(SubmitError::from)?;
        let (head, tail) = rendered.map_err(SubmitError::from)?;
        Ok(Frame { head: app.frontend.tokenise("input", ServingInput::text(head), Tokenising::default()).await?, tail })
    }

    fn n_orders(&self, question: &Question) -> u32 {
        if question.kind == Kind::Choice { self.permutations } else { 1 }
    }

    fn check_unshared(&self, app: &App, prompts: &[Prompt]) -> Result<(), ApiError> {
        let n_tokens: usize = prompts.iter().map(|prompt| prompt.ids.len()).sum();
        let shares = app.frontend.card().is_none_or(|card| card.shares_prefixes);
        if shares || n_tokens <= MAX_UNSHARED_TOKENS {
            return Ok(());
        }
        let message = format!(
            "questions: with this model each of {} prompts forwards the whole input, {n_tokens} tokens in all; the limit is \
             {MAX_UNSHARED_TOKENS}",
            prompts.len()
        );
        Err(ApiError::invalid("questions", message))
    }

    /// The reply to each prompt: to the first alone, whose K/V the others share, then to groups of them.
    async fn replies(
        &self,
        app: &App,
        requester: Requester,
        prompts: Vec<Prompt>,
    ) -> Result<Vec<ServingReply>, ApiError> {
        let mut template = Submission::of_inputs(self.route, Vec::new());
        template.generate.adapter = app.options.adapter_of(&self.model);
        template.generate.cache_salt.clone_from(&self.cache_salt);
        template.generate.sampling_params =
            SamplingParams { temperature: 0.0, max_tokens: 1, ..SamplingParams::default() };
        template.requester = requester;
        template.client = Some(template.begin());
        let group = GROUP.min(app.frontend.max_in_flight()).max(1);
        let (first, others) = prompts.split_at(1);
        let mut replies: Vec<ServingReply> = Vec::with_capacity(prompts.len());
        for group in std::iter::once(first).chain(others.chunks(group)) {
            let mut streams = Vec::with_capacity(group.len());
            for (nth, prompt) in group.iter().enumerate() {
                let mut submission = Submission { first_input: replies.len() + nth, ..template.clone() };
                submission.inputs = vec![ServingInput::ids(prompt.ids.clone())];
                submission.generate.labels.clone_from(&prompt.labels);
                streams.extend(app.frontend.submit(submission).await?);
            }
            for stream in streams {
                replies.push(reply_of(stream).await?);
            }
        }
        Ok(replies)
    }
}

impl Frame {
    async fn prompt(
        &self,
        app: &App,
        question: &Question,
        labels: &[Label],
        order: &[usize],
    ) -> Result<Prompt, ApiError> {
        let text = question.text(labels, order) + &self.tail;
        let written = app.frontend.tokenise("questions", ServingInput::text(text), Tokenising::default()).await?;
        let mut by_option = vec![0; order.len()];
        order.iter().zip(labels).for_each(|(option, label)| by_option[*option] = label.id);
        Ok(Prompt { ids: [self.head.as_slice(), &written].concat(), labels: by_option })
    }
}

impl Judged {
    /// The mean over several orders of the options.
    fn of(scores: &[&LabelScores]) -> Self {
        let n_options = scores.first().map_or(0, |scores| scores.log_probabilities.len());
        let mut judged =
            Self { probabilities: vec![0.0; n_options], label_mass: 0.0, argmax_is_label: !scores.is_empty() };
        let n_orders = scores.len() as f64;
        for LabelScores { log_probabilities, likeliest_is_label } in scores {
            let most = log_probabilities.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let weights: Vec<f64> = log_probabilities.iter().map(|log| f64::from(log - most).exp()).collect();
            let total: f64 = weights.iter().sum();
            for (probability, weight) in judged.probabilities.iter_mut().zip(weights) {
                *probability += weight / total / n_orders;
            }
            judged.label_mass += (f64::from(most).exp() * total).min(1.0) / n_orders;
            judged.argmax_is_label &= *likeliest_is_label;
        }
        judged
    }
}

/// The text before and after a question that is asked at the end of `messages`, in the last one if the user wrote it.
fn render_around(text: &TextModel, mut messages: Vec<ChatMessage>) -> Result<(String, String), RequestError> {
    let mark = format!("QUESTION-{:016x}", RandomState::new().hash_one(messages.len()));
    match messages.last_mut() {
        Some(last) if last.role == "user" => last.content = format!("{}\n\n{mark}", last.content),
        Some(_) | None => messages.push(ChatMessage::new("user", mark.as_str())),
    }
    let rendered = text.render_chat_until(&messages, (&[], &Map::new()), ConversationEnd::GenerationPrompt)?;
    let Some((head, tail)) = rendered.rsplit_once(&mark) else {
        let message = "input: the model's chat template leaves out the content of the last message";
        return Err(RequestError::invalid("input", message));
    };
    Ok((head.to_owned(), tail.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scores(log_probabilities: &[f32], likeliest_is_label: bool) -> LabelScores {
        LabelScores { log_probabilities: log_probabilities.to_vec(), likeliest_is_label }
    }

    #[test]
    fn probabilities_are_the_softmax_over_the_labels_and_the_mean_over_orders() {
        let even = scores(&[0.25f32.ln(), 0.25f32.ln()], true);
        let judged = Judged::of(&[&even]);
        assert_eq!(judged.probabilities, [0.5, 0.5]);
        assert!((judged.label_mass - 0.5).abs() < 1e-6 && judged.argmax_is_label);
        let uneven = scores(&[0.75f32.ln(), 0.25f32.ln()], false);
        let judged = Judged::of(&[&even, &uneven]);
        assert!((judged.probabilities[0] - 0.625).abs() < 1e-6);
        assert!((judged.label_mass - 0.75).abs() < 1e-6 && !judged.argmax_is_label);
        // Far below what `exp` can represent.
        let tiny = scores(&[-2000.0, -2000.0 + 2.0f32.ln()], false);
        assert!((Judged::of(&[&tiny]).probabilities[1] - 2.0 / 3.0).abs() < 1e-4);
    }
}
