//! The account of a rendering: the bytes that its values take, spent before they are made.
//!
//! The interpreter counts instructions, but one instruction can make any amount of memory. Every operation that makes or walks a
//! value therefore spends its size here first ([`super::metering`], [`super::filters`]). Nothing is given back when a value is
//! dropped, so what was spent is an upper bound of what is in use.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

/// Bytes of a value besides its text, rounded up: its place in a list or, twice, in a map.
pub(super) const CELL: u64 = 32;

/// Largest factor by which text grows where it is escaped: `"` becomes `&quot;`, and a control character `\u0000`.
pub(super) const ESCAPED: u64 = 6;

/// Maximum depth of values in values, because they are walked and dropped by recursion. Chosen by us: that of parsed JSON.
const MAX_DEPTH: usize = 128;

/// Bytes that one rendering may still spend.
struct Account {
    limit: u64,
    left: u64,
}

/// Size of a value including nested values, counted as often as they occur.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Size {
    /// Values.
    pub(super) cells: u64,
    /// Bytes of text.
    pub(super) bytes: u64,
}

impl Size {
    /// Bytes of a copy as text.
    pub(super) fn as_text(self) -> u64 {
        self.cells.saturating_mul(CELL).saturating_add(self.bytes.saturating_mul(ESCAPED))
    }
}

/// Opens the account of a rendering.
pub(super) fn open(state: &mut State<'_, '_>, limit: u64) {
    state.get_or_insert_extension_with(|| Account { limit, left: limit });
}

/// Spends `bytes`.
pub(super) fn spend(state: &mut State<'_, '_>, bytes: u64) -> Result<(), Error> {
    let account = state.get_extension_mut::<Account>().ok_or_else(|| Error::from(ErrorKind::InvalidOperation))?;
    match account.left.checked_sub(bytes) {
        Some(left) => account.left = left,
        None => return Err(too_much(account.limit)),
    }
    Ok(())
}

fn too_much(limit: u64) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("it makes more than {limit} bytes of values"))
}

/// The size of `value`, for which the walk alone is paid.
pub(super) fn size(state: &mut State<'_, '_>, value: &Value) -> Result<Size, Error> {
    if let Some(text) = value.as_str() {
        return Ok(Size { cells: 1, bytes: text.len() as u64 });
    }
    let account = state.get_extension::<Account>();
    let (left, limit) = account.map_or((0, 0), |account| (account.left, account.limit));
    let mut size = Size::default();
    walk(value, 0, left, &mut size)?.ok_or_else(|| too_much(limit))?;
    spend(state, size.cells)?;
    Ok(size)
}

/// Adds the size of `value`; `None` if there are more than `most` values.
fn walk(value: &Value, depth: usize, most: u64, size: &mut Size) -> Result<Option<()>, Error> {
    size.cells += 1;
    if depth > MAX_DEPTH {
        let what = format!("it makes values that are nested more than {MAX_DEPTH} deep");
        return Err(Error::new(ErrorKind::InvalidOperation, what));
    }
    if size.cells > most {
        return Ok(None);
    }
    if let Some(text) = value.as_str() {
        size.bytes = size.bytes.saturating_add(text.len() as u64);
        return Ok(Some(()));
    }
    let kind = value.kind();
    if !matches!(kind, ValueKind::Seq | ValueKind::Iterable | ValueKind::Map) {
        // Plain values are printed with a name.
        return Ok(Some(()));
    }
    // Values without a length can be iterated only once.
    if value.len().is_none() {
        return Ok(Some(()));
    }
    for item in value.try_iter()? {
        let inside = if kind == ValueKind::Map { Some(value.get_item(&item)?) } else { None };
        for part in [Some(&item), inside.as_ref()].into_iter().flatten() {
            if walk(part, depth + 1, most, size)?.is_none() {
                return Ok(None);
            }
        }
    }
    Ok(Some(()))
}

/// Values directly in `value`: items of a list, characters of a text.
pub(super) fn n_items(value: &Value) -> u64 {
    value.as_str().map_or_else(|| value.len().unwrap_or(0), str::len) as u64
}

/// True if `value` is a namespace or has one in it.
pub(super) fn has_namespace(value: &Value) -> bool {
    if value.as_object().is_some_and(|object| object.type_name().ends_with("::Namespace")) {
        return true;
    }
    let kind = value.kind();
    if !matches!(kind, ValueKind::Seq | ValueKind::Iterable | ValueKind::Map) || value.len().is_none() {
        return false;
    }
    value.try_iter().into_iter().flatten().any(|item| {
        has_namespace(&item) || kind == ValueKind::Map && value.get_item(&item).is_ok_and(|value| has_namespace(&value))
    })
}
