//! Rules as one regular language. Rules that are not recursive are written out where they are used; rules that name each other only
//! at the end of their alternatives, or only at the start, are an automaton with a node for each.

use super::rule::{Expression, Rule};
use crate::error::ConstraintError;
use crate::language::{Language, Node};

/// Deepest nesting of rules in rules. Chosen by us: writing out is recursive.
const MAX_NESTING: usize = 48;
/// Most characters, bytes and edges when rules are written out. Chosen by us.
const MAX_SIZE: u64 = 1_000_000;

/// The text of the rule `start`.
pub(super) fn regular(rules: &[Rule], start: usize) -> Result<Language, ConstraintError> {
    let reached = (0..rules.len()).map(|from| reached(rules, from)).collect();
    let mut writer = Writer { rules, reached, known: vec![None; rules.len()], nesting: 0, size: 0 };
    writer.rule(start)
}

/// Which rules the body of a rule names, directly or through others.
fn reached(rules: &[Rule], from: usize) -> Vec<bool> {
    let mut is_reached = vec![false; rules.len()];
    let mut open = vec![&rules[from].body];
    while let Some(expression) = open.pop() {
        match expression {
            Expression::Terminal(_) => {}
            Expression::Rule(number) if !is_reached[*number] => {
                is_reached[*number] = true;
                open.push(&rules[*number].body);
            }
            Expression::Rule(_) => {}
            Expression::Sequence(parts) | Expression::Either(parts) => open.extend(parts),
            Expression::Repeat(part, ..) => open.push(part),
        }
    }
    is_reached
}

struct Writer<'a> {
    rules: &'a [Rule],
    reached: Vec<Vec<bool>>,
    known: Vec<Option<Language>>,
    nesting: usize,
    size: u64,
}

/// An automaton in the making, of the rules that are recursive with one another.
struct Recursion<'a> {
    group: &'a [usize],
    nodes: Vec<Node>,
}

impl Recursion<'_> {
    fn node(&mut self) -> usize {
        self.nodes.push(Node { edges: Vec::new(), accepts: false });
        self.nodes.len() - 1
    }

    fn place(&self, number: usize) -> Option<usize> {
        self.group.iter().position(|member| *member == number)
    }

    fn is_in(&self, expression: &Expression) -> bool {
        match expression {
            Expression::Terminal(_) => false,
            Expression::Rule(number) => self.place(*number).is_some(),
            Expression::Sequence(parts) | Expression::Either(parts) => parts.iter().any(|part| self.is_in(part)),
            Expression::Repeat(part, ..) => self.is_in(part),
        }
    }
}

/// Where the rules of a recursion stand in their alternatives.
#[derive(Clone, Copy, PartialEq)]
enum Side {
    Last,
    First,
}

impl Writer<'_> {
    fn rule(&mut self, number: usize) -> Result<Language, ConstraintError> {
        let name = &self.rules[number].name;
        if let Some(known) = &self.known[number] {
            self.size = self.size.saturating_add(known.size());
            return match self.size <= MAX_SIZE {
                true => Ok(known.clone()),
                false => Err(ConstraintError::new(format!(
                    "the grammar has more than {MAX_SIZE} characters when its rules are written out, at the rule \"{name}\""
                ))),
            };
        }
        self.nesting += 1;
        if self.nesting > MAX_NESTING {
            return Err(ConstraintError::new(format!(
                "the grammar nests more than {MAX_NESTING} rules, at the rule \"{name}\""
            )));
        }
        let rules = self.rules;
        let language =
            if self.reached[number][number] { self.recursive(number)? } else { self.expression(&rules[number].body)? };
        self.nesting -= 1;
        self.known[number] = Some(language.clone());
        Ok(language)
    }

    fn expression(&mut self, expression: &Expression) -> Result<Language, ConstraintError> {
        Ok(match expression {
            Expression::Terminal(language) => language.clone(),
            Expression::Rule(number) => self.rule(*number)?,
            Expression::Sequence(parts) => Language::sequence(self.all(parts)?),
            Expression::Either(parts) => Language::either(self.all(parts)?),
            Expression::Repeat(part, least, most) => Language::repeat(self.expression(part)?, *least, *most),
        })
    }

    fn all(&mut self, parts: &[Expression]) -> Result<Vec<Language>, ConstraintError> {
        parts.iter().map(|part| self.expression(part)).collect()
    }

    /// A rule that names itself, directly or through others.
    fn recursive(&mut self, number: usize) -> Result<Language, ConstraintError> {
        let is_member = |other: &usize| self.reached[number][*other] && self.reached[*other][number];
        let group: Vec<usize> = (0..self.rules.len()).filter(is_member).collect();
        for side in [Side::Last, Side::First] {
            if let Some(language) = self.linear(&group, number, side)? {
                return Ok(language);
            }
        }
        let name = &self.rules[number].name;
        Err(ConstraintError::new(format!(
            "the grammar's rule \"{name}\" is recursive. Recursion is supported only where every alternative names such a rule at most \
             once and as its last part, or every alternative as its first part"
        )))
    }

    /// The automaton of a group of rules, if they stand on one side only.
    ///
    /// On the last side, the node of a rule is where its text begins, and all end at the node behind theirs; on the first side, the node
    /// of a rule is where its text has ended, and all begin at the node behind theirs.
    fn linear(&mut self, group: &[usize], start: usize, side: Side) -> Result<Option<Language>, ConstraintError> {
        let mut recursion = Recursion { group, nodes: Vec::new() };
        (0..=group.len()).for_each(|_| {
            recursion.node();
        });
        let border = group.len();
        let rules = self.rules;
        for (place, &member) in group.iter().enumerate() {
            if !self.linear_part(&mut recursion, &rules[member].body, place, side)? {
                return Ok(None);
            }
        }
        let place = recursion.place(start).unwrap_or(border);
        let mut nodes = recursion.nodes;
        let (first, last) = if side == Side::Last { (place, border) } else { (border, place) };
        nodes[last].accepts = true;
        // The first node of a graph is where its paths begin.
        nodes.push(Node { edges: vec![(Language::empty(), first + 1)], accepts: false });
        nodes.rotate_right(1);
        let moved = nodes.iter_mut().skip(1).flat_map(|node| &mut node.edges);
        moved.for_each(|(_, to)| *to += 1);
        Ok(Some(Language::Graph(nodes)))
    }

    /// Adds the paths of `expression` between `place` and the border. False: the expression names a rule elsewhere than on that side.
    fn linear_part(
        &mut self,
        recursion: &mut Recursion<'_>,
        expression: &Expression,
        place: usize,
        side: Side,
    ) -> Result<bool, ConstraintError> {
        let border = recursion.group.len();
        let link = |nodes: &mut Vec<Node>, language: Language, outer: usize| {
            let (from, to) = if side == Side::Last { (place, outer) } else { (outer, place) };
            nodes[from].edges.push((language, to));
        };
        if !recursion.is_in(expression) {
            let language = self.expression(expression)?;
            link(&mut recursion.nodes, language, border);
            return Ok(true);
        }
        match expression {
            Expression::Rule(number) => {
                let outer = recursion.place(*number).unwrap_or(border);
                link(&mut recursion.nodes, Language::empty(), outer);
                Ok(true)
            }
            Expression::Either(parts) => {
                for part in parts {
                    if !self.linear_part(recursion, part, place, side)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            Expression::Sequence(parts) => {
                let split = if side == Side::Last { parts.len() - 1 } else { 1 };
                let (head, tail) = parts.split_at(split);
                let (named, others) = if side == Side::Last { (tail, head) } else { (head, tail) };
                if others.iter().any(|part| recursion.is_in(part)) {
                    return Ok(false);
                }
                let others = Language::sequence(self.all(others)?);
                let middle = recursion.node();
                link(&mut recursion.nodes, others, middle);
                self.linear_part(recursion, &named[0], middle, side)
            }
            Expression::Repeat(part, 0, Some(1)) => {
                link(&mut recursion.nodes, Language::empty(), border);
                self.linear_part(recursion, part, place, side)
            }
            _ => Ok(false),
        }
    }
}
