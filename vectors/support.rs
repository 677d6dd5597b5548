//! Shared by the tests that compare the decision vectors with the code.

use std::{env, fs, path::Path};

use serde_json::{Value, json};

/// A number of 64 bits as the vectors write it.
pub(crate) fn hex(number: u64) -> Value {
    json!(format!("{number:#018x}"))
}

/// Compares what the code decides with `vectors/{file}`. With `UPDATE_VECTORS` set, it writes the file if they differ.
///
/// # Panics
/// When they differ, naming the first case that does; also when the file was written, since what it says now has not been compared
/// with anything but the code that wrote it.
pub(crate) fn check(file: &str, lists: &[(&str, Vec<Value>)]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../vectors").join(file);
    if env::var_os("UPDATE_VECTORS").is_some() {
        return update(&path, &write(lists));
    }
    let text = fs::read_to_string(&path).unwrap();
    let stored: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(stored.as_object().unwrap().len(), lists.len(), "lists in {file}");
    for (name, cases) in lists {
        let stored = stored[name].as_array().unwrap_or_else(|| panic!("{file} has no list '{name}'"));
        for (i, (case, stored)) in cases.iter().zip(stored).enumerate() {
            assert_eq!(
                case, stored,
                "{file}, {name}[{i}]: the code decides (left) what the vectors do not (right)"
            );
        }
        assert_eq!(cases.len(), stored.len(), "cases of {name} in {file}");
    }
}

/// Writes a file unless it has this text already.
fn update(path: &Path, text: &str) {
    if fs::read_to_string(path).is_ok_and(|old| old == text) {
        return;
    }
    fs::write(path, text).unwrap();
    panic!(
        "{} is written anew: look at the difference, and run the test without UPDATE_VECTORS",
        path.display()
    );
}

/// One case a line, so that differences are read by case.
fn write(lists: &[(&str, Vec<Value>)]) -> String {
    let list = |(name, cases): &(&str, Vec<Value>)| {
        let cases: Vec<String> = cases.iter().map(|case| format!("    {case}")).collect();
        format!("  \"{name}\": [\n{}\n  ]", cases.join(",\n"))
    };
    let lists: Vec<String> = lists.iter().map(list).collect();
    format!("{{\n{}\n}}\n", lists.join(",\n"))
}
