//! The host's constants and structures are those of the kernels' sources.

use crate::MAX_LIKELIEST;
use crate::device::operands::{launches, matrix, tensor, tiles};
use crate::device::operations::{attention, embed, product, score};
use crate::step::LEAST_BLEND;

/// A source in `gpu`.
macro_rules! source {
    ($name:literal) => {
        (($name), include_str!(concat!("../../../gpu/", $name)))
    };
}

/// The number that a source gives to a name, the first time.
fn constant((file, text): (&str, &str), name: &str) -> f64 {
    let definition = format!(" {name} = ");
    let start = text.find(&definition).unwrap_or_else(|| panic!("{file} has no {name}")) + definition.len();
    let number: &str = text[start..].split([',', ';', ' ']).next().unwrap();
    number.trim_end_matches('f').parse().unwrap_or_else(|_| panic!("{file}: {name} is {number}"))
}

/// The number of 32-bit words of a structure.
fn n_words((file, text): (&str, &str), name: &str) -> usize {
    let definition = format!("struct {name} {{");
    let start = text.find(&definition).unwrap_or_else(|| panic!("{file} has no {name}")) + definition.len();
    let body = &text[start..start + text[start..].find("};").unwrap()];
    let lines = body.lines().map(|line| line.split("//").next().unwrap().trim());
    let fields = lines.flat_map(|line| line.split(';')).map(str::trim).filter(|field| !field.is_empty());
    let words_of = |field: &str| {
        let each =
            if field.contains('*') || field.contains("uint64_t") || field.contains("Vocabulary") { 2 } else { 1 };
        let n_names = 1 + field.matches(',').count();
        each * n_names * if field.contains("[MAX_RANKED]") { MAX_LIKELIEST } else { 1 }
    };
    fields.map(words_of).sum()
}

#[test]
fn constants_are_those_of_the_kernels() {
    let (rows, heads, embed_cu) = (source!("rows.cu"), source!("heads.cu"), source!("embed.cu"));
    let (matrix_h, attention_h, score_h) =
        (source!("include/matrix.h"), source!("include/attention.h"), source!("include/score.h"));
    for (source, name, value) in [
        (rows, "THREADS", launches::ROW_THREADS as usize),
        (rows, "FLAT", launches::FLAT),
        (embed_cu, "FLAT", launches::FLAT),
        (heads, "WARPS", launches::HEADS),
        (heads, "WARPS", launches::HEAD_THREADS as usize / 32),
        (source!("include/block.h"), "WORDS", launches::REDUCTION as usize / 4),
        (embed_cu, "MIX_CHUNK", embed::MIX_CHUNK),
        (embed_cu, "TILE", embed::MIX_TILE),
        (attention_h, "CHUNK", attention::CHUNK),
        (attention_h, "THREADS", attention::THREADS as usize),
        (source!("attention_bf16.cu"), "PIECE", attention::PIECE),
        (matrix_h, "OUTPUTS", matrix::OUTPUTS),
        (matrix_h, "INPUTS", tensor::STRIDE),
        (matrix_h, "CHUNKS_PER_UNIT", matrix::CHUNKS_PER_UNIT),
        (source!("include/product.h"), "WARPS", product::PARTS),
        (score_h, "TILE", score::TILE),
        (score_h, "THREADS", score::THREADS),
        (score_h, "MAX_RANKED", MAX_LIKELIEST),
        (source!("score_cut.cu"), "CUT_THREADS", score::CUT_THREADS as usize),
    ] {
        assert_eq!(constant(source, name), value as f64, "{name} of {}", source.0);
    }
    assert_eq!(constant(embed_cu, "LEAST_BLEND") as f32, LEAST_BLEND);
    assert_eq!(constant(rows, "MAX_INT8") as f32, crate::quantization::MAX_INT8);
}

#[test]
fn kinds_of_weights_are_those_of_the_kernels() {
    let matrix_h = source!("include/matrix.h");
    let names = ["F32", "BF16", "INT8", "INT4", "Q8_0", "Q4_K", "Q6_K"];
    for (weight_type, name) in product::tests::WEIGHT_TYPES.into_iter().zip(names) {
        let of_source = matrix_h.1.split(&format!("{name} = ")).nth(1).unwrap();
        let kind: i32 = of_source.split([',', ' ']).next().unwrap().parse().unwrap();
        assert_eq!(matrix::kind(weight_type), kind, "{name}");
    }
}

#[test]
fn structures_have_the_words_that_the_host_writes_and_reads() {
    let score_h = source!("include/score.h");
    assert_eq!(n_words(score_h, "Recipe"), score::SPEC_WORDS);
    assert_eq!(n_words(score_h, "Tile") * 4, score::TILE_BYTES);
    assert_eq!(n_words(score_h, "Cut") * 4, score::CUT_BYTES);
    assert_eq!(n_words(source!("score.cu"), "Record"), score::RECORD_WORDS);
    assert_eq!(n_words(source!("score.cu"), "Change"), score::CHANGE_WORDS);
    assert_eq!(n_words(source!("include/attention.h"), "Tile"), tiles::TILE);
}
