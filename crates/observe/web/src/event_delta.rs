//! The content of an event, and the part of it that a reader does not have yet.

use std::{collections::BTreeMap, fmt::Write as _, sync::Arc};

use serde::Serialize;

/// A head, and rows by name, all as JSON text.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Shown {
    head: String,
    rows: BTreeMap<String, Arc<str>>,
}

/// Encodes a value as JSON on one line.
pub(crate) fn text(value: &impl Serialize) -> String {
    // Maps in these values have string keys, so encoding cannot fail.
    serde_json::to_string(value).unwrap_or_default()
}

impl Shown {
    /// Creates content that has a head and no rows.
    pub(crate) fn head(head: &impl Serialize) -> Self {
        Self { head: text(head), rows: BTreeMap::new() }
    }

    /// Creates content with a head and rows. If a name occurs several times, the last row counts.
    pub(crate) fn with_rows(
        head: &impl Serialize,
        rows: impl IntoIterator<Item = (String, Arc<str>)>,
    ) -> Self {
        Self { head: text(head), rows: rows.into_iter().collect() }
    }

    /// Returns the event data for a reader that already has `sent`: the head, new and changed rows, and names of
    /// removed rows. `None` if nothing has changed.
    pub(crate) fn since(&self, sent: Option<&Self>) -> Option<String> {
        let none = BTreeMap::new();
        let known = sent.map_or(&none, |sent| &sent.rows);
        let changed: Vec<_> = self.rows.iter().filter(|(name, row)| known.get(*name) != Some(*row)).collect();
        let gone: Vec<_> = known.keys().filter(|name| !self.rows.contains_key(*name)).collect();
        if sent.is_some_and(|sent| sent.head == self.head) && changed.is_empty() && gone.is_empty() {
            return None;
        }
        let mut data = format!("{{\"whole\":{},\"head\":{},\"rows\":{{", sent.is_none(), self.head);
        for (number, (name, row)) in changed.into_iter().enumerate() {
            let comma = if number == 0 { "" } else { "," };
            // Writing to a string cannot fail.
            let _ = write!(data, "{comma}{}:{row}", text(name));
        }
        let _ = write!(data, "}},\"gone\":{}}}", text(&gone));
        Some(data)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn shown(head: u32, rows: &[(&str, u32)]) -> Shown {
        let row = |(name, value): &(&str, u32)| ((*name).to_owned(), value.to_string().into());
        Shown::with_rows(&head, rows.iter().map(row))
    }

    fn since(now: &Shown, sent: Option<&Shown>) -> Value {
        now.since(sent).map_or(Value::Null, |data| serde_json::from_str(&data).unwrap())
    }

    #[test]
    fn page_event_contains_only_rows_new_to_reader() {
        let before = shown(1, &[("a", 1), ("b\n\"", 2), ("c", 3)]);
        let all = json!({"a": 1, "b\n\"": 2, "c": 3});
        assert_eq!(since(&before, None), json!({"whole": true, "head": 1, "rows": all, "gone": []}));
        assert_eq!(since(&before, Some(&before)), Value::Null);
        let now = shown(1, &[("a", 1), ("b\n\"", 5), ("d", 4)]);
        let changed = json!({"b\n\"": 5, "d": 4});
        assert_eq!(
            since(&now, Some(&before)),
            json!({"whole": false, "head": 1, "rows": changed, "gone": ["c"]})
        );
        let head = shown(2, &[("a", 1), ("b\n\"", 5), ("d", 4)]);
        assert_eq!(since(&head, Some(&now))["head"], 2, "a head alone is news");
    }
}
