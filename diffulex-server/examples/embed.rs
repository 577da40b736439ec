//! Embeds the engine in a program: no HTTP, no second process.
//!
//! ```text
//! cargo run --release -p diffulex-server --example embed -- "Tell me a story about a dragon" [MODEL]
//! ```
//! Prints the window at each denoise step, then the answer. Without MODEL (a checkpoint folder or a GGUF file) it uses the
//! demo model. `docs/embedding.md` describes every part.

use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use diffulex_engine::{ChatMessage, ServingInput};
use diffulex_protocol::{SamplingParams, StreamMode};
use diffulex_server::config::ServerConfig;
use diffulex_server::frontend::StreamEvent;
use diffulex_server::worker::engine_loop::EngineLoop;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let prompt = arguments.next().unwrap_or_else(|| "Tell me a story about a dragon".to_owned());
    let path = arguments.next().map(PathBuf::from);
    answer(prompt, path.as_deref(), &mut std::io::stdout()).await
}

/// Writes the steps and the answer to `out`.
pub async fn answer(prompt: String, path: Option<&Path>, out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    let engine = EngineLoop::from_path(path, &ServerConfig::default()).await?;
    let messages = vec![ChatMessage::new("user", prompt)];
    writeln!(out, "{}: {:?}", engine.model_id(), engine.render_chat_prompt(&messages)?)?;

    let params = SamplingParams { temperature: 0.0, max_tokens: 64, ..SamplingParams::default() };
    let input = ServingInput::chat(messages);
    // Dropping the stream aborts its request.
    let mut stream = engine.generate_stream(input.clone(), params.clone(), StreamMode::Denoise).await?;
    while let Some(event) = stream.next_event().await {
        match event {
            StreamEvent::Snapshot(snapshot) => writeln!(out, "{:>3}  {}", snapshot.nfe, snapshot.text)?,
            StreamEvent::Delta(delta) => writeln!(out, "{:>3}  {}", delta.nfe, delta.text)?,
            StreamEvent::Reply(reply) => writeln!(out, "\n{}\n({} forwards)", reply.text, reply.nfe)?,
            StreamEvent::Error(error) => return Err(error.message.into()),
        }
    }
    // Without the steps. The same text: the request is greedy.
    let reply = engine.generate(input, params).await?;
    writeln!(out, "{}", reply.text)?;
    engine.stop(Duration::from_secs(1)).await;
    Ok(())
}
