//! From tokens to rules.

use std::collections::HashMap;

use super::lark::common;
use super::rule::{Expression, Rule, error_at};
use super::scan::{Dialect, Kind, Token};
use crate::error::ConstraintError;
use crate::language::Language;
use crate::regex;

/// Most rules. Chosen by us.
const MAX_RULES: usize = 512;
/// Deepest nesting of groups. Chosen by us: reading is recursive.
const MAX_NESTING: usize = 32;
/// Most repetitions of a part. Chosen by us.
const MAX_REPETITIONS: u32 = 4096;

/// The rules of a grammar, and the number of the one that it starts with.
pub(super) fn rules(dialect: Dialect, tokens: Vec<Token>) -> Result<(Vec<Rule>, usize), ConstraintError> {
    let mut parser = Parser { dialect, tokens, at: 0, numbers: HashMap::new(), names: Vec::new(), nesting: 0 };
    let mut bodies: HashMap<usize, Expression> = HashMap::new();
    while parser.at < parser.tokens.len() {
        if parser.directive(&mut bodies)? {
            continue;
        }
        let (number, line) = parser.head()?;
        let body = parser.alternatives()?;
        if bodies.insert(number, body).is_some() {
            return Err(error_at(line, format!("the rule \"{}\" is defined twice", parser.names[number])));
        }
    }
    let start = if dialect == Dialect::Gbnf { "root" } else { "start" };
    let Some(&start_number) = parser.numbers.get(start) else {
        return Err(ConstraintError::new(format!("the grammar has no rule \"{start}\"")));
    };
    let mut rules = Vec::new();
    for (number, name) in parser.names.into_iter().enumerate() {
        let Some(body) = bodies.remove(&number) else {
            return Err(ConstraintError::new(format!("the grammar's rule \"{name}\" is used and not defined")));
        };
        rules.push(Rule { name, body });
    }
    Ok((rules, start_number))
}

struct Parser {
    dialect: Dialect,
    tokens: Vec<Token>,
    at: usize,
    /// The number of each rule that was named so far.
    numbers: HashMap<String, usize>,
    names: Vec<String>,
    nesting: usize,
}

impl Parser {
    fn peek(&self) -> Option<&Kind> {
        self.tokens.get(self.at).map(|token| &token.kind)
    }

    fn line(&self) -> usize {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |token| token.line)
    }

    fn takes(&mut self, kind: &Kind) -> bool {
        let is_next = self.peek() == Some(kind);
        self.at += usize::from(is_next);
        is_next
    }

    fn expect(&mut self, kind: &Kind, shown: &str) -> Result<(), ConstraintError> {
        match self.takes(kind) {
            true => Ok(()),
            false => Err(error_at(self.line(), format!("{shown} is expected"))),
        }
    }

    fn name(&mut self) -> Result<String, ConstraintError> {
        match self.peek() {
            Some(Kind::Name(name)) if !name.starts_with('%') => {
                let name = name.clone();
                self.at += 1;
                Ok(name)
            }
            _ => Err(error_at(self.line(), "the name of a rule is expected")),
        }
    }

    fn number_of(&mut self, name: &str) -> Result<usize, ConstraintError> {
        if let Some(&number) = self.numbers.get(name) {
            return Ok(number);
        }
        if self.names.len() >= MAX_RULES {
            return Err(error_at(self.line(), format!("more than {MAX_RULES} rules")));
        }
        self.numbers.insert(name.to_owned(), self.names.len());
        self.names.push(name.to_owned());
        Ok(self.names.len() - 1)
    }

    /// How many tokens the head of a rule has, if one begins here: in Lark `?name.2:`, in GBNF `name ::=`.
    fn head_length(&self) -> Option<usize> {
        let kind = |offset: usize| self.tokens.get(self.at + offset).map(|token| &token.kind);
        let mut length = 0;
        if self.dialect == Dialect::Lark {
            if !self.tokens.get(self.at)?.is_first {
                return None;
            }
            while matches!(kind(length), Some(Kind::Symbol('?' | '!'))) {
                length += 1;
            }
        }
        matches!(kind(length)?, Kind::Name(_)).then_some(())?;
        length += 1;
        if matches!((kind(length), kind(length + 1)), (Some(Kind::Symbol('.')), Some(Kind::Number(_)))) {
            length += 2;
        }
        (*kind(length)? == Kind::Define).then_some(length + 1)
    }

    /// Reads the head of a rule: its number and line.
    fn head(&mut self) -> Result<(usize, usize), ConstraintError> {
        let line = self.line();
        let length = self.head_length().ok_or_else(|| error_at(line, "a rule is expected"))?;
        let end = self.at + length;
        while matches!(self.peek(), Some(Kind::Symbol(_))) {
            self.at += 1;
        }
        let name = self.name()?;
        self.at = end;
        Ok((self.number_of(&name)?, line))
    }

    /// `%import common.INT`, `%import common (INT, WORD)`, `... -> NAME`: whether it was there.
    fn directive(&mut self, bodies: &mut HashMap<usize, Expression>) -> Result<bool, ConstraintError> {
        let line = self.line();
        match self.peek() {
            Some(Kind::Name(name)) if name == "%import" => self.at += 1,
            Some(Kind::Name(name)) if name.starts_with('%') => {
                return Err(error_at(line, format!("{name} is not supported: write what it adds into the rules")));
            }
            _ => return Ok(false),
        }
        if self.name()? != "common" {
            return Err(error_at(line, "only imports from common are supported"));
        }
        let mut names = Vec::new();
        if self.takes(&Kind::Symbol('.')) {
            let name = self.name()?;
            let alias = if self.takes(&Kind::Arrow) { self.name()? } else { name.clone() };
            names.push((name, alias));
        } else {
            self.expect(&Kind::Symbol('('), "(")?;
            while !self.takes(&Kind::Symbol(')')) {
                let name = self.name()?;
                names.push((name.clone(), name));
                self.takes(&Kind::Symbol(','));
            }
        }
        for (name, alias) in names {
            let expression =
                common(&name).ok_or_else(|| error_at(line, format!("the terminal common.{name} is not supported")))?;
            let number = self.number_of(&alias)?;
            bodies.insert(number, Expression::Terminal(regex::whole(expression)?));
        }
        Ok(true)
    }

    fn alternatives(&mut self) -> Result<Expression, ConstraintError> {
        self.nesting += 1;
        if self.nesting > MAX_NESTING {
            return Err(error_at(self.line(), format!("more than {MAX_NESTING} groups are nested")));
        }
        // Lark's rules may have a bar before the first alternative, too.
        self.takes(&Kind::Symbol('|'));
        let mut all = vec![self.sequence()?];
        while self.takes(&Kind::Symbol('|')) {
            all.push(self.sequence()?);
        }
        self.nesting -= 1;
        Ok(if all.len() == 1 { all.remove(0) } else { Expression::Either(all) })
    }

    fn sequence(&mut self) -> Result<Expression, ConstraintError> {
        let mut parts = Vec::new();
        loop {
            match self.peek() {
                None | Some(Kind::Symbol('|' | ')' | ']')) => break,
                Some(Kind::Name(name)) if name.starts_with('%') => break,
                _ if self.head_length().is_some() => break,
                Some(Kind::Arrow) => {
                    self.at += 1;
                    self.name()?;
                }
                _ => {
                    let atom = self.atom()?;
                    parts.push(self.repeated(atom)?);
                }
            }
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Expression::Sequence(parts) })
    }

    fn atom(&mut self) -> Result<Expression, ConstraintError> {
        let line = self.line();
        let kind = self.tokens.get(self.at).map(|token| token.kind.clone());
        self.at += 1;
        match kind {
            Some(Kind::Name(name)) => {
                if self.dialect == Dialect::Lark && self.peek() == Some(&Kind::Symbol('{')) {
                    return Err(error_at(line, format!("the template \"{name}\" is not supported")));
                }
                Ok(Expression::Rule(self.number_of(&name)?))
            }
            Some(Kind::Text(text)) if self.takes(&Kind::Range) => {
                let Some(Kind::Text(end)) = self.peek().cloned() else {
                    return Err(error_at(line, "the end of a range is expected"));
                };
                self.at += 1;
                let one = |text: &str| text.chars().next().filter(|first| first.len_utf8() == text.len());
                match (one(&text), one(&end)) {
                    (Some(first), Some(last)) if first <= last => {
                        Ok(Expression::Terminal(Language::characters(&[(first, last)])))
                    }
                    _ => Err(error_at(line, "a range needs two characters, the lower first")),
                }
            }
            Some(Kind::Text(text)) => Ok(Expression::Terminal(Language::text(&text))),
            Some(Kind::Pattern(language)) => Ok(Expression::Terminal(language)),
            Some(Kind::Symbol('(')) => {
                let inner = self.alternatives()?;
                self.expect(&Kind::Symbol(')'), ")")?;
                Ok(inner)
            }
            Some(Kind::Symbol('[')) => {
                let inner = self.alternatives()?;
                self.expect(&Kind::Symbol(']'), "]")?;
                Ok(Expression::Repeat(Box::new(inner), 0, Some(1)))
            }
            _ => Err(error_at(line, "a string, an expression, a name or a group is expected")),
        }
    }

    /// The repetitions that stand behind an atom.
    fn repeated(&mut self, mut atom: Expression) -> Result<Expression, ConstraintError> {
        let mut n_signs = 0;
        loop {
            if self.head_length().is_some() {
                return Ok(atom);
            }
            let (least, most) = match self.peek() {
                Some(Kind::Symbol('?')) => (0, Some(1)),
                Some(Kind::Symbol('*')) => (0, None),
                Some(Kind::Symbol('+')) => (1, None),
                Some(Kind::Symbol('~')) => self.lark_counts()?,
                Some(Kind::Symbol('{')) if self.dialect == Dialect::Gbnf => self.gbnf_counts()?,
                _ => return Ok(atom),
            };
            self.at += 1;
            n_signs += 1;
            if n_signs > MAX_NESTING {
                return Err(error_at(self.line(), format!("more than {MAX_NESTING} repetitions of a repetition")));
            }
            if most.is_some_and(|most| most < least) || most.unwrap_or(least) > MAX_REPETITIONS {
                return Err(error_at(self.line(), format!("a repetition is empty or has more than {MAX_REPETITIONS}")));
            }
            atom = Expression::Repeat(Box::new(atom), least, most);
        }
    }

    /// `~n` or `~n..m`; the last token is left to the caller.
    fn lark_counts(&mut self) -> Result<(u32, Option<u32>), ConstraintError> {
        let least = self.count_after()?.ok_or_else(|| error_at(self.line(), "a number is expected"))?;
        if self.tokens.get(self.at + 1).is_none_or(|token| token.kind != Kind::Range) {
            return Ok((least, Some(least)));
        }
        self.at += 1;
        let most = self.count_after()?.ok_or_else(|| error_at(self.line(), "a number is expected"))?;
        Ok((least, Some(most)))
    }

    /// `{n}`, `{n,}`, `{n,m}` or `{,m}`; the last token is left to the caller.
    fn gbnf_counts(&mut self) -> Result<(u32, Option<u32>), ConstraintError> {
        let least = self.count_after()?;
        let most = if self.tokens.get(self.at + 1).is_some_and(|token| token.kind == Kind::Symbol(',')) {
            self.at += 1;
            self.count_after()?
        } else {
            least
        };
        self.at += 1;
        match self.peek() {
            Some(Kind::Symbol('}')) if least.is_some() || most.is_some() => Ok((least.unwrap_or(0), most)),
            _ => Err(error_at(self.line(), "a repetition is written {n}, {n,} or {n,m}")),
        }
    }

    /// The number behind the token in hand, which is then in hand.
    fn count_after(&mut self) -> Result<Option<u32>, ConstraintError> {
        match self.tokens.get(self.at + 1).map(|token| &token.kind) {
            Some(Kind::Number(number)) => {
                self.at += 1;
                Ok(Some(*number))
            }
            _ => Ok(None),
        }
    }
}
