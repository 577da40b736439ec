//! Fields of a request that are about thinking.

use super::GenerationBody;
use crate::http::answer::error::ApiError;
use crate::http::reasoning::wish::Wish;

impl GenerationBody {
    /// What the request says about thinking.
    pub(in crate::http) fn take_wish(&mut self) -> Result<Wish, ApiError> {
        let mut wish = std::mem::take(&mut self.own_wish);
        wish.set_thinks("enable_thinking", self.enable_thinking)?;
        wish.set_effort("reasoning_effort", self.reasoning_effort.take())?;
        wish.set_kwargs(self.chat_template_kwargs.take())?;
        if self.include_reasoning == Some(false) {
            wish.hide();
        }
        if self.separate_reasoning == Some(false) {
            wish.keep_together();
        }
        Ok(wish)
    }
}
