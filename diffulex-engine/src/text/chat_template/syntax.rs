//! Checks on the source of a template, before it is parsed.
//!
//! minijinja's parser and compiler recurse for each `not`, each operator and each `elif`, and compute operators of constants while
//! they compile. A template that would take too much of either is refused by its tokens.

use minijinja::machinery::{Token, tokenize};
use minijinja::syntax::SyntaxConfig;

/// Maximum size in bytes. Chosen by us: twenty times the largest known.
const MAX_BYTES: usize = 1 << 20;

/// Maximum tokens between `{{` and `}}`, or `{%` and `%}`. Chosen by us: known templates have up to 200.
const MAX_TOKENS: usize = 2000;

/// Maximum number of `elif`. Chosen by us: known templates have up to 20.
const MAX_BRANCHES: usize = 500;

/// Maximum bytes that constants of one tag may be multiplied to. Chosen by us.
const MAX_CONSTANT: f64 = (1 << 26) as f64;

/// Bytes of an item of a list.
const ITEM: usize = 32;

/// Fails if `source` is larger, deeper or multiplies more than any template that people use.
pub(super) fn check(source: &str, syntax: &SyntaxConfig) -> Result<(), String> {
    if source.len() > MAX_BYTES {
        return Err(format!("has {} bytes; at most {MAX_BYTES} are read", source.len()));
    }
    let mut tag = Tag::default();
    let mut n_branches = 0;
    // The parser reports what is not a token.
    for (token, span) in tokenize(source, false, syntax.clone()).map_while(Result::ok) {
        match token {
            Token::VariableStart | Token::BlockStart => tag = Tag { line: span.start_line, ..Tag::default() },
            _ => tag.add(&token),
        }
        if matches!(token, Token::Ident("elif")) {
            n_branches += 1;
        }
        if tag.n_tokens > MAX_TOKENS {
            return Err(format!("line {}: a tag has more than {MAX_TOKENS} tokens", tag.line));
        }
        if n_branches > MAX_BRANCHES {
            return Err(format!("has more than {MAX_BRANCHES} elif"));
        }
        if tag.constant() > MAX_CONSTANT {
            return Err(format!("line {}: constants are multiplied to more than {MAX_CONSTANT} bytes", tag.line));
        }
    }
    Ok(())
}

/// The tokens between `{{` and `}}`, or `{%` and `%}`, counted.
#[derive(Default)]
struct Tag {
    line: u16,
    n_tokens: usize,
    /// Of texts, and of the items of lists.
    n_bytes: usize,
    n_sums: i32,
    n_products: i32,
    largest: f64,
}

impl Tag {
    fn add(&mut self, token: &Token<'_>) {
        self.n_tokens += 1;
        match token {
            Token::TemplateData(_) => *self = Self::default(),
            Token::Str(text) => self.n_bytes += text.len(),
            Token::String(text) => self.n_bytes += text.len(),
            Token::Int(number) => self.largest = self.largest.max(*number as f64),
            Token::Float(number) => self.largest = self.largest.max(*number),
            Token::Int128(_) | Token::Pow => self.largest = f64::INFINITY,
            Token::BracketOpen | Token::Comma => self.n_bytes += ITEM,
            Token::Plus => self.n_sums += 1,
            Token::Mul => self.n_products += 1,
            _ => {}
        }
    }

    /// An upper bound of the bytes of any constant that the compiler makes.
    fn constant(&self) -> f64 {
        if self.n_products == 0 {
            return 0.0;
        }
        let factor = self.largest.max(1.0) * f64::from(1 + self.n_sums);
        self.n_bytes as f64 * factor.powi(self.n_products)
    }
}
