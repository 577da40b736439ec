//! The wire's codec: what it reads, it writes again, and reads again as the same.

use diffulex_protocol::codec::{decode_batch, decode_command, encode_batch, encode_command};
use diffulex_protocol::{EventBatch, ServingEvent};

/// Reads the input as a command and as events.
pub fn run(input: &[u8]) {
    if let Ok(command) = decode_command(input) {
        let bytes = encode_command(&command).expect("a command that was read can be written");
        let again = decode_command(&bytes).expect("a command that was written can be read");
        // Compared as bytes, in which a NaN is itself.
        assert_eq!(encode_command(&again).expect("and written again"), bytes);
    }
    if let Ok(batch) = decode_batch(input) {
        let bytes = encode_batch(&batch).expect("a batch that was read can be written");
        let again = decode_batch(&bytes).expect("a batch that was written can be read");
        assert_eq!(encode_batch(&again).expect("and written again"), bytes);
        // Batches have a reader of their own, which must read what serde reads.
        let plain = rmp_serde::from_slice::<EventBatch>(input).or_else(|_| {
            let event = rmp_serde::from_slice::<ServingEvent>(input)?;
            Ok::<_, rmp_serde::decode::Error>(EventBatch { incarnation: 0, events: vec![event] })
        });
        assert_eq!(encode_batch(&plain.expect("serde reads it, too")).expect("and writes it"), bytes);
    }
}
