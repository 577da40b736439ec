//! A request as a route hands it to the front end.
//!
//! Never here: whether it is accepted.

use diffulex_engine::{ConversationEnd, Prompt, RequestError, ServingInput};
use diffulex_protocol::{ContextUse, Pooling, SamplingParams, SnapshotSpan, StreamMode};

use crate::frontend::requests::request_id::RequestId;
use crate::frontend::requests::requester::Requester;
use crate::frontend::running::recorders::ClientRequest;

/// A request as a route hands it to the front end.
#[derive(Clone, Debug)]
pub struct Submission {
    /// The route, for the log.
    pub route: &'static str,
    /// Prompts or messages, each answered by itself.
    pub inputs: Vec<ServingInput>,
    /// Where messages end in the prompt.
    pub conversation_end: ConversationEnd,
    /// Sampling and limits; a missing seed is [`SamplingParams::seed_or`] one that is drawn.
    pub sampling_params: SamplingParams,
    /// Progress is wanted, not only the reply.
    pub stream: bool,
    /// Which progress.
    pub stream_mode: StreamMode,
    /// How much a snapshot covers.
    pub snapshot: SnapshotSpan,
    /// Most snapshots a second; those that come faster are merged. `None` is every one.
    pub max_fps: Option<f32>,
    /// Text or ids that follow the answer.
    pub suffix: Option<Prompt>,
    /// A mask in the prompt is a place to fill; otherwise it is a token like any other.
    pub fills_masks: bool,
    /// The adapter to answer with.
    pub adapter: Option<String>,
    /// The client's own tag.
    pub user: Option<String>,
    /// The id that the client knows the request by; `None` takes the requester's. Further choices add `-1`, `-2`, ... to it.
    pub request_id: Option<String>,
    /// Cuts the beginning of a prompt that is too long; `None` refuses it.
    pub truncation: Option<Truncation>,
    /// Shares cached prefixes only with requests of the same salt.
    pub cache_salt: Option<String>,
    /// The field for which the streams keep the ids of the prompt, if one asks for that.
    pub keeps_prompt: Option<&'static str>,
    /// The context that it extends, whose tokens the inputs begin with.
    pub context: Option<ContextUse>,
    /// The inputs are read and not answered: their replies have embeddings, pooled so.
    pub embed: Option<Pooling>,
    /// Inputs of the client's request that were submitted before these.
    pub first_input: usize,
    /// Answers wanted to each input; each is a request of its own with the next seed.
    pub n_choices: u32,
    /// Who sent it.
    pub requester: Requester,
    /// The client's request if several submissions are of it; without one, the submission is one of its own.
    pub client: Option<ClientRequest>,
}

/// Which tokens of a prompt are kept, from its end where nothing else is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Truncation {
    /// This many at most.
    To(u32),
    /// As many as leave room for `max_tokens`, and half of the context at least. (The half is chosen by us: a `max_tokens` of the
    /// whole context would leave nothing of the prompt.)
    ToFit,
    /// As many as the model takes, from the prompt's beginning, as Ollama cuts what it embeds.
    Beginning,
}

impl Truncation {
    /// Cuts `ids`; the error is that more are to be kept than the model takes.
    pub(in crate::frontend) fn cut(
        self,
        ids: &mut Vec<u32>,
        max_tokens: u32,
        max_model_len: u32,
    ) -> Result<(), RequestError> {
        let n_kept = match self {
            Self::To(n) if n > max_model_len => {
                let message = format!("truncate_prompt_tokens must be at most {max_model_len}, got {n}");
                return Err(RequestError::invalid("truncate_prompt_tokens", message));
            }
            Self::To(n) => n,
            Self::Beginning => {
                ids.truncate(max_model_len as usize);
                return Ok(());
            }
            Self::ToFit => max_model_len.saturating_sub(max_tokens).max(max_model_len / 2),
        };
        ids.drain(..ids.len().saturating_sub(n_kept as usize));
        Ok(())
    }
}

impl Submission {
    /// One choice of the default parameters, not streamed.
    pub fn new(route: &'static str, input: ServingInput) -> Self {
        Self::of_inputs(route, vec![input])
    }

    /// The same for several inputs.
    pub fn of_inputs(route: &'static str, inputs: Vec<ServingInput>) -> Self {
        Self {
            route,
            inputs,
            conversation_end: ConversationEnd::default(),
            sampling_params: SamplingParams::default(),
            stream: false,
            stream_mode: StreamMode::default(),
            snapshot: SnapshotSpan::default(),
            max_fps: None,
            suffix: None,
            fills_masks: false,
            adapter: None,
            user: None,
            request_id: None,
            truncation: None,
            cache_salt: None,
            keeps_prompt: None,
            context: None,
            embed: None,
            first_input: 0,
            n_choices: 1,
            requester: Requester::default(),
            client: None,
        }
    }

    /// The client's request, which is accepted now.
    pub fn begin(&self) -> ClientRequest {
        let asked = (self.inputs.first(), self.embed);
        let request = ClientRequest::new(self.route, self.requester.trace.clone());
        request.asking(asked, self.adapter.as_deref(), &self.sampling_params, self.n_choices)
    }

    /// The id that the request has, once a part of it was accepted.
    pub(in crate::frontend) fn settled_id(&self) -> Option<String> {
        self.requester.id.as_ref().and_then(RequestId::settled).map(str::to_owned)
    }

    pub(in crate::frontend) fn settle_id(&self, id: &str) {
        if let Some(settled) = &self.requester.id {
            settled.settle(id);
        }
    }

    /// Parameters of answer `choice` to a prompt, whose first answer has `seed`. The answers share the scores of the prompt.
    pub(in crate::frontend) fn params_of_choice(&self, seed: u64, choice: u64) -> SamplingParams {
        let prompt_logprobs = self.sampling_params.prompt_logprobs.filter(|_| choice == 0);
        SamplingParams { seed: Some(seed.wrapping_add(choice)), prompt_logprobs, ..self.sampling_params.clone() }
    }
}
