//! Bounds on how much longer a tokenizer's file makes a text, so that no file can use up the memory.
//!
//! A normalizer may replace each letter by many, and a sequence of normalizers multiplies. Tokenizers are refused if the worst case
//! is far above that of published ones, before any text is normalised (tokens are, while a tokenizer loads). Long texts are
//! normalised in pieces first, and refused if they grow much.
//!
//! Never here: limits of a model.

use serde::Deserialize;
use serde_json::Value;
use tokenizers::{NormalizedString, Normalizer, Tokenizer};

/// Largest factor by which a tokenizer may lengthen a text, in bytes. Chosen by us: that of T5's is 132 (NFKC 11, a mark for a
/// space 3, written with 4 bytes), those of Qwen's and LLaDA's are 6.
const MAX_FACTOR: f64 = 256.0;

/// Largest number of bytes that a tokenizer may add to a text of any length. Chosen by us: published ones add one mark of 3 bytes.
const MAX_ADDED: f64 = 65_536.0;

/// Texts that can reach no more bytes than this are not measured. Chosen by us: with its alignments a normalised byte takes about
/// 33 bytes.
const UNMEASURED: f64 = (4 << 20) as f64;

/// Factor by which longer texts may actually grow. Chosen by us: a text of spaces grows by 3 where marks replace them.
const MAX_ACTUAL_FACTOR: usize = 4;

/// Bytes of a text that are normalised at a time to measure it.
const PIECE: usize = 4096;

/// The largest length of a text: `factor` times its bytes, and `added`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Growth {
    factor: f64,
    added: f64,
}

/// The parts of tokenizer.json that lengthen texts.
#[derive(Deserialize)]
struct Parts {
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    decoder: Value,
}

impl Growth {
    const NONE: Self = Self { factor: 1.0, added: 0.0 };

    /// Growth of texts under the tokenizer `json`. Fails if it, or the growth by the decoder, is too large. Returns no growth for
    /// invalid files, because loading them reports the error.
    pub(super) fn of(json: &[u8]) -> Result<Self, String> {
        let Ok(Parts { normalizer, pre_tokenizer, decoder }) = serde_json::from_slice(json) else {
            return Ok(Self::NONE);
        };
        Self::of_step(&decoder).admit("decoder")?;
        let normalized = Self::of_step(&normalizer);
        normalized.admit("normalizer")?;
        let growth = normalized.then(Self::of_step(&pre_tokenizer));
        growth.admit("pre_tokenizer, after its normalizer,")?;
        Ok(growth)
    }

    /// Fails if a text would become too long.
    pub(super) fn check(self, tokenizer: &Tokenizer, text: &str) -> Result<(), String> {
        let n_bytes = text.len() as f64;
        if n_bytes * self.factor + self.added <= UNMEASURED {
            return Ok(());
        }
        let Some(normalizer) = tokenizer.get_normalizer() else { return Ok(()) };
        let most = text.len().saturating_mul(MAX_ACTUAL_FACTOR).saturating_add(UNMEASURED as usize);
        let (mut rest, mut n_normalized) = (text, 0);
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(rest.floor_char_boundary(PIECE));
            let mut piece = NormalizedString::from(piece);
            normalizer.normalize(&mut piece).map_err(|error| format!("cannot be normalised: {error}"))?;
            n_normalized += piece.len();
            if n_normalized > most {
                return Err(format!(
                    "has {} bytes, and the tokenizer's normalizer makes more than {most} of them",
                    text.len()
                ));
            }
            rest = after;
        }
        Ok(())
    }

    fn admit(self, part: &str) -> Result<(), String> {
        if self.factor > MAX_FACTOR || self.added > MAX_ADDED {
            return Err(format!(
                "its {part} may make a text {:.0} times as long and add {:.0} bytes; at most {MAX_FACTOR} times and {MAX_ADDED} \
                 bytes are accepted",
                self.factor, self.added
            ));
        }
        Ok(())
    }

    /// Growth of this step followed by `next`.
    fn then(self, next: Self) -> Self {
        Self { factor: self.factor * next.factor, added: self.added * next.factor + next.added }
    }

    /// Growth by a normalizer, pre-tokenizer or decoder. Factors of normal forms are from Unicode's FAQ on normalization.
    fn of_step(step: &Value) -> Self {
        let by = |factor: f64| Self { factor, added: 0.0 };
        let len_of = |field: &str| step[field].as_str().map_or(0, str::len) as f64;
        match step["type"].as_str().unwrap_or_default() {
            "Sequence" => {
                let steps =
                    ["normalizers", "pretokenizers", "decoders"].into_iter().find_map(|list| step[list].as_array());
                steps.into_iter().flatten().map(Self::of_step).fold(Self::NONE, Self::then)
            }
            "NFC" | "NFD" => by(3.0),
            "NFKC" | "NFKD" => by(11.0),
            // U+023A, of two bytes, becomes one of three.
            "Lowercase" => by(1.5),
            // Decomposed, in lower case, with spaces around.
            "BertNormalizer" => by(3.0 * 1.5 * 3.0),
            // A byte becomes a letter of two.
            "ByteLevel" => Self { factor: 2.0, added: 1.0 },
            "Prepend" => Self { factor: 1.0, added: len_of("prepend") },
            "Metaspace" => Self { factor: len_of("replacement").max(1.0), added: len_of("replacement") },
            "Precompiled" => by(longest_replacement(step["precompiled_charsmap"].as_str().unwrap_or_default())),
            "Replace" => match step["pattern"]["String"].as_str() {
                Some(pattern) if !pattern.is_empty() => by((len_of("content") / pattern.len() as f64).max(1.0)),
                // May match each byte, or nothing between them.
                _ => Self { factor: 1.0 + len_of("content"), added: len_of("content") },
            },
            _ => Self::NONE,
        }
    }
}

/// Length of the longest text in a table of SentencePiece: after a trie, whose size is the first word, come texts that end in 0.
fn longest_replacement(charsmap: &str) -> f64 {
    let mut bytes = Vec::with_capacity(charsmap.len() / 4 * 3);
    let (mut bits, mut n_bits) = (0_u32, 0);
    for letter in charsmap.bytes() {
        let digit = match letter {
            b'A'..=b'Z' => letter - b'A',
            b'a'..=b'z' => letter - b'a' + 26,
            b'0'..=b'9' => letter - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => continue,
        };
        bits = bits << 6 | u32::from(digit);
        n_bits += 6;
        if n_bits >= 8 {
            n_bits -= 8;
            bytes.push((bits >> n_bits) as u8);
        }
    }
    let trie = bytes.first_chunk().map_or(0, |size| u32::from_le_bytes(*size) as usize);
    let texts = bytes.get(trie.saturating_add(4)..).unwrap_or_default();
    texts.split(|byte| *byte == 0).map(<[u8]>::len).max().unwrap_or(0).max(1) as f64
}
