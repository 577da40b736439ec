//! The terminals of Lark's module `common` (its file `grammars/common.lark`).

/// The expression of a terminal.
pub(super) fn common(name: &str) -> Option<&'static str> {
    Some(match name {
        "DIGIT" => "[0-9]",
        "HEXDIGIT" => "[0-9A-Fa-f]",
        "INT" => "[0-9]+",
        "SIGNED_INT" => "[+-]?[0-9]+",
        "DECIMAL" => r"[0-9]+\.[0-9]*|\.[0-9]+",
        "FLOAT" => r"[0-9]+[Ee][+-]?[0-9]+|(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[Ee][+-]?[0-9]+)?",
        "SIGNED_FLOAT" => r"[+-]?(?:[0-9]+[Ee][+-]?[0-9]+|(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[Ee][+-]?[0-9]+)?)",
        "NUMBER" => r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[Ee][+-]?[0-9]+)?",
        "SIGNED_NUMBER" => r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[Ee][+-]?[0-9]+)?",
        "ESCAPED_STRING" => r#""(?:[^"\\\n]|\\[^\n])*""#,
        "LCASE_LETTER" => "[a-z]",
        "UCASE_LETTER" => "[A-Z]",
        "LETTER" => "[A-Za-z]",
        "WORD" => "[A-Za-z]+",
        "CNAME" => "[A-Z_a-z][0-9A-Z_a-z]*",
        "WS_INLINE" => r"[\t ]+",
        "WS" => r"[\t\f\r\n ]+",
        "CR" => r"\r",
        "LF" => r"\n",
        "NEWLINE" => r"(?:\r?\n)+",
        "SH_COMMENT" => r"#[^\n]*",
        "CPP_COMMENT" => r"//[^\n]*",
        "SQL_COMMENT" => r"--[^\n]*",
        _ => return None,
    })
}
