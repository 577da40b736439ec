//! A compiled template with its account kept: before each operation that makes a value, an instruction that spends its size.
//!
//! minijinja compiles a template to instructions for a stack. Operators on texts and lists, what is written inside of a block
//! that is captured, and literals have no hook, so the instructions are copied with calls of filters in between. The
//! filters and the variable have names that no template can write.

use minijinja::machinery::{Instruction, Instructions};
use minijinja::value::{Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State};

use super::account::{self, CELL, ESCAPED};

/// Variable with the bytes that the values of a rendering may have.
pub(super) const LIMIT: &str = "account:limit";

const OPEN: &str = "account:open";
const SPEND: &str = "account:spend";
const JOINED: &str = "account:joined";
const COMPARED: &str = "account:compared";
const GROWN: &str = "account:grown";
const BUILT: &str = "account:built";
const STORED: &str = "account:stored";
const PRODUCT: &str = "account:product";

/// Bytes of a macro.
const MACRO: u64 = 256;

/// Flag of a loop that may call itself (minijinja's `LOOP_FLAG_RECURSIVE`).
const RECURSIVE_LOOP: u8 = 2;

/// Position of filters that are looked up by name each time.
const UNCACHED: u8 = !0;

/// Adds the filters that metered instructions call.
pub(super) fn add_filters(environment: &mut Environment<'static>) {
    environment.add_filter(OPEN, |state: &mut State<'_, '_>, limit: u64| account::open(state, limit));
    environment.add_filter(SPEND, |state: &mut State<'_, '_>, bytes: u64| account::spend(state, bytes));
    environment.add_filter(JOINED, |state: &mut State<'_, '_>, value: Value| {
        let bytes = match value.as_str() {
            Some(text) => text.len() as u64,
            None => account::size(state, &value)?.as_text(),
        };
        account::spend(state, bytes).map(|()| value)
    });
    environment.add_filter(COMPARED, |state: &mut State<'_, '_>, value: Value| {
        let size = account::size(state, &value)?;
        // Memory is compared some bytes at a time.
        account::spend(state, size.bytes / 8).map(|()| value)
    });
    environment.add_filter(GROWN, |state: &mut State<'_, '_>, value: Value| {
        let bytes = value.as_str().map_or_else(|| account::n_items(&value) * CELL, |text| text.len() as u64);
        account::spend(state, bytes).map(|()| value)
    });
    environment.add_filter(BUILT, built);
    environment.add_filter(STORED, |state: &mut State<'_, '_>, value: Value| {
        account::size(state, &value)?;
        // It could hold itself, and would never be dropped.
        if account::has_namespace(&value) {
            return Err(Error::new(ErrorKind::InvalidOperation, "it stores a namespace in a namespace"));
        }
        Ok(value)
    });
    environment.add_filter(PRODUCT, product);
}

/// Pays for a new value, and checks how deep it is.
fn built(state: &mut State<'_, '_>, value: Value) -> Result<Value, Error> {
    // A range is numbers, which are made when they are asked for.
    if value.kind() == ValueKind::Iterable {
        account::spend(state, CELL)?;
    } else if value.as_str().is_none() {
        let size = account::size(state, &value)?;
        account::spend(state, (size.cells + 1) * CELL)?;
    }
    Ok(value)
}

/// The operator `*`.
fn product(state: &mut State<'_, '_>, left: Value, right: Value) -> Result<Value, Error> {
    let is_repeated = |value: &Value| matches!(value.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Iterable);
    let fail =
        || Error::new(ErrorKind::InvalidOperation, format!("cannot multiply {} and {}", left.kind(), right.kind()));
    let (repeated, times) = match (is_repeated(&left), is_repeated(&right)) {
        (true, _) => (&left, &right),
        (_, true) => (&right, &left),
        (false, false) => {
            let whole =
                |value: &Value| i128::try_from(value.clone()).ok().filter(|_| value.kind() != ValueKind::Undefined);
            return match (
                left.is_integer() || left.kind() == ValueKind::Bool,
                right.is_integer() || right.kind() == ValueKind::Bool,
            ) {
                (true, true) => {
                    let product = whole(&left).zip(whole(&right)).and_then(|(left, right)| left.checked_mul(right));
                    product
                        .map(|product| i64::try_from(product).map_or(Value::from(product), Value::from))
                        .ok_or_else(fail)
                }
                _ => match (f64::try_from(left.clone()), f64::try_from(right.clone())) {
                    (Ok(left), Ok(right)) => Ok(Value::from(left * right)),
                    _ => Err(fail()),
                },
            };
        }
    };
    // As in Python, a negative count gives an empty result.
    let times = i64::try_from(times.clone()).map_err(|_| fail())?.max(0) as u64;
    if let Some(text) = repeated.as_str() {
        account::spend(state, times.saturating_mul(text.len() as u64))?;
        return Ok(Value::from(text.repeat(times as usize)));
    }
    account::spend(state, times.saturating_mul(account::n_items(repeated)).saturating_mul(CELL))?;
    let items: Vec<Value> = repeated.try_iter()?.collect();
    let n_items = items.len() * times as usize;
    Ok(items.into_iter().cycle().take(n_items).collect())
}

/// Pays for `{{ value }}`.
pub(super) fn spend_written(state: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    let factor = if matches!(state.auto_escape(), minijinja::AutoEscape::None) { 1 } else { ESCAPED };
    let bytes = match value.as_str() {
        Some(text) => text.len() as u64,
        None => account::size(state, value)?.as_text(),
    };
    account::spend(state, bytes.saturating_mul(factor))
}

/// True if `instructions` may call the interpreter again, which goes as deep as the recursion limit.
pub(super) fn recurses(instructions: &Instructions<'_>) -> bool {
    (0..).map_while(|index| instructions.get(index)).any(|instruction| match instruction {
        Instruction::BuildMacro(..) | Instruction::CallBlock(_) | Instruction::FastRecurse => true,
        Instruction::PushLoop(flags) => flags & RECURSIVE_LOOP != 0,
        _ => false,
    })
}

/// `instructions` with their account kept, which is opened with [`LIMIT`] if they begin a rendering.
pub(super) fn metered<'a>(instructions: &Instructions<'a>, is_start: bool) -> Result<Instructions<'a>, &'static str> {
    use Instruction as I;
    let call = |name: &'static str, n: u16| I::ApplyFilter(name, Some(n), UNCACHED);
    let constant = |bytes: u64, name: &'static str| [I::LoadConst(Value::from(bytes)), call(name, 1), I::DiscardTop];
    let both = |name: &'static str| [call(name, 1), I::Swap, call(name, 1), I::Swap];
    let mut all: Vec<I<'a>> = Vec::new();
    if is_start {
        all.extend([I::Lookup(LIMIT), call(OPEN, 1), I::DiscardTop]);
    }
    let mut places = Vec::new();
    for instruction in (0..).map_while(|index| instructions.get(index)) {
        places.push(all.len() as u32);
        match instruction {
            I::Add | I::StringConcat => all.extend(both(JOINED)),
            I::Eq | I::Ne | I::Gt | I::Gte | I::Lt | I::Lte | I::In | I::CompareAndPreserve(_) => {
                all.extend(both(COMPARED));
            }
            I::SetAttr(_) => all.extend([I::Swap, call(STORED, 1), I::Swap]),
            I::EmitRaw(text) => all.extend(constant(text.len() as u64, SPEND)),
            I::BuildMacro(..) => all.extend(constant(MACRO, SPEND)),
            I::UnpackLists(1) => all.push(call(GROWN, 1)),
            I::UnpackLists(_) => return Err("it passes several lists as arguments (*)"),
            I::Include(_) | I::LoadBlocks => return Err("it refers to another template"),
            _ => {}
        }
        all.push(if let I::Mul = instruction { call(PRODUCT, 2) } else { instruction.clone() });
        match instruction {
            I::Slice => all.push(call(GROWN, 1)),
            I::BuildList(_) | I::BuildTuple(_) | I::BuildMap(_) | I::CallFunction(..) | I::CallObject(_) => {
                all.push(call(BUILT, 1));
            }
            _ => {}
        }
    }
    places.push(all.len() as u32);
    let mut metered = Instructions::new(instructions.name(), instructions.source());
    for mut instruction in all {
        if let I::Iterate(target)
        | I::Jump(target)
        | I::JumpIfFalse(target)
        | I::JumpIfFalseOrPop(target)
        | I::JumpIfTrueOrPop(target)
        | I::BuildMacro(_, target, _) = &mut instruction
        {
            *target = places.get(*target as usize).copied().ok_or("it jumps out of itself")?;
        }
        metered.add(instruction);
    }
    Ok(metered)
}
