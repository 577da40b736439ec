//! The bytes of each token, for automata over tokens.
//!
//! They are exact where the text of an answer is the bytes of its tokens, one after the other, with the sole exception of the first
//! token: decoders of SentencePiece drop a space there. A decoder that joins tokens in another way is refused.

use diffulex_constraints::{ConstraintError, Vocabulary};

use super::{TextModel, byte_alphabet};

/// Sequences that are decoded to find out whether a decoder joins tokens plainly. Chosen by us: a decoder of WordPiece or one that
/// cleans up spaces fails within a few.
const N_SAMPLES: usize = 512;

/// Tokens of each of them.
const SAMPLE_LEN: usize = 4;

/// The vocabulary of `text`, for a head of `n_rows` rows of which `eos_token_ids` end an answer.
pub(crate) fn vocabulary(
    text: &TextModel,
    n_rows: usize,
    eos_token_ids: &[u32],
) -> Result<Vocabulary, ConstraintError> {
    let n_tokens = n_rows.min(text.vocab_size() as usize) as u32;
    let Some(anchor) = (0..n_tokens).find(|id| is_anchor(text, *id)) else {
        return Err(ConstraintError::new("the vocabulary has no token of letters to read others by"));
    };
    let is_text = |id: &u32| !text.is_special(*id) && !eos_token_ids.contains(id);
    let spell = |id: u32, before: &[u32]| spelling(text, id, before).filter(|bytes| !bytes.is_empty());
    let inside: Vec<_> = (0..n_tokens).map(|id| Some(id).filter(is_text).and_then(|id| spell(id, &[anchor]))).collect();
    let at_start: Vec<_> = (0..n_tokens).map(|id| Some(id).filter(is_text).and_then(|id| spell(id, &[]))).collect();
    check(text, &inside, &at_start)?;
    let differs =
        |(id, (bytes, inside)): (u32, (&Option<_>, &Option<_>))| (bytes != inside).then(|| (id, bytes.clone()));
    let different: Vec<_> = (0..).zip(at_start.iter().zip(&inside)).filter_map(differs).collect();
    Ok(Vocabulary::new(&inside, &different, eos_token_ids, n_rows))
}

/// Whether token `id` is a few letters wherever it stands.
fn is_anchor(text: &TextModel, id: u32) -> bool {
    let piece = text.piece(id);
    let twice = text.decode(&[id, id]);
    !text.is_special(id)
        && !piece.is_empty()
        && piece.bytes().all(|byte| byte.is_ascii_lowercase())
        && twice == piece.repeat(2)
}

/// The bytes that token `id` adds to the text of `before`; `None` if it changes that text.
fn spelling(text: &TextModel, id: u32, before: &[u32]) -> Option<Box<[u8]>> {
    let prefix = text.decode(before);
    let whole = text.decode(&[before, &[id]].concat());
    let added = whole.strip_prefix(&prefix)?;
    if added.contains(char::REPLACEMENT_CHARACTER)
        && let Some(bytes) = text.token(id).and_then(|token| byte_alphabet::bytes(&token))
    {
        return Some(bytes.into());
    }
    Some(added.as_bytes().into())
}

/// Refuses a decoder whose text of several tokens is not their bytes in a row. The samples are the same in each start.
fn check(
    text: &TextModel,
    inside: &[Option<Box<[u8]>>],
    at_start: &[Option<Box<[u8]>>],
) -> Result<(), ConstraintError> {
    let ids: Vec<u32> = (0..).zip(inside).filter(|(_, bytes)| bytes.is_some()).map(|(id, _)| id).collect();
    for sample in 0..N_SAMPLES.min(ids.len()) {
        // Strides without a common factor visit tokens of every kind.
        let pick = |place: usize| ids[(sample * 7919 + place * 104_729) % ids.len()];
        let tokens: Vec<u32> = (0..SAMPLE_LEN).map(pick).collect();
        let spelled = tokens.iter().enumerate().map(|(place, id)| {
            let spellings = if place == 0 { at_start } else { inside };
            spellings[*id as usize].as_deref().unwrap_or_default()
        });
        let bytes: Vec<u8> = spelled.flatten().copied().collect();
        // What is no UTF-8 is in no language of texts.
        if std::str::from_utf8(&bytes).is_ok_and(|spelled| spelled != text.decode(&tokens)) {
            return Err(ConstraintError::new("the tokenizer's decoder does not write the bytes of tokens in a row"));
        }
    }
    Ok(())
}
