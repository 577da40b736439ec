//! Regular expressions of clients as languages, by way of the parser of the crate `regex`.

use regex_syntax::ast::{self, Ast, ClassPerl, ClassPerlKind, ClassSet, ClassSetItem, parse::ParserBuilder};
use regex_syntax::hir::translate::TranslatorBuilder;
use regex_syntax::hir::{Class, Hir, HirKind, Look};

use crate::error::ConstraintError;
use crate::language::Language;

/// Longest expression, in bytes. Chosen by us: one of 8 KiB may need 25 MB while it is read.
pub(crate) const MAX_PATTERN_BYTES: usize = 8192;
/// Deepest nesting of groups, repetitions and classes. Chosen by us: reading is recursive.
const MAX_NESTING: u32 = 64;
/// Most combinations of alternatives with anchors. Chosen by us.
const MAX_BRANCHES: usize = 256;
const ANY: &[(char, char)] = &[('\0', char::MAX)];

/// Text that the expression matches from its first byte to its last.
pub(crate) fn whole(pattern: &str) -> Result<Language, ConstraintError> {
    with_flags(pattern, "")
}

/// As [`whole`], under flags as in `/abc/i`: `i`, `s`, `m`, `x`.
pub(crate) fn with_flags(pattern: &str, flags: &str) -> Result<Language, ConstraintError> {
    let ast = parse(pattern)?;
    let mut translator = TranslatorBuilder::new();
    translator.case_insensitive(flags.contains('i')).dot_matches_new_line(flags.contains('s'));
    let hir = translator.build().translate(pattern, &ast).map_err(|error| refuse(&error.kind()))?;
    let branches = branches(&hir, true, true)?;
    Ok(Language::either(branches.into_iter().map(|branch| Language::sequence(branch.body)).collect()))
}

/// Text in which the expression, in the dialect of ECMA 262 that JSON Schema uses, matches somewhere. Where dialects differ, only what
/// all of them match: `\d`, `\w`, `\s` are ASCII, `\D`, `\W`, `\S` leave out the digits, letters, spaces of Unicode; in a negated class the
/// other way round.
pub(crate) fn search(pattern: &str) -> Result<Language, ConstraintError> {
    let mut ast = parse(pattern)?;
    to_ecma(&mut ast)?;
    let hir = TranslatorBuilder::new().build().translate(pattern, &ast).map_err(|error| refuse(&error.kind()))?;
    let any = || Language::repeat(Language::characters(ANY), 0, None);
    let sides = |branch: Branch| {
        let before = if branch.is_at_start { None } else { Some(any()) };
        let after = if branch.is_at_end { None } else { Some(any()) };
        Language::sequence(before.into_iter().chain(branch.body).chain(after).collect())
    };
    Ok(Language::either(branches(&hir, true, true)?.into_iter().map(sides).collect()))
}

fn refuse(what: &dyn std::fmt::Display) -> ConstraintError {
    ConstraintError::new(format!("the regular expression is refused: {what}"))
}

fn parse(pattern: &str) -> Result<Ast, ConstraintError> {
    if pattern.len() > MAX_PATTERN_BYTES {
        let n_bytes = pattern.len();
        return Err(refuse(&format!("it has {n_bytes} bytes, at most {MAX_PATTERN_BYTES} are allowed")));
    }
    let parsed = ParserBuilder::new().nest_limit(MAX_NESTING).build().parse(pattern);
    parsed.map_err(|error| refuse(&format!("{} at byte {}", error.kind(), error.span().start.offset)))
}

/// One way to match: what stands between anchors.
#[derive(Clone, Default)]
struct Branch {
    is_at_start: bool,
    is_at_end: bool,
    body: Vec<Language>,
}

/// The ways to match. Anchors are allowed where nothing stands before `^` (`is_first`) or behind `$` (`is_last`).
fn branches(hir: &Hir, is_first: bool, is_last: bool) -> Result<Vec<Branch>, ConstraintError> {
    if hir.properties().look_set().is_empty() {
        return Ok(vec![Branch { body: vec![convert(hir)?], ..Branch::default() }]);
    }
    match hir.kind() {
        HirKind::Look(Look::Start) if is_first => Ok(vec![Branch { is_at_start: true, ..Branch::default() }]),
        HirKind::Look(Look::End) if is_last => Ok(vec![Branch { is_at_end: true, ..Branch::default() }]),
        HirKind::Look(look) => Err(refuse_look(*look)),
        HirKind::Capture(capture) => branches(&capture.sub, is_first, is_last),
        HirKind::Alternation(parts) => {
            let all: Result<Vec<_>, _> = parts.iter().map(|part| branches(part, is_first, is_last)).collect();
            limited(all?.concat())
        }
        HirKind::Concat(parts) => {
            let is_look = |part: &&Hir| matches!(part.kind(), HirKind::Look(_));
            let n_leading = parts.iter().take_while(is_look).count();
            let n_trailing = parts.iter().rev().take_while(is_look).count();
            let mut all = vec![Branch::default()];
            for (part_idx, part) in parts.iter().enumerate() {
                let is_last = is_last && part_idx + n_trailing + 1 >= parts.len();
                let next = branches(part, is_first && part_idx <= n_leading, is_last)?;
                all = limited(all.iter().flat_map(|left| next.iter().map(|right| joined(left, right))).collect())?;
            }
            Ok(all)
        }
        _ => Err(refuse(&"an anchor inside a repetition is not supported")),
    }
}

fn joined(left: &Branch, right: &Branch) -> Branch {
    Branch {
        is_at_start: left.is_at_start || right.is_at_start,
        is_at_end: left.is_at_end || right.is_at_end,
        body: left.body.iter().chain(&right.body).cloned().collect(),
    }
}

fn limited(branches: Vec<Branch>) -> Result<Vec<Branch>, ConstraintError> {
    match branches.len() {
        0..=MAX_BRANCHES => Ok(branches),
        n => Err(refuse(&format!("it has {n} alternatives beside anchors, at most {MAX_BRANCHES} are allowed"))),
    }
}

fn refuse_look(look: Look) -> ConstraintError {
    refuse(&match look {
        Look::Start | Look::End => "an anchor (^ or $) is supported only at the start or end of the expression",
        Look::StartLF | Look::EndLF | Look::StartCRLF | Look::EndCRLF => {
            "anchors of lines (the flag m) are not supported"
        }
        _ => "word boundaries are not supported",
    })
}

/// The language of an expression without anchors.
fn convert(hir: &Hir) -> Result<Language, ConstraintError> {
    Ok(match hir.kind() {
        HirKind::Empty => Language::empty(),
        HirKind::Literal(literal) => Language::Bytes(literal.0.to_vec()),
        HirKind::Class(Class::Unicode(class)) => {
            characters(class.iter().map(|range| (range.start(), range.end())).collect())
        }
        HirKind::Class(Class::Bytes(class)) => {
            characters(class.iter().map(|range| (char::from(range.start()), char::from(range.end()))).collect())
        }
        HirKind::Look(look) => return Err(refuse_look(*look)),
        HirKind::Repetition(repetition) => Language::repeat(convert(&repetition.sub)?, repetition.min, repetition.max),
        HirKind::Capture(capture) => convert(&capture.sub)?,
        HirKind::Concat(parts) => Language::sequence(parts.iter().map(convert).collect::<Result<_, _>>()?),
        HirKind::Alternation(parts) => Language::either(parts.iter().map(convert).collect::<Result<_, _>>()?),
    })
}

fn characters(ranges: Vec<(char, char)>) -> Language {
    if ranges.is_empty() { Language::Nothing } else { Language::Characters(ranges) }
}

/// Replaces what the crate `regex` and ECMA 262 read differently, or refuses it.
fn to_ecma(ast: &mut Ast) -> Result<(), ConstraintError> {
    match ast {
        Ast::Empty(_) | Ast::Literal(_) | Ast::ClassUnicode(_) => {}
        Ast::Assertion(assertion) => {
            use ast::AssertionKind::{EndText, StartText};
            if matches!(assertion.kind, StartText | EndText) {
                return Err(refuse(&r"\A and \z are not part of ECMA 262: write ^ and $"));
            }
        }
        Ast::Flags(flags) => ecma_flags(&flags.flags)?,
        Ast::Dot(_) => *ast = Ast::ClassBracketed(Box::new(bracketed(r"[^\n\r\u{2028}\u{2029}]")?)),
        Ast::ClassPerl(class) => *ast = Ast::ClassBracketed(Box::new(bracketed(perl(class))?)),
        // What a negated class lists is what it leaves out.
        Ast::ClassBracketed(class) if class.negated => match &mut class.kind {
            ClassSet::Item(item) => ecma_item(item, left_out)?,
            ClassSet::BinaryOp(_) => return Err(refuse_operators()),
        },
        Ast::ClassBracketed(class) => match &mut class.kind {
            ClassSet::Item(item) => ecma_item(item, perl)?,
            ClassSet::BinaryOp(_) => return Err(refuse_operators()),
        },
        Ast::Repetition(repetition) => to_ecma(&mut repetition.ast)?,
        Ast::Group(group) => {
            if let ast::GroupKind::NonCapturing(flags) = &group.kind {
                ecma_flags(flags)?;
            }
            to_ecma(&mut group.ast)?;
        }
        Ast::Alternation(alternation) => alternation.asts.iter_mut().try_for_each(to_ecma)?,
        Ast::Concat(concat) => concat.asts.iter_mut().try_for_each(to_ecma)?,
    }
    Ok(())
}

fn ecma_flags(flags: &ast::Flags) -> Result<(), ConstraintError> {
    use ast::{Flag, FlagsItemKind};
    match flags.items.iter().all(|item| item.kind == FlagsItemKind::Flag(Flag::CaseInsensitive)) {
        true => Ok(()),
        false => Err(refuse(&"flags other than i are not supported in a pattern")),
    }
}

fn refuse_operators() -> ConstraintError {
    refuse(&"&&, -- and ~~ in a class are not supported")
}

/// `read` is [`perl`] or [`left_out`].
fn ecma_item(item: &mut ClassSetItem, read: fn(&ClassPerl) -> &'static str) -> Result<(), ConstraintError> {
    match item {
        ClassSetItem::Perl(class) => *item = ClassSetItem::Bracketed(Box::new(bracketed(read(class))?)),
        ClassSetItem::Union(union) => union.items.iter_mut().try_for_each(|item| ecma_item(item, read))?,
        ClassSetItem::Bracketed(_) | ClassSetItem::Ascii(_) => {
            return Err(refuse(&r"a class inside a class is not part of ECMA 262: write \[ for a bracket"));
        }
        _ => {}
    }
    Ok(())
}

/// The characters that a class has in all dialects.
fn perl(class: &ClassPerl) -> &'static str {
    match (&class.kind, class.negated) {
        (ClassPerlKind::Digit, false) => "[0-9]",
        (ClassPerlKind::Digit, true) => r"[^\d]",
        (ClassPerlKind::Word, false) => "[0-9A-Za-z_]",
        (ClassPerlKind::Word, true) => r"[^\w\p{N}]",
        (ClassPerlKind::Space, false) => r"[\t-\r\ ]",
        (ClassPerlKind::Space, true) => r"[^\s\u{1c}-\u{1f}\u{feff}]",
    }
}

/// The characters that a class has in some dialect.
fn left_out(class: &ClassPerl) -> &'static str {
    match (&class.kind, class.negated) {
        (ClassPerlKind::Digit, false) => r"[\d]",
        (ClassPerlKind::Digit, true) => "[^0-9]",
        (ClassPerlKind::Word, false) => r"[\w\p{N}]",
        (ClassPerlKind::Word, true) => "[^0-9A-Za-z_]",
        (ClassPerlKind::Space, false) => r"[\s\u{1c}-\u{1f}\u{feff}]",
        (ClassPerlKind::Space, true) => r"[^\t-\r\ ]",
    }
}

fn bracketed(class: &str) -> Result<ast::ClassBracketed, ConstraintError> {
    match &parse(class)? {
        Ast::ClassBracketed(class) => Ok(class.as_ref().clone()),
        _ => Err(refuse(&"a class is expected")),
    }
}
