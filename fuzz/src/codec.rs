//! The wire's codec: what it reads, it writes again, and reads again as the same.

use diffulex_protocol::codec::{CodecError, decode_batch, decode_command, encode_batch, encode_command, refusal};
use diffulex_protocol::{diffulex, salvage};

/// Reads the input as a command and as events, in our form and in Diffulex's.
pub fn run(input: &[u8]) {
    match decode_command(input) {
        Ok(command) => assert_again(&command, encode_command, decode_command),
        Err(error) => drop(refusal(input, &error)),
    }
    match decode_batch(input) {
        Ok(batch) => assert_again(&batch, encode_batch, decode_batch),
        Err(_) => drop(salvage(input)),
    }
    if let Ok(command) = diffulex::decode_command(input) {
        assert_again(&command, diffulex::encode_command, diffulex::decode_command);
    }
    if let Ok(event) = diffulex::decode_event(input) {
        assert_again(&event, diffulex::encode_event, diffulex::decode_event);
    }
}

/// Asserts that a message that was read is written, read and written again as the same.
fn assert_again<T>(
    message: &T,
    encode: impl Fn(&T) -> Result<Vec<u8>, CodecError>,
    decode: impl Fn(&[u8]) -> Result<T, CodecError>,
) {
    let bytes = encode(message).expect("a message that was read can be written");
    let again = decode(&bytes).expect("a message that was written can be read");
    // Compared as bytes, in which a NaN is itself.
    assert_eq!(encode(&again).expect("and written again"), bytes);
}
