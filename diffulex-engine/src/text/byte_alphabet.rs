//! Spelling of bytes in vocabularies: GPT-2's letters, and SentencePiece's `<0xE6>`.
//!
//! GPT-2's alphabet is `bytes_to_unicode` of its encoder.py: printable bytes map to themselves, the others in order to
//! U+0100 and up.

/// The bytes that a token spells, or `None` if it is not written as bytes.
pub(super) fn bytes(token: &str) -> Option<Vec<u8>> {
    if let Some(digits) = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>')) {
        return u8::from_str_radix(digits, 16).ok().map(|byte| vec![byte]);
    }
    token.chars().map(byte_of_letter).collect()
}

/// GPT-2's letter for a byte.
pub(super) fn letter_of_byte(byte: u8) -> char {
    if prints(&byte) {
        return char::from(byte);
    }
    let n_before = (0..byte).filter(|byte| !prints(byte)).count() as u32;
    char::from_u32(0x100 + n_before).unwrap_or(char::REPLACEMENT_CHARACTER)
}

fn byte_of_letter(letter: char) -> Option<u8> {
    match u8::try_from(letter) {
        Ok(byte) => Some(byte).filter(prints),
        Err(_) => (0..=u8::MAX).filter(|byte| !prints(byte)).nth((u32::from(letter) - 0x100) as usize),
    }
}

fn prints(byte: &u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff)
}
