//! Embeds the engine in a program: no HTTP, no second process.
//!
//! ```text
//! cargo run --release -p diffulex-server --example embed -- "Tell me a story about a dragon" [MODEL]
//! ```
//! Prints the window at each denoise step, then the answer. Without MODEL (a checkpoint folder or a GGUF file) it uses the
//! demo model.

#![expect(clippy::print_stdout, reason = "a program that prints an answer")]

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use diffulex_engine::TextModel;
use diffulex_protocol::{ChatMessage, SamplingParams, ServingInput, StreamMode};
use diffulex_server::config::ServerConfig;
use diffulex_server::engine_loop::EngineLoop;
use diffulex_server::frontend::{StreamEvent, Submission};
use diffulex_server::{demo, launch};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let prompt = arguments.next().unwrap_or_else(|| "Tell me a story about a dragon".to_owned());
    let path = arguments.next().map(PathBuf::from);

    // The engine is made on its own thread. The tokenizer is loaded a second time, for the caller's side.
    let files = demo::model_files(path.as_deref())?;
    let text = TextModel::load(&files)?;
    let config = ServerConfig::default();
    let options = config.engine.clone();
    let factory = Arc::new(move || launch::load_engine(&files, &options));
    let engine = EngineLoop::start(factory, text, launch::frontend_options(&config)).await?;

    let input = ServingInput::Chat { messages: vec![ChatMessage { role: "user".to_owned(), content: prompt }] };
    let submission = Submission {
        sampling_params: SamplingParams { temperature: 0.0, max_tokens: 64, ..SamplingParams::default() },
        stream: true,
        stream_mode: StreamMode::Denoise,
        ..Submission::new("embed", input)
    };
    // One stream per choice. Dropping a stream aborts its request.
    for mut stream in engine.frontend().submit(submission).await? {
        while let Some(event) = stream.next_event().await {
            match event {
                StreamEvent::Snapshot(snapshot) => println!("{:>3}  {}", snapshot.nfe, snapshot.text),
                StreamEvent::Delta(delta) => println!("{:>3}  {}", delta.nfe, delta.text),
                StreamEvent::Reply(reply) => println!("\n{}\n({} forwards)", reply.text, reply.nfe),
                StreamEvent::Error(error) => return Err(error.message.into()),
            }
        }
    }
    engine.stop(Duration::from_secs(1)).await;
    Ok(())
}
