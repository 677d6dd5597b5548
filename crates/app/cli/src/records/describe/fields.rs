//! The fields of an object as lines for people: title and value.

use serde_json::{Map, Value};

/// Gap between titles and values.
const GAP: usize = 2;

/// Fields that name an object; they come first.
const NAMES: [&str; 3] = ["name", "service", "instance"];

/// Formats an object as one line per field. Empty fields are left out.
pub(super) fn text(item: &Value) -> String {
    let mut fields: Vec<_> = item.as_object().into_iter().flatten().collect();
    // The sort keeps the order of the other fields.
    fields.sort_by_key(|(name, _)| NAMES.iter().position(|one| one == name).unwrap_or(NAMES.len()));
    let lines: Vec<_> =
        fields.into_iter().filter_map(|(name, field)| Some((title(name), words(field)?))).collect();
    let width = lines.iter().map(|(title, _)| title.chars().count() + GAP).max().unwrap_or_default();
    lines.iter().map(|(title, value)| format!("{title:<width$}{value}\n")).collect()
}

/// `Host type` for `hostType`.
fn title(name: &str) -> String {
    let mut title = String::new();
    for (position, letter) in name.chars().enumerate() {
        match (position, letter.is_uppercase()) {
            (0, _) => title.extend(letter.to_uppercase()),
            (_, true) => {
                title.push(' ');
                title.extend(letter.to_lowercase());
            }
            (_, false) => title.push(letter),
        }
    }
    title
}

/// A value in words; `None` if there is nothing to say.
fn words(value: &Value) -> Option<String> {
    let text = match value {
        Value::Null => return None,
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => text.clone(),
        Value::Array(values) => values.iter().filter_map(words).collect::<Vec<_>>().join(", "),
        Value::Object(fields) => object(fields),
    };
    Some(text).filter(|text| !text.is_empty())
}

fn object(fields: &Map<String, Value>) -> String {
    let parts = fields.iter().filter_map(|(name, value)| Some(format!("{name} {}", words(value)?)));
    parts.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_are_described_in_words_and_empty_ones_left_out() {
        let item = json!({
            "service": "shop/cart", "mtls": true, "hostType": null, "endpoints": {"shop/cart": 2}, "zones": [], "ports": [1, 2],
            "health": {"healthy": false, "since": null},
        });
        assert_eq!(
            text(&item),
            "Service    shop/cart\nEndpoints  shop/cart 2\nHealth     healthy no\nMtls       yes\nPorts      1, 2\n"
        );
        assert_eq!(title("hostType"), "Host type");
    }
}
