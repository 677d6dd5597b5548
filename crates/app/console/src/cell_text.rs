//! Text of values in cells of tables.

use std::time::Duration;

use fairmesh_model::Service;
use serde_json::{Value, json};

/// `40 s`, `12 min`, `5 h` or `9 d`.
pub fn rough_age(age: Duration) -> String {
    match age.as_secs() {
        seconds @ ..120 => format!("{seconds} s"),
        seconds @ ..7200 => format!("{} min", seconds / 60),
        seconds @ ..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} d", seconds / 86_400),
    }
}

/// Type and protocol of a service as in YAML.
pub fn type_and_protocol(service: &Service) -> (String, String) {
    // Both are enums that serde serialises as plain strings.
    let text = |value: Value| value.as_str().unwrap_or_default().to_owned();
    (text(json!(service.kind)), text(json!(service.protocol)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn age_uses_largest_unit_with_value_of_two_or_more() {
        let ages = [119, 120, 7199, 7200, 172_799, 172_800].map(|age| rough_age(Duration::from_secs(age)));
        assert_eq!(ages, ["119 s", "2 min", "119 min", "2 h", "47 h", "2 d"]);
    }
}
